"""What `lane` records about pairs and clients. Everything is a running mean, so it is forgotten by lowering a count.

The delay of client i on channel j is compute time, which belongs to the client, plus network time (download and
upload), which belongs to the pair. For each pair, the state holds the count n, and the mean and variance of
x = ln(network time); for each client, it holds the latest compute times.

A late upload was cut off, so its parts are unknown: it is right-censored at c = ln(d_max - compute time). In its place,
the truncated normal distribution gives the mean and variance of x given x > c under the current prediction N(m, s^2):

    h = phi(a) / (1 - Phi(a)),  a = (c - m) / s:   mean m + s h,   variance s^2 (1 + a h - h^2).

A client that leaves in mid-round looks late as well. A late upload therefore counts with the probability that it was
slow, P(late) / (P(late) + `LOST`).
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from fedlane.records import Feedback, FloatArray, IntArray, Problem, State

KEPT = 12
"""Number of compute times that are kept for each client."""
LOST = 0.01
"""Probability that an upload is lost for a reason that says nothing about the pair."""
TRIED = 0.5
"""A pair counts as tried from this weight on: an upload that was probably lost says nothing about it."""
OPTIMISM = 1.0
"""Standard errors by which the probability of being punctual is raised where queues are weighed."""
SMALLEST_S = 1e-6
"""Times are at least this long, so that their logarithm is finite."""

Pair = tuple[IntArray, IntArray, IntArray]


@dataclass(frozen=True)
class Prediction:
    """What was expected of some uploads before they were seen; every array is (P,).

    Attributes:
        mean: Mean of the log network time.
        location_variance: Variance of the pair's mean, which is not known exactly.
        spread: Variance from round to round.
        punctual: Probability of meeting the deadline.
    """

    mean: FloatArray
    location_variance: FloatArray
    spread: FloatArray
    punctual: FloatArray

    @property
    def variance(self) -> FloatArray:
        """Variance of the log network time of the next upload."""
        return self.location_variance + self.spread


@dataclass(frozen=True)
class Observed:
    """What a round's uploads showed; every array is (P,).

    Attributes:
        value: Log network time; of a late upload, what is expected of it.
        cut: Log of the network time from which on the upload is late.
        weight: Weight with which the upload counts: 1 if it was punctual, else about the probability that it was slow.
        squared: Squared error in units of the predicted variance; of a late upload, the expected one, given that it was
            late.
    """

    value: FloatArray
    cut: FloatArray
    weight: FloatArray
    squared: FloatArray


def optimistic(punctual: FloatArray, count: FloatArray) -> FloatArray:
    """Return the probability of being punctual of tried pairs plus `OPTIMISM` standard errors, at most 1.

    A client that is seldom punctual anywhere would otherwise be given up after a few late uploads: its queue grows, but
    counts for little.
    """
    error = OPTIMISM * np.sqrt(punctual * (1.0 - punctual) / (count + 1.0))
    return np.where(count >= TRIED, np.minimum(punctual + error, 1.0), punctual)


def empty_observations(problem: Problem) -> dict[str, np.ndarray]:
    """Return the arrays before the first round; -1 stands for a compute time that was not measured yet."""
    replicas, clients = problem.quotas.shape
    pairs = replicas, clients, problem.channels
    return {
        **{name: np.zeros(pairs, np.float32) for name in ("count", "mean", "variance")},
        "compute": np.full((replicas, clients, KEPT), -1.0),
        "computed": np.zeros((replicas, clients), np.int64),
    }


def compute_moments(state: State) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the variance of every client's compute time, (R, U) each, in seconds.

    Each client is given one more sample: the mean of all clients, with half of the client's resulting mean as standard
    deviation.
    """
    compute = state["compute"]
    seen = compute >= 0
    number = seen.sum(axis=2)
    total = np.where(seen, compute, 0.0).sum(axis=2)
    everywhere = total.sum(axis=1) / np.maximum(number.sum(axis=1), 1)
    mean = (total + everywhere[:, None]) / (number + 1)
    squares = np.where(seen, (compute - mean[..., None]) ** 2, 0.0).sum(axis=2)
    return mean, (squares + 0.25 * mean**2) / (number + 1)


def censored_moments(mean: FloatArray, deviation: FloatArray, cut: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the variance of N(mean, deviation^2) given that it exceeds ``cut``."""
    a = np.clip((cut - mean) / deviation, -30.0, 30.0)
    hazard = np.exp(-0.5 * a * a - 0.5 * np.log(2 * np.pi) - log_ndtr(-a))
    share = np.clip(1.0 + a * hazard - hazard * hazard, 0.0, 1.0)
    return mean + deviation * hazard, deviation**2 * share


def observe(state: State, feedback: Feedback, pair: Pair, expected: Prediction, deadline_s: float) -> Observed:
    """Add a round to the statistics in place.

    Args:
        state: The state's arrays.
        feedback: The round.
        pair: The assigned replicas, clients and channels.
        expected: What was expected of these uploads.
        deadline_s: The deadline in seconds.

    Returns:
        What the uploads showed.
    """
    replica, client, _ = pair
    punctual = feedback.punctual[replica, client]
    download, compute, upload = (
        part[replica, client]
        for part in (feedback.delays.download_s, feedback.delays.compute_s, feedback.delays.upload_s)
    )
    mean_compute = compute_moments(state)[0][replica, client]
    cut = np.log(np.maximum(deadline_s - mean_compute, 0.05 * deadline_s))
    guess, guess_variance = censored_moments(expected.mean, np.sqrt(expected.variance), cut)
    share = expected.spread / expected.variance  # of the guess's variance; the rest is doubt about the mean
    value = np.where(punctual, np.log(np.maximum(np.where(punctual, download + upload, 1.0), SMALLEST_S)), guess)
    late = 1.0 - expected.punctual
    weight = np.where(punctual, 1.0, late / (late + LOST) + 1e-3)
    _add(state, pair, value, np.where(punctual, 0.0, guess_variance * share), weight)
    at = replica[punctual], client[punctual]
    state["compute"][(*at, state["computed"][at] % KEPT)] = compute[punctual]
    state["computed"][at] += 1
    squared = (value - expected.mean) ** 2 + np.where(punctual, 0.0, guess_variance)
    return Observed(value, cut, weight, squared / expected.variance)


def _add(state: State, pair: Pair, value: FloatArray, variance: FloatArray, weight: FloatArray) -> None:
    """Add values with a variance and a weight to the running means of their pairs."""
    count = state["count"][pair].astype(np.float64)
    total = count + weight
    old = np.where(count > 0, state["mean"][pair], value)
    step = (value - old) * weight / total
    spread = (count * state["variance"][pair] + weight * variance + count * step * (value - old)) / total
    state["count"][pair], state["mean"][pair], state["variance"][pair] = total, old + step, spread
