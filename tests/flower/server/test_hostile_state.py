"""A server's state folder from a stranger: one line or a run that continues, and nothing outside the folder changes."""

import os
import signal

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdam

from fedlane.flower.server.state_files import CHECKPOINT, JOURNAL, LOCK, Saved, StateStore
from fedlane.validate import InputError
from support.local_grid import LocalGrid, Node, strategy
from support.nested import places, replaced

MODEL = ArrayRecord({"w": Array(np.zeros(5, np.float32))})
POLICIES = ["mamab-om:V=10", "mamab-gmba", "round-robin", "single-ucb", "ucb-index"]


def server(folder, policy="lane", lanes=2):
    return strategy(folder, FedAdam(fraction_evaluate=0.0), policy=policy, lanes=lanes, min_clients=4, deadline_s=5.0)


def wrong_arrays(array):
    """Return arrays in place of one of a checkpoint."""
    numbers = array.dtype.kind in "fi"
    yield from (None, np.zeros(0), np.array(1.5), np.array("x"), np.full(array.shape, np.nan))
    yield np.zeros((2, *array.shape), array.dtype)
    yield np.zeros((1, *array.shape[1:]), array.dtype)
    for value in (-7, 5, 10**7, 10**9) if numbers else (-1, 5):
        yield np.full(array.shape, value, array.dtype if numbers else np.int64)
    yield np.full(array.shape, np.inf)


def play_on(folder, policy, saved=None):
    """Continue from a state folder: a round of the schedule, and everything that is written after it."""
    continued = server(folder, policy)
    if saved is not None:
        continued.state.store.load = lambda: saved
    scheduler = continued._begin(MODEL, 6)
    available = np.ones(scheduler.problem.clients, np.bool_)
    scheduler.rounds.start(scheduler.decide(available, available))
    scheduler.settle({})
    scheduler.record_epsilon([member.epsilon for member in continued.state.roster.members])
    continued.state.aggregation.content(1, continued.state.arrays, {})
    continued.state.save()


@pytest.mark.parametrize("policy", [pytest.param("lane", marks=pytest.mark.slow), *POLICIES])
def test_any_change_of_a_state_folder_is_one_line(tmp_path, monkeypatch, policy):
    """Every array and every value of the checkpoint is replaced by others in turn."""
    server(tmp_path, policy).start(LocalGrid(*map(Node, "abcd")), MODEL, num_rounds=3)
    saved = StateStore(tmp_path).load()
    monkeypatch.setattr("fedlane.flower.server.state_files.write_atomically", lambda *arguments, **options: None)
    arrays, values = dict(saved.arrays), dict(saved.values)
    named = list(arrays) if policy == "lane" else [name for name in arrays if name.startswith("scheduler.state.")]
    changed = [(values, {**arrays, name: wrong}) for name in named for wrong in wrong_arrays(arrays[name])]
    if policy == "lane":
        changed += [(values, {**arrays, name: np.zeros(3)}) for name in ("inner.aggregate_train/dict/w", "inner.x")]
        one_client = {**values, "roster": values["roster"][:1]}
        for path in filter(None, places(one_client)):
            wrong = (None, -1, 2**70, 1e308, float("nan"), "x", [], {}, True)
            changed += [(replaced(values, path, value), arrays) for value in wrong]
    reasons = [_reason(tmp_path, policy, *change) for change in changed]
    assert not [reason for reason in reasons if "\n" in reason]
    assert sum(map(bool, reasons)) > 0.6 * len(changed)
    assert _reason(tmp_path, policy, values, arrays) == ""


def _reason(folder, policy, values, arrays):
    """Return why a state is refused, or an empty string if the federation continues."""
    (folder / JOURNAL).write_bytes(b"")  # in which the state before has charged a round
    try:
        read = {name: array.copy() for name, array in arrays.items() if array is not None}  # policies change theirs
        play_on(folder, policy, Saved(values, read))
    except InputError as error:
        return str(error)
    return ""


def test_a_journal_with_impossible_orders_is_one_line(tmp_path):
    server(tmp_path).start(LocalGrid(*map(Node, "abcd")), MODEL, num_rounds=2)
    lines = (tmp_path / JOURNAL).read_bytes()
    attacks = [
        b'{"round": 2, "orders": {"a": 7}}',
        b'{"round": 2, "orders": {"a": -1}}',
        b'{"round": 2, "orders": {"a": 10000000}}',
        b'{"round": 2, "orders": {"a": 1, "b": 1}}',
        b'{"round": 1e400, "orders": {}}',
        b'{"round": 9999999999, "orders": {}}',
        b'{"round": 2, "orders": []}',
        b"[" * 100_000,
    ]
    for attack in attacks:
        (tmp_path / JOURNAL).write_bytes(lines + attack + b"\n")
        with pytest.raises(InputError, match=r"is damaged|num_rounds must be at least"):
            play_on(tmp_path, "lane")


NAMES = [LOCK, f".{CHECKPOINT}", CHECKPOINT, JOURNAL, "status.json", "summary.json", "rounds.parquet", "scenario.toml"]


@pytest.fixture
def _in_time():
    """End a test that waits for a pipe."""

    def stop(number, frame):
        raise AssertionError("the server waits for a file")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("_in_time")
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
@pytest.mark.parametrize("name", NAMES)
def test_links_and_pipes_in_a_state_folder_reach_nothing_outside(tmp_path, name, kind):
    folder, outside = tmp_path / "state", tmp_path / "outside"
    folder.mkdir()
    outside.write_text("precious")
    if kind == "link":
        (folder / name).symlink_to(outside)
    elif kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).mkdir()
    try:
        server(folder, "round-robin").start(LocalGrid(*map(Node, "abcd")), MODEL, num_rounds=1)
    except InputError as error:
        assert name.lstrip(".") in str(error)  # noqa: PT017
    assert outside.read_text() == "precious"
