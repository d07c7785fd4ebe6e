"""Fixtures of the golden tests."""

import os

import cases
import opening
import pytest


@pytest.fixture(scope="session")
def digests():
    """The content of digests.json."""
    return cases.stored()


@pytest.fixture(scope="session")
def empty_cache(tmp_path_factory):
    """A cache folder that nothing was written to before this session; its workers share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def stored_noise():
    """The generator of simulated noise is tested elsewhere; with the stored one, everything else is compared."""
    with opening.noise_of_the_time():
        yield


@pytest.fixture
def fresh_cache(empty_cache, monkeypatch):
    """Calibrated noise is computed by this code, not read from the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty_cache))
