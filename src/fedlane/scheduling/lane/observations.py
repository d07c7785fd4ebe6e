"""What `lane` records about pairs and clients, as running means, so that lowering a count forgets old observations.

The delay of client i on channel j is the sum of the compute time, which belongs to the client, and the network time
(download and upload), which belongs to the pair. For each pair, the state holds the number of uploads (``count``), the
information n about the pair's mean, in units of a punctual upload, and the mean and variance of x = ln(network time).
For each client, it holds the latest compute times.

A late upload was cut off, so its parts are unknown: x is right-censored at c = ln(d_max - compute time). The upload may
also have been lost, with probability `LOST`. Let the prediction be x ~ N(m, V), where V = v + s^2, v is the variance of
the pair's mean and s^2 is the variance from round to round. With a = (c - m) / sqrt(V), h = phi(a) / (1 - Phi(a)) and
the probability w = P(late) / (P(late) + LOST) that the upload was slow rather than lost, the mean moves by v g and its
variance falls by v^2 b, to first and second order in the log likelihood (expectation propagation, Minka 2001):

    g = w h / sqrt(V),   b = g max(w h - a, `LEAST`) / sqrt(V).

An observed value of m + g / b with the information s^2 b / (1 - v b) would have the same effect, so the late upload
enters the running mean as such a value. A late first upload of an unknown pair therefore says much less than a punctual
one. There are three limits: v b is at most 0.99, the information is at most 1, and w is raised by 0.001.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from fedlane.records import Feedback, FloatArray, IntArray, Problem, State

KEPT = 12
"""Number of compute times that are kept for each client."""
LOST = 0.01
"""Probability that an upload is lost for a reason unrelated to the pair."""
TRIED = 0.05
"""Information at which a pair counts as tried; an upload that was lost, or late on an unknown pair, gives less."""
LEAST = 0.3
"""Lower limit of w h - a. It lets an upload that was probably lost say little, and repeated ones say more."""
OPTIMISM = 1.0
"""Width, in standard errors, of the upper bound on the punctuality probability by which queues are weighted."""
PRIOR_UPLOADS = 6.0
"""Number of uploads that the prior prediction counts as in that bound."""
SMALLEST_S = 1e-6
"""Lower limit of times, in seconds, so that their logarithm is finite."""

Pair = tuple[IntArray, IntArray, IntArray]


@dataclass(frozen=True)
class Prediction:
    """What was predicted for some uploads before they were observed; every array is (P,).

    Attributes:
        mean: Mean of the log network time.
        location_variance: Variance of the pair's mean, because the mean is not known exactly.
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
        value: Log network time; for a late upload, its expected value.
        cut: Log of the network time beyond which the upload is late.
        weight: Weight with which the upload counts: 1 if it was punctual, else about the probability that it was slow.
        squared: Squared error in units of the predicted variance; for a late upload, its expectation given that the
            upload was late.
    """

    value: FloatArray
    cut: FloatArray
    weight: FloatArray
    squared: FloatArray


def optimistic(punctual: FloatArray, count: FloatArray) -> FloatArray:
    """Return an upper confidence bound on each tried pair's probability p of being punctual (Wilson's score interval).

    Without it, a client that is seldom punctual on any channel would be given up after a few late uploads, because its
    queue, although it grows, would count for little. With z = `OPTIMISM` standard errors and
    n = ``count`` + `PRIOR_UPLOADS`, the bound is

        (p + z^2 / 2n + z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n),

    which stays above 0 even if all uploads were late.
    """
    number, z = count + PRIOR_UPLOADS, OPTIMISM
    centre = punctual + z * z / (2.0 * number)
    width = z * np.sqrt(punctual * (1.0 - punctual) / number + z * z / (4.0 * number**2))
    return np.where(count > 0, (centre + width) / (1.0 + z * z / number), punctual)


def empty_observations(problem: Problem) -> dict[str, np.ndarray]:
    """Return the arrays before the first round; -1 stands for a compute time that has not been measured yet."""
    replicas, clients = problem.quotas.shape
    pairs = replicas, clients, problem.channels
    return {
        **{name: np.zeros(pairs, np.float32) for name in ("count", "information", "mean", "variance")},
        "compute": np.full((replicas, clients, KEPT), -1.0),
        "computed": np.zeros((replicas, clients), np.int64),
    }


def compute_moments(state: State) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the variance of every client's compute time, (R, U) each, in seconds.

    Each client is given one additional sample, which is the mean of all clients; its standard deviation is half of the
    client's resulting mean.
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
        expected: What was predicted for these uploads.
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
    share = expected.spread / expected.variance  # of the guess's variance; the rest is uncertainty about the mean
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
    """Return values and information, (P,) each, with which punctual uploads would say as much as these late ones.

    Args:
        expected: What was predicted for the uploads.
        cut: Log of the network time beyond which an upload is late.
        slow: Probability that the upload was slow rather than lost.
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
    """Return ``a``, clipped to a finite range, and the hazard phi(a) / (1 - Phi(a))."""
    a = np.clip(a, -30.0, 30.0)
    return a, np.exp(-0.5 * a * a - 0.5 * np.log(2 * np.pi) - log_ndtr(-a))


def _add(
    state: State, pair: Pair, pseudo: FloatArray, value: FloatArray, variance: FloatArray, weight: FloatArray
) -> None:
    """Add weighted values to the running means of their pairs, and their squared errors to the running variances.

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
