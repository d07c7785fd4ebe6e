"""Parts of the machine that a test needs and that may be missing: data sets, programs, optional packages."""

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("FEDLANE_DATA", Path(__file__).parents[3] / "shared" / "data"))
"""Data sets of this machine: those that FEDLANE_DATA named at the start (tests change it), or next to the checkout."""


def missing(reason):
    """Skip the test because of ``reason``; under CI=true fail instead."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}: must not be missing in CI")
    pytest.skip(reason)
