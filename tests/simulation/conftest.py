"""Fixtures that several tests of simulations share."""

import pytest

from fedlane.learning import own_data


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory of its own, with no data set in memory."""
    monkeypatch.chdir(tmp_path)
    own_data._load.cache_clear()
    return tmp_path
