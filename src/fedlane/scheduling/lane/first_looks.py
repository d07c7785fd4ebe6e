"""The errors of predictions of untried pairs, measured at every first look.

The factor model states a variance for a pair that was never tried. That variance is wrong in both directions: too large
while little is known, because the priors are wide, and too small later, because the posteriors of clients and channels
are taken as independent, and because the pairs that are chosen are those that looked best. The stated variance is
therefore multiplied by a factor that follows the squared errors z^2 of the latest first looks, in units of their
predicted variance. A look counts with the weight w of its upload, which is small if the upload was probably lost:

    factor <- (M factor + sum of w z^2 factor) / (M + sum of w),    M = `MEMORY`.

At its fixed point, the weighted mean of z^2 is 1. Without the factor, looks that are believed to be harmless make
rounds last until the deadline.
"""

import numpy as np

from fedlane.records import BoolArray, FloatArray, IntArray, Problem
from fedlane.scheduling.lane.observations import TRIED, Observed

MEMORY = 100.0
SMALLEST, LARGEST = 0.3, 9.0
"""Limits of the factor."""


def uncalibrated(problem: Problem) -> dict[str, np.ndarray]:
    """Return the factor before the first round."""
    return {"doubt": np.ones(problem.replicas)}


def calibrated(variance: FloatArray, count: FloatArray, factor: FloatArray) -> FloatArray:
    """Return the variances of the locations, with those of untried pairs multiplied by their replica's factor."""
    return np.where(count >= TRIED, variance, variance * factor)


def after_looks(factor: FloatArray, replica: IntArray, seen: Observed, first: BoolArray) -> FloatArray:
    """Return the factor (R,) after a round.

    Args:
        factor: The factor that the predictions had (R,).
        replica: Replica of each upload (P,).
        seen: What the uploads showed.
        first: Whether each upload was the first look at its pair (P,).
    """
    replica, weight = replica[first], seen.weight[first]
    number = np.bincount(replica, weight, minlength=len(factor))
    total = np.bincount(replica, weight * seen.squared[first] * factor[replica], minlength=len(factor))
    return np.clip((MEMORY * factor + total) / (MEMORY + number), SMALLEST, LARGEST)
