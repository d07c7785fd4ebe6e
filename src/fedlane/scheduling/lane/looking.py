"""What it is worth to try a pair: the delay that is saved later if the pair turns out to be fast.

Y = exp(location + spread / 2) is the mean network time of the pair, which is log-normal while the location is
uncertain. A client that has a fast channel needs a second one for the rounds in which the first is taken, so Y competes
with K, the client's second-best known network time. The expected improvement is the price of a put option:

    E[(K - Y)^+] = K Phi(d) - F Phi(d - s),   d = (ln(K / F) + s^2 / 2) / s,   F = E[Y],  s^2 = variance of ln Y.

Improvements below a level L that is good enough are worth nothing, because others are then slower: L is
`GOOD_ENOUGH` times the lower quartile of the clients' best delays, and the gain is E[(K - Y)^+] - E[(L - Y)^+]. A look
at an untried pair earns, in the unit of the objective,

    B_ij = exploration (V / d_max) (quota_i H) min(N / c_i, N) gain,     H = min(200 + t, T - t),

where quota_i H is the number of uploads in which it can pay, and c_i is the number of clients about as slow: only
they can share a slow round. Another look at a tried pair earns `REPEATED` times the value of its information: with s^2
the variance by which one more upload would move the estimate, and without the gain that is expected anyway.
"""

import numpy as np
from scipy.special import ndtr

from fedlane.records import BoolArray, FloatArray

PATIENCE = 200
ABOUT_AS_SLOW = 2.0
"""Ratio of two clients' best delays up to which they are about as slow."""
GOOD_ENOUGH = 1.3
REPEATED = 0.03
_SMALLEST = 1e-3
"""Smallest reference time in units of the deadline."""


def put(strike: FloatArray, forward: FloatArray, variance: FloatArray) -> FloatArray:
    """Return E[(strike - Y)^+] of a log-normal Y with mean ``forward`` and variance ``variance`` of its logarithm."""
    deviation = np.sqrt(np.maximum(variance, 1e-12))
    d = np.log(strike / forward) / deviation + deviation / 2
    result: FloatArray = strike * ndtr(d)
    result -= forward * ndtr(d - deviation)
    return np.maximum(result, 0.0, out=result)


def horizon(round: int, rounds: int) -> float:
    """Return H, the number of rounds in which a look can pay."""
    return float(max(min(PATIENCE + round, rounds - round), 0))


def references(network: FloatArray, tried: BoolArray, limit: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return each client's best and second-best known network time, (R, U) each, at most ``limit`` (R, U)."""
    known = np.where(tried, network, np.inf)
    if known.shape[2] == 1:
        first = second = known[..., 0]
    else:
        first, second = np.moveaxis(np.partition(known, 1, axis=2)[..., :2], 2, 0)
    return np.minimum(first, limit), np.minimum(second, limit)


def about_as_slow(delay: FloatArray) -> FloatArray:
    """Return how many clients' delays are within the factor `ABOUT_AS_SLOW` of each client's delay, itself included."""
    logs, reach = np.log(delay), np.log(ABOUT_AS_SLOW)
    result = np.empty(delay.shape)
    for r, row in enumerate(logs):
        order = np.sort(row)
        result[r] = np.searchsorted(order, row + reach, "right") - np.searchsorted(order, row - reach, "left")
    return result


def good_enough(delay: FloatArray, known: BoolArray) -> FloatArray:
    """Return L for the total delay, (R,): 0 while less than half of the clients are known."""
    order = np.sort(np.where(known, delay, np.inf), axis=1)
    number = known.sum(axis=1)
    quartile = np.take_along_axis(order, (number // 4)[:, None], axis=1)[:, 0]
    return np.where(2 * number >= known.shape[1], GOOD_ENOUGH * np.where(number > 0, quartile, 0.0), 0.0)


def looking(
    location: tuple[FloatArray, FloatArray],
    spread: FloatArray,
    tried: BoolArray,
    compute_s: FloatArray,
    uploads: FloatArray,
    deadline_s: float,
) -> FloatArray:
    """Return the value of looking at every pair, (R, U, N), in units of ``exploration`` V.

    Args:
        location: Mean and variance of the location of each pair (R, U, N).
        spread: Variance from round to round (R, U, N).
        tried: Whether each pair was tried (R, U, N).
        compute_s: Mean compute time of each client (R, U).
        uploads: Number of uploads of each client in which a look can pay (R, U).
        deadline_s: The deadline in seconds.
    """
    mean, variance = location
    network = np.exp(mean + (variance + spread) / 2)
    limit = np.maximum(deadline_s - compute_s, _SMALLEST * deadline_s)
    first, second = references(network, tried, limit)
    best = first + compute_s
    scale = uploads / deadline_s * np.minimum(tried.shape[2] / about_as_slow(best), tried.shape[2])
    enough = np.clip(good_enough(best, tried.any(axis=2))[:, None] - compute_s, _SMALLEST * deadline_s, second)
    # One more upload moves the estimate of a tried pair by this variance; an untried pair may turn out to be anything.
    moved = np.where(tried, variance**2 / (variance + spread), variance)
    gain = put(second[..., None], network, moved)
    gain -= put(enough[..., None], network, moved)
    expected = np.clip(second[..., None] - np.maximum(network, enough[..., None]), 0.0, None)
    np.subtract(gain, expected, out=gain, where=tried)
    np.multiply(gain, REPEATED, out=gain, where=tried)
    np.maximum(gain, 0.0, out=gain)
    gain *= scale[..., None]
    return gain
