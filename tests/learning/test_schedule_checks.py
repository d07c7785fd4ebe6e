"""Schedules from strangers: every value is checked before compiled code and PyTorch use it."""

import sys

import numpy as np
import pytest

from fedlane import Scenario, Simulation
from fedlane.learning import replay
from fedlane.learning.schedule import Schedule, learn
from fedlane.validate import InputError


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The arrays of a good schedule."""
    path = tmp_path_factory.mktemp("schedule") / "schedule.npz"
    scenario = Scenario.load("quickstart").with_values({"rounds": 3, "privacy.mechanism": "paper"})
    simulation = Simulation(scenario, "lane", seeds=[0])
    simulation.play()
    simulation.schedule().save(path)
    with np.load(path) as stored:
        return dict(stored)


WRONG = {
    "empty": np.zeros(0),
    "scalar": np.array(1.5),
    "texts": np.array(["a", "b"]),
    "nan": np.array([[np.nan, np.nan]]),
    "negative": np.array([-1, -2]),
    "large": np.array([10**9, 10**9]),
    "fractions": np.array([0.5, 1.5]),
    "truths": np.array([True, False]),
    "3 axes": np.zeros((1, 1, 2)),
    "complex": np.array([[1j, 1j]]),
    "structured": np.array([("a", 1)], dtype=[("x", "U1"), ("y", "i4")]),
    "dates": np.array(["2020-01-01"], "M8[s]"),
    "no column": np.zeros((1, 0)),
}


def hostile_fills(array):
    """Arrays of the right type and shape with numbers out of bounds."""
    if array.dtype.kind == "i":
        return [np.full_like(array, number) for number in (-2, np.iinfo(array.dtype).min)]
    if array.dtype.kind == "f":
        return [np.full_like(array, number) for number in (np.nan, -1.0, -np.inf)]
    return []


UNUSED = {"task.mechanism.epsilon", "task.mechanism.delta", "task.mechanism.max_uploads", "task.mechanism.name"}
"""Values that training does not use: only their types are checked."""


@pytest.mark.slow
def test_every_wrong_value_of_a_schedule_is_one_line(saved, tmp_path):
    path, tried = tmp_path / "schedule.npz", 0
    for name, array in saved.items():
        cases = [None, *WRONG.values(), *([] if name in UNUSED else hostile_fills(array))]
        for wrong in cases:
            if wrong is not None and wrong.shape == array.shape and np.can_cast(wrong.dtype, array.dtype, "same_kind"):
                continue  # a number where a number belongs
            arrays = {key: value for key, value in saved.items() if key != name}
            np.savez(path, **(arrays if wrong is None else {**arrays, name: wrong}))
            with pytest.raises(InputError, match=r"^schedule .* cannot be read: [^\n]*$"):
                Schedule.load(path)
            tried += 1
    assert tried > 250


@pytest.mark.parametrize(
    ("name", "place", "number"),
    [
        ("client", (0, 0, 0), 10),
        ("client", (0, 0, slice(None)), 3),
        ("punctual", (0, 0, slice(None)), True),
        ("delay_s", (0, 0), np.inf),
        ("task.label_counts", (0, 0, 0), 801),
        ("task.label_counts", (0, 0), 0),
        ("task.mechanism.batch_size", (0, 0), 100_000),
        ("task.mechanism.local_iterations", (), 2**31),
        ("task.mechanism.asked_batch", (0,), 2**31),
        ("task.mechanism.sample_rate", (0, 0), 1.5),
        ("task.evaluate_every", (), 0),
        ("task.seeds", (0,), -1),
    ],
)
def test_numbers_that_do_not_fit_together_are_one_line(saved, tmp_path, name, place, number):
    arrays = {key: value.copy() for key, value in saved.items()}
    arrays["client"][0, 0] = -1 if name == "punctual" else arrays["client"][0, 0]
    arrays[name][place] = number
    np.savez(tmp_path / "schedule.npz", **arrays)
    with pytest.raises(InputError, match="cannot be read"):
        Schedule.load(tmp_path / "schedule.npz")


def test_the_replay_of_a_wrong_schedule_is_one_line(saved, tmp_path, monkeypatch, capsys):
    cases = {"task.dataset": "\x1b[31m", "task.model": "nothing", "task.mechanism.sampling": "all"}
    for name, text in cases.items():
        np.savez(tmp_path / "schedule.npz", **{**saved, name: np.array(text)})
        words = ["replay", str(tmp_path / "schedule.npz"), "--out", str(tmp_path / "curves.npz")]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit, match="2"):
            replay.main()
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("fedlane: ")
        assert "\x1b" not in line


def test_a_good_schedule_still_trains(saved, tmp_path):
    np.savez(tmp_path / "schedule.npz", **saved)
    curves = learn(Schedule.load(tmp_path / "schedule.npz"))
    assert curves.accuracy.shape == (1, 1)
