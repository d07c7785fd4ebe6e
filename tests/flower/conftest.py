"""What all tests of the Flower plane need."""

import gc

import pytest


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch):
    """Flower collects garbage after every record that it reads, which takes long in a large process."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
