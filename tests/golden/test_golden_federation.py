"""A Flower federation whose clients join, are late or away, and whose server crashes, is the stored one."""

import shutil

import numpy as np
import pytest
from records import pinned, same_parts

from fedlane import Run
from support.parts import missing

pytestmark = pytest.mark.slow


@pytest.fixture
def federation(tmp_path):
    """The federation whose server has crashed."""
    try:
        from federation import Federation
    except ModuleNotFoundError:
        missing("flwr is not installed (extra flower)")
    made = Federation(tmp_path / "own")
    made.crash()
    return made


def test_a_federation_is_the_stored_one_before_and_after_a_crash(federation):
    same_parts(federation.record(), pinned("federation", "crashed"))
    model = federation.serve()
    same_parts(federation.record(), pinned("federation", "ended"))
    for name, array in Run.load(federation.folder).model.items():
        np.testing.assert_array_equal(model[name], array)


def test_a_stored_server_is_continued(federation, tmp_path):
    """It is the state of the federation that crashed, so it ends as that one does."""
    from cases import FILES

    stored = FILES / "server-state"
    assert (stored / "orders.jsonl").read_bytes() == (federation.folder / "orders.jsonl").read_bytes()
    federation.folder = shutil.copytree(stored, tmp_path / "copied")
    same_parts(federation.record(), pinned("federation", "crashed"))
    federation.serve()
    same_parts(federation.record(), pinned("federation", "ended"))


def test_the_federation_shows_what_it_is_there_for(federation):
    """A client joins, one is late and then busy, one is lost and one is away; the crash charges its round's clients."""
    federation.serve()
    run = Run.load(federation.folder)
    assert run.summary["flower"]["joined_round"] == [0, 0, 0, 0, 4]
    assert run.summary["flower"]["dropped"] == {"d": 1, "b": 1}
    late = [(row["round"], row["client"]) for row in run.assignments.to_pylist() if not row["punctual"]]
    assert late == [(2, 3), (6, 1), (8, 2), (8, 0)]
    available = run.client_rounds["available"].to_numpy(zero_copy_only=False).reshape(-1, 5)
    assert available[:, 3].tolist() == [True] * 3 + [False] * 6 + [True] * 5
    assert available[-1].tolist() == [False, False, True, True, True]  # two budgets are spent
    assert run.clients["uploads"].to_pylist() == [len(client.orders) for client in federation.clients]
