"""The time until a model reaches a target accuracy: one definition for summaries, terminal and page."""

from typing import Any

import numpy as np

from fedlane.intervals import interval, measure_bounds
from fedlane.records import FloatArray

SMOOTHED = 3
"""Number of successive evaluations whose mean must reach the target; a single one may be above it by chance."""


def time_to_accuracy(accuracy: FloatArray, clock_s: FloatArray, target: float) -> FloatArray:
    """Return the simulated time at which each replica reaches an accuracy.

    Args:
        accuracy: (R, T): test accuracy after each round; NaN where the model was not evaluated.
        clock_s: (R, T): simulated time after each round, in seconds.
        target: Accuracy between 0 and 1, to be reached by the mean of three successive evaluations.

    Returns:
        (R,): time of the second of the three evaluations, in seconds; NaN where the target is never reached.
    """
    result = np.full(len(accuracy), np.nan)
    for r, curve in enumerate(accuracy):
        evaluated = ~np.isnan(curve)
        values = curve[evaluated]
        if len(values) < SMOOTHED:
            continue
        smooth = np.convolve(values, np.ones(SMOOTHED) / SMOOTHED, mode="valid")
        reached = np.flatnonzero(smooth >= target)
        if len(reached):
            result[r] = clock_s[r, evaluated][reached[0] + 1]
    return result


def target_measure(time_s: FloatArray, target: float) -> dict[str, Any]:
    """Return the summary's ``time_to_accuracy``: the mean over the seeds that reach the target, and their number.

    Args:
        time_s: (R,): times from `time_to_accuracy`, in seconds.
        target: The accuracy to be reached.
    """
    reached = time_s[~np.isnan(time_s)]
    return {"target": target, "reached": len(reached), **interval(reached, measure_bounds("time_to_accuracy_s"))}
