"""What `lane` records about pairs and clients. Everything is a running mean, so it is forgotten by lowering a count.

The delay of client i on channel j is compute time, which belongs to the client, plus network time (download and
upload), which belongs to the pair. For each pair, the state holds the number of uploads (``count``), the information n
about its mean in units of a punctual upload, and the mean and variance of x = ln(network time); for each client, it
holds the latest compute times.

A late upload was cut off, so its parts are unknown: it is right-censored at c = ln(d_max - compute time). It may also
have been lost, with probability `LOST`. Let the prediction be x ~ N(m, V), where V = v + s^2, v is the variance of the
pair's mean and s^2 the variance from round to round. With a = (c - m) / sqrt(V), h = phi(a) / (1 - Phi(a)) and the
probability w = P(late) / (P(late) + LOST) that the upload was slow, the mean moves by v g and its variance falls by
v^2 b, to first and second order in the log likelihood (expectation propagation, Minka 2001):

    g = w h / sqrt(V),   b = g max(w h - a, `LEAST`) / sqrt(V).

This is what a value m + g / b with the information s^2 b / (1 - v b) would do, and it enters the running mean as such:
the first upload of an unknown pair, if it is late, says much less than a punctual one. Within limits: v b is at most
0.99, the information at most 1, and w is raised by 0.001.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from fedlane.records import Feedback, FloatArray, IntArray, Problem, State

KEPT = 12
"""Number of compute times that are kept for each client."""
LOST = 0.01
"""Probability that an upload is lost for a reason that says nothing about the pair."""
TRIED = 0.05
"""Information from which on a pair counts as tried: an upload that was lost, or late on an unknown pair, is less."""
LEAST = 0.3
"""Lower limit of w h - a, so that an upload that was probably lost says little, and repeated ones say more."""
OPTIMISM = 1.0
"""Standard errors of the upper bound of the probability of being punctual with which queues are weighed."""
PRIOR_UPLOADS = 6.0
"""Uploads that the prediction before a pair's first upload counts for in that bound."""
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
    """Return an upper bound of the probability p of being punctual of tried pairs (Wilson's score interval).

    A client that is seldom punctual anywhere would otherwise be given up after a few late uploads: its queue grows, but
    counts for little. With z = `OPTIMISM` standard errors and n = ``count`` + `PRIOR_UPLOADS`, the bound is

        (p + z^2 / 2n + z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n),

    which stays above 0 if all uploads were late.
    """
    number, z = count + PRIOR_UPLOADS, OPTIMISM
    centre = punctual + z * z / (2.0 * number)
    width = z * np.sqrt(punctual * (1.0 - punctual) / number + z * z / (4.0 * number**2))
    return np.where(count > 0, (centre + width) / (1.0 + z * z / number), punctual)


def empty_observations(problem: Problem) -> dict[str, np.ndarray]:
    """Return the arrays before the first round; -1 stands for a compute time that was not measured yet."""
    replicas, clients = problem.quotas.shape
    pairs = replicas, clients, problem.channels
    return {
        **{name: np.zeros(pairs, np.float32) for name in ("count", "information", "mean", "variance")},
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
    a, hazard = _hazard((cut - mean) / deviation)
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
    pseudo, information = late_information(expected, cut, weight)
    pseudo, information = np.where(punctual, value, pseudo), np.where(punctual, 1.0, information)
    _add(state, pair, pseudo, value, np.where(punctual, 0.0, guess_variance * share), information)
    state["count"][pair] += weight
    at = replica[punctual], client[punctual]
    state["compute"][(*at, state["computed"][at] % KEPT)] = compute[punctual]
    state["computed"][at] += 1
    squared = (value - expected.mean) ** 2 + np.where(punctual, 0.0, guess_variance)
    return Observed(value, cut, weight, squared / expected.variance)


def late_information(expected: Prediction, cut: FloatArray, slow: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the value and the information of punctual uploads that would say as much as these late ones, (P,) each.

    Args:
        expected: What was expected of the uploads.
        cut: Log of the network time from which on an upload is late.
        slow: Probability that the upload was slow, and not lost.
    """
    deviation = np.sqrt(expected.variance)
    a, hazard = _hazard((cut - expected.mean) / deviation)
    pull = slow * hazard
    curvature = np.maximum(pull - a, LEAST)
    fall = expected.location_variance / expected.variance * pull * curvature  # share of the mean's variance, v b
    fall = np.minimum(fall, 0.99)
    information = expected.spread / expected.location_variance * fall / (1.0 - fall)
    return expected.mean + deviation / curvature, np.minimum(information, 1.0)


def _hazard(a: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return ``a`` within limits, and phi(a) / (1 - Phi(a))."""
    a = np.clip(a, -30.0, 30.0)
    return a, np.exp(-0.5 * a * a - 0.5 * np.log(2 * np.pi) - log_ndtr(-a))


def _add(
    state: State, pair: Pair, pseudo: FloatArray, value: FloatArray, variance: FloatArray, weight: FloatArray
) -> None:
    """Add values with a weight to the running means of their pairs, and their squares to the running variances.

    Args:
        state: The state's arrays.
        pair: The pairs.
        pseudo: Values for the means.
        value: Values for the variances.
        variance: Their variances.
        weight: Their weights.
    """
    count = state["information"][pair].astype(np.float64)
    total = count + weight
    old = np.where(count > 0, state["mean"][pair], pseudo)
    mean = old + (pseudo - old) * weight / total
    step = (value - old) * weight / total
    spread = (count * state["variance"][pair] + weight * variance + count * step * (value - old)) / total
    state["information"][pair], state["mean"][pair], state["variance"][pair] = total, mean, spread
