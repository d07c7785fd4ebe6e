"""Confidence intervals of a mean over independent seeds."""

import numpy as np
from scipy.special import stdtrit

from fedlane.records import FloatArray


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


def interval(values: FloatArray | None) -> dict[str, float | None]:
    """Mean over seeds and its 95% interval; one seed has no bounds, and without values all are None.

    Args:
        values: (S,), one value per seed.
    """
    if values is None or len(values) == 0:
        return {"mean": None, "low": None, "high": None}
    low, mean, high = map(float, student_interval(values))
    return {"mean": mean, "low": None, "high": None} if len(values) == 1 else {"mean": mean, "low": low, "high": high}
