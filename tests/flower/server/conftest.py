"""What all tests of the server need, and the federation that those with real processes share."""

import pytest

from support.superlink import SharedFederation


@pytest.fixture(autouse=True)
def _identity(monkeypatch):
    """Give this process the identity that Flower writes into messages."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("run_id", "task_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


@pytest.fixture(scope="package")
def shared_federation(tmp_path_factory):
    """Run a SuperLink as long as tests of this folder last; `ready` starts its nodes."""
    with SharedFederation(tmp_path_factory.mktemp("federation")) as running:
        yield running


@pytest.fixture
def federation(shared_federation):
    """Return the shared federation with all of its nodes."""
    return shared_federation.ready()
