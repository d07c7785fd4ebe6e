"""How a result is compared with what is stored."""

import os

import pytest
from cases import arithmetic

EXACT = os.environ.get("FEDLANE_GOLDEN_EXACT") == "1"
TEST_SAMPLES = 2000
"""Test samples of the data set that comes with the package."""


def same_schedule(now, then):
    """Compare one replica: exactly on a known arithmetic, elsewhere by what does not depend on the last bit."""
    here = arithmetic()
    if here in then["numbers"]:
        assert now["choices"][here] == then["choices"][here], "assignments differ"
        assert now["numbers"][here] == then["numbers"][here], differing(now, then)
    else:
        assert not EXACT, f"no digest is stored for arithmetic {here}"
        if len(set(then["choices"].values())) == 1:
            assert now["choices"][here] in then["choices"].values(), "assignments differ"
            assert now["sums"] == pytest.approx(then["sums"], rel=1e-9)


def differing(now, then):
    """The columns whose sums differ."""
    return {name: (value, then["sums"][name]) for name, value in now["sums"].items() if value != then["sums"][name]}


def same_curves(now, then):
    """Compare curves within float tolerance, and weights exactly where that is asked for."""
    assert now["row"] == then["row"]
    assert now["tensors"] == then["tensors"]
    assert now["loss"] == pytest.approx(then["loss"], rel=1e-5)
    assert now["accuracy"] == pytest.approx(then["accuracy"], abs=2 / TEST_SAMPLES)
    if EXACT:
        assert (now["loss"], now["accuracy"], now["weights"]) == (then["loss"], then["accuracy"], then["weights"])


def same_run(now, then):
    """Compare a run that learns."""
    for seed, record in then["schedule"].items():
        same_schedule(now["schedule"][seed], record)
    same_curves(now["curves"], then["curves"])
    assert now["layout"] == then["layout"]
    if arithmetic() in then["ledger"]:
        assert now["ledger"][arithmetic()] == then["ledger"][arithmetic()]
