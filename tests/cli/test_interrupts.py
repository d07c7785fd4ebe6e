"""Ctrl-C during a run: once and twice save, three times stop at once and say what is lost."""

import json
import signal

import pytest

from fedlane.cli import session
from fedlane.simulation.results import RunFolder
from fedlane.simulation.simulation import Simulation
from support.terminal import fedlane

RUN = ("run", "--rounds", "12", "--no-learning", "--quiet", "--out", "o")


def press(monkeypatch, times, at=5):
    """Press Ctrl-C some times while a round is played."""
    step = Simulation.step

    def pressed(simulation):
        if simulation.round == at:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        step(simulation)

    monkeypatch.setattr(Simulation, "step", pressed)


@pytest.mark.parametrize("times", [1, 2])
def test_once_and_twice_save(times, monkeypatch, tmp_path):
    press(monkeypatch, times)
    result = fedlane(*RUN, cwd=tmp_path, code=130)
    (line,) = result.stderr.splitlines()
    assert line == "fedlane: interrupted: the first 6 rounds are saved; continue with fedlane run --resume o"
    assert json.loads((tmp_path / "o" / "status.json").read_text()) == {
        "round": 6,
        "rounds": 12,
        "state": "interrupted",
    }


def test_a_second_press_while_the_run_is_saved_does_not_stop_the_saving(monkeypatch, tmp_path):
    write = RunFolder.write

    def pressed(folder, *arguments, **options):
        signal.raise_signal(signal.SIGINT)
        write(folder, *arguments, **options)

    press(monkeypatch, 1)
    monkeypatch.setattr(RunFolder, "write", pressed)
    assert "the first 6 rounds are saved" in fedlane(*RUN, cwd=tmp_path, code=130).stderr
    assert json.loads((tmp_path / "o" / "status.json").read_text())["round"] == 6


def test_three_times_stop_at_once_and_say_what_is_lost(monkeypatch, tmp_path):
    press(monkeypatch, 3)
    monkeypatch.setattr(session, "CHECKPOINT_S", 0.0)
    monkeypatch.setattr(session, "LONG_SAVE_S", float("inf"))  # a busy machine saves slowly
    (line,) = fedlane(*RUN, cwd=tmp_path, code=130).stderr.splitlines()
    assert line == ("fedlane: interrupted: all rounds after the first 5 are lost; continue with fedlane run --resume o")
    assert json.loads((tmp_path / "o" / "status.json").read_text())["round"] == 5


def test_before_the_first_round_nothing_is_saved(monkeypatch, tmp_path):
    press(monkeypatch, 3, at=0)
    assert fedlane(*RUN, cwd=tmp_path, code=130).stderr == "fedlane: interrupted: nothing was saved\n"
    assert not (tmp_path / "o").exists()


def test_ctrl_c_during_the_preparation(monkeypatch, tmp_path):
    def pressed(simulation, *arguments, **options):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Simulation, "__init__", pressed)
    assert fedlane(*RUN, cwd=tmp_path, code=130).stderr == "fedlane: interrupted: nothing was saved\n"
    assert not (tmp_path / "o").exists()
