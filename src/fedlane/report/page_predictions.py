"""What a policy predicted about uploads and whether they agreed with it, as a report page shows it."""

from typing import Any

import numpy as np

from fedlane.delay_predictions import NAMES, covered
from fedlane.records import BoolArray, FloatArray
from fedlane.report.packing import packed_bits, packed_floats, packed_levels
from fedlane.report.page_curves import mean_of, packed_interval
from fedlane.report.page_fit import Detail
from fedlane.report.run_arrays import RunArrays

MEASURE = "coverage_90"
BLOCKS = 25
"""Largest number of points of the curve of coverage."""
BLOCK_UPLOADS = 40
"""Smallest number of uploads of a point, over all seeds, unless the whole run has fewer."""


def embedded_predictions(arrays: RunArrays, detail: Detail, deadline_s: float | None) -> dict[str, Any] | None:
    """The predictions of the embedded rounds, and which uploads they cover; None if the policy states none."""
    if arrays.predicted is None or deadline_s is None:
        return None
    cut = slice(0, detail.seeds), slice(None, None, detail.every)
    inside = packed_bits(_inside(arrays, arrays.predicted, deadline_s)[cut])
    return {**{name: packed_levels(arrays.predicted[name][cut]) for name in NAMES}, "covered": inside}


def coverage_curve(arrays: RunArrays, deadline_s: float | None) -> dict[str, Any]:
    """The share of uploads in their 90% intervals, for blocks of successive rounds: mean over seeds and 95% bounds.

    Empty if the policy states no predictions, or the deadline is unknown. A block stands at its last round.
    """
    if arrays.predicted is None or deadline_s is None:
        return {}
    known = np.isfinite(arrays.predicted[NAMES[0]])
    inside = _inside(arrays, arrays.predicted, deadline_s)
    rounds = known.shape[1]
    blocks = int(max(1, min(BLOCKS, rounds, known.sum() // BLOCK_UPLOADS)))
    ends = np.linspace(0, rounds, blocks + 1).astype(int)[1:]
    counts = _sums(known, ends)
    ends = ends[(counts > 0).all(axis=0)]  # every seed has a share
    if not len(ends):
        return {}
    share = _sums(inside, ends) / _sums(known, ends)
    return {"coverage": {"round": packed_floats(ends), **packed_interval(*mean_of(MEASURE)(share))}}


def _inside(arrays: RunArrays, predicted: dict[str, FloatArray], deadline_s: float) -> BoolArray:
    """(R, T, S): whether each upload has a prediction that covers it."""
    low_s, _, high_s = (predicted[name] for name in NAMES)
    total_s = arrays.download_s + arrays.compute_s + arrays.upload_s
    return covered(low_s, high_s, total_s, arrays.punctual, deadline_s) & np.isfinite(low_s)


def _sums(counted: "np.ndarray[Any, Any]", ends: "np.ndarray[Any, Any]") -> FloatArray:
    """(R, B): the number of true entries of (R, T, S) in the rounds up to each end, after the end before."""
    total = np.cumsum(counted.sum(axis=2), axis=1)[:, ends - 1]
    return np.diff(total, axis=1, prepend=0).astype(np.float64)
