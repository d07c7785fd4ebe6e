"""Fixtures of the tests of experiments."""

import multiprocessing

import pytest

from fedlane.experiments.engine import local_runners
from support.calibrated import calibrated  # noqa: F401


@pytest.fixture
def forked_workers(monkeypatch):
    """Workers that are forked, which have imported everything, instead of started anew."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(local_runners.multiprocessing, "get_context", lambda method: context)


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A log with one line for each simulation that a `Counted` policy starts."""
    monkeypatch.setenv("COUNTED_LOG", str(tmp_path / "log"))
    return lambda: (tmp_path / "log").read_text().split() if (tmp_path / "log").exists() else []
