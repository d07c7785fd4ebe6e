"""Fixtures of the tests of the command line."""

import shutil

import pytest

from fedlane import Scenario, Simulation
from fedlane.simulation.results import RunFolder
from support.calibrated import calibrated  # noqa: F401


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    """A run folder with a checkpoint, a ledger and a summary that has all of its optional parts."""
    folder = tmp_path_factory.mktemp("stored") / "run"
    simulation = Simulation(Scenario.load("quickstart").with_values({"rounds": 6}), "lane", [0, 1], learning=False)
    for _ in range(4):
        simulation.step()
    RunFolder.create(folder).write(simulation.result(), checkpoint=simulation.checkpoint(), interrupted=True)
    simulation.ledger.attach_file(folder)
    return folder


@pytest.fixture
def folder(stored, tmp_path):
    """A copy of the stored run folder, which a test may change."""
    return shutil.copytree(stored, tmp_path / "run")
