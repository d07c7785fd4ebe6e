"""A Flower federation whose clients join, are late or away, and whose server crashes, is the stored one."""

import shutil

import numpy as np
import pytest
from cases import FILES
from records import Course, pinned, run_parts, same_parts

from fedlane import Run
from support.parts import missing

pytestmark = pytest.mark.slow


@pytest.fixture
def crashed(tmp_path):
    """Make a federation whose server has crashed."""
    try:
        from federation import Federation
    except ModuleNotFoundError:
        missing("flwr is not installed (extra flower)")

    def make(policy):
        made = Federation(tmp_path / policy, policy)
        made.crash()
        return made

    return make


@pytest.mark.parametrize("policy", ["lane", "round-robin"])
def test_a_federation_is_the_stored_one_before_and_after_a_crash(policy, crashed):
    federation = crashed(policy)
    same_parts(federation.record(), pinned("federation", f"{policy} crashed"))
    model = federation.serve()
    same_parts(federation.record(), pinned("federation", f"{policy} ended"))
    for name, array in Run.load(federation.folder).model.items():
        np.testing.assert_array_equal(model[name], array)


def test_a_stored_server_is_continued(crashed, tmp_path):
    """It is the state of the federation that crashed, so it ends as that one does."""
    federation = crashed("lane")
    federation.folder = shutil.copytree(FILES / "server-state", tmp_path / "copied")
    tables = run_parts(Run.load(federation.folder).tables, decimals=6)
    then = pinned("federation", "lane crashed")
    same_parts(tables, {name: then[name] for name in tables}, Course.FILE)
    federation.serve()
    same_parts(federation.record(), pinned("federation", "lane ended"), Course.CONTINUED)


def test_the_federation_shows_what_it_is_there_for(crashed):
    """A client joins, one is late and then busy, one is lost and one is away; the crash charges its round's clients."""
    federation = crashed("round-robin")
    federation.serve()
    run = Run.load(federation.folder)
    assert run.summary["flower"]["joined_round"] == [0, 0, 0, 0, 4]
    assert run.summary["flower"]["dropped"] == {"d": 1, "b": 1}
    late = [(row["round"], row["client"]) for row in run.assignments.to_pylist() if not row["punctual"]]
    assert late == [(1, 3), (6, 1), (8, 4)]
    available = run.client_rounds["available"].to_numpy(zero_copy_only=False).reshape(-1, 5)
    assert available[:, 3].tolist() == [True, True, False, False, True, True, *[False] * 3, *[True] * 5]
    received = [len(client.orders) for client in federation.clients]
    assert run.clients["uploads"].to_pylist() == received
    assert received == [5, 5, 6, 4, 3]
