"""Confidence intervals of a mean over independent seeds.

A 95% Student interval may extend beyond the values that a measure can take, for example below 0 for a share. Such
values are cut off: the true mean is never among them, so an interval without them covers it exactly as often.
"""

import math

import numpy as np
from scipy.special import stdtrit

from fedlane.records import FloatArray

Bounds = tuple[float, float]
"""Smallest and largest value that a quantity can take."""
UNBOUNDED: Bounds = (-math.inf, math.inf)
SHARES = frozenset(
    (
        *("late_share", "min_participation", "max_participation", "quota_shortfall", "final_accuracy"),
        *("problem_shortfall", "accuracy", "shortfall", "jain", "present_share", "coverage_90"),
    )
)
"""Measures that are shares, from 0 to 1."""
SIGNED = frozenset(("seed", "round", "replica"))
"""Columns of results without a natural range."""


def measure_bounds(measure: str) -> Bounds:
    """Return the range of a measure: 0 to 1 for a share, otherwise at least 0, as times, counts and losses are."""
    return (0.0, 1.0) if measure in SHARES else UNBOUNDED if measure in SIGNED else (0.0, math.inf)


def difference_bounds(bounds: Bounds) -> Bounds:
    """Return the range of the difference of two values from one range: -1 to 1 for shares."""
    low, high = bounds
    return low - high, high - low


def student_interval(values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the mean over the first axis and the bounds of its 95% Student interval.

    Args:
        values: (S, ...), one row per seed.

    Returns:
        Lower bound, mean and upper bound, each (...); for a single seed all three are the same.
    """
    mean = np.asarray(values.mean(axis=0))
    if len(values) == 1:
        return mean, mean, mean
    half = stdtrit(len(values) - 1, 0.975) * values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return mean - half, mean, mean + half


def bounded_interval(values: FloatArray, bounds: Bounds) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the 95% Student interval without the values that the quantity cannot take.

    Args:
        values: (S, ...), one row per seed.
        bounds: Range of the quantity; see `measure_bounds`.

    Returns:
        Lower bound, mean and upper bound, each (...); for a single seed all three are the same.
    """
    low, mean, high = student_interval(values)
    return np.maximum(low, np.minimum(bounds[0], mean)), mean, np.minimum(high, np.maximum(bounds[1], mean))


def interval(values: FloatArray | None, bounds: Bounds = UNBOUNDED) -> dict[str, float | None]:
    """Mean over seeds and its 95% interval; one seed has no bounds, and without values all are None.

    Args:
        values: (S,), one value per seed.
        bounds: Range of the quantity; see `measure_bounds`.
    """
    if values is None or len(values) == 0:
        return {"mean": None, "low": None, "high": None}
    low, mean, high = map(float, bounded_interval(values, bounds))
    return {"mean": mean, "low": None, "high": None} if len(values) == 1 else {"mean": mean, "low": low, "high": high}
