"""Parts of the machine that a test needs and that may be missing: data sets, programs, optional packages."""

import os
from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).parents[3] / "shared" / "data"
"""Data sets next to the checkout, where there are any."""


def missing(reason):
    """Skip the test because of ``reason``; under CI=true fail instead."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}: must not be missing in CI")
    pytest.skip(reason)
