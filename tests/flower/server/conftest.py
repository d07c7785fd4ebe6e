"""What all tests of the server need."""

import pytest


@pytest.fixture(autouse=True)
def _identity(monkeypatch):
    """Give this process the identity that Flower writes into messages."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("run_id", "task_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
