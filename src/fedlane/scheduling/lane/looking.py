"""The value of trying a pair: the delay that is saved later if the pair turns out to be fast.

Y = exp(location + spread / 2) is the mean network time of the pair; it has a log-normal distribution because the
location is uncertain. A client with one fast channel needs a second one for the rounds in which the first is taken, so
Y competes with K, the client's second-best known network time. A channel must be used in every round, however fast the
clients are on other channels, so Y also competes with the channel's second-best known time. The expected improvement is
the price of a put option:

    E[(K - Y)^+] = K Phi(d) - F Phi(d - s),   d = (ln(K / F) + s^2 / 2) / s,   F = E[Y],  s^2 = variance of ln Y.

Improvements below a level L that is good enough have no value, because other clients are then slower. A round lasts as
long as the slowest of N uploads, which is about exp(`UPLOAD_DEVIATION` Phi^-1(N / (N + 1))) times as long as a
typical upload. L is this factor times the lower quartile of the clients' best delays, and the gain is
E[(K - Y)^+] - E[(L - Y)^+]. In the unit of the objective, a look at an untried pair is worth

    B_ij = exploration (V / d_max) (quota_i H) (N / c_i) gain,     H = min(200 + t, T - t),

where quota_i is the lowered quota, quota_i H is the number of uploads in which the look can pay off, and c_i is the
number of clients about as slow as client i, because only they can share a slow round. For a client that was never seen,
N / c_i is at least `UNSEEN`: its quota makes a first look inevitable, and an early look pays off for longest. For the
channel, the factor is min(1, `FEW_CLIENTS` N / U) N / c_j, where c_j is the number of channels about as slow as channel
j. The larger of the two values is used. A further look at a tried pair is worth `REPEATED` times the value of its
information. In that value, s^2 is the variance by which one more upload would move the estimate, and the gain that is
expected without the look is subtracted.
"""

import numpy as np
from scipy.special import ndtr, ndtri

from fedlane.compiled import kernel, part
from fedlane.records import BoolArray, FloatArray
from fedlane.scheduling.lane.delay_rows import LARGEST_VARIANCE
from fedlane.scheduling.lane.normal_table import NORMAL, normal_cdf

PATIENCE = 200
ABOUT_AS_SLOW = 2.0
"""Largest ratio of two clients' best delays at which the clients count as about as slow."""
UPLOAD_DEVIATION = 0.4
"""Standard deviation of a pair's log delay from round to round, for the factor of the slowest upload."""
FEW_CLIENTS = 2.5
"""Clients per channel up to which the channel's value counts in full; with more, another client will do as well."""
UNSEEN = 1.0
"""Smallest N / c_i of a client that was never seen."""
REPEATED = 0.03
_SMALLEST = 1e-3
"""Smallest reference time in units of the deadline."""


def put(strike: FloatArray, forward: FloatArray, variance: FloatArray) -> FloatArray:
    """Return E[(strike - Y)^+] for a log-normal Y with mean ``forward``, whose logarithm has the given variance."""
    deviation = np.sqrt(np.maximum(variance, 1e-12))
    d = np.log(strike / forward) / deviation + deviation / 2
    result: FloatArray = strike * ndtr(d)
    result -= forward * ndtr(d - deviation)
    return np.maximum(result, 0.0, out=result)


def horizon(round: int, rounds: int) -> float:
    """Return H, the number of rounds in which a look can pay off."""
    return float(max(min(PATIENCE + round, rounds - round), 0))


def smallest_two(times: FloatArray, axis: int) -> tuple[FloatArray, FloatArray]:
    """Return the smallest and the second-smallest entry along an axis, or the same entry twice if there is only one."""
    second = min(1, times.shape[axis] - 1)
    ordered = np.partition(times, second, axis=axis)
    return ordered.take([0], axis).squeeze(axis), ordered.take([second], axis).squeeze(axis)


def about_as_slow(delay: FloatArray) -> FloatArray:
    """Return for each client how many delays are within a factor of `ABOUT_AS_SLOW` of its own, which is included."""
    logs, reach = np.log(delay), np.log(ABOUT_AS_SLOW)
    result = np.empty(delay.shape)
    for r, row in enumerate(logs):
        order = np.sort(row)
        result[r] = np.searchsorted(order, row + reach, "right") - np.searchsorted(order, row - reach, "left")
    return result


def good_enough(delay: FloatArray, known: BoolArray, channels: int) -> FloatArray:
    """Return L for the total delay, (R,); it is 0 while fewer than half of the clients are known."""
    slowest = np.exp(UPLOAD_DEVIATION * ndtri(channels / (channels + 1)))
    order = np.sort(np.where(known, delay, np.inf), axis=1)
    number = known.sum(axis=1)
    quartile = np.take_along_axis(order, (number // 4)[:, None], axis=1)[:, 0]
    return np.where(2 * number >= known.shape[1], slowest * np.where(number > 0, quartile, 0.0), 0.0)


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
        uploads: Number of uploads of each client in which a look can pay off (R, U).
        deadline_s: The deadline in seconds.
    """
    mean, variance = location[0], np.minimum(location[1], LARGEST_VARIANCE)
    channels = tried.shape[2]
    log_network = mean + (variance + spread) / 2
    limit = np.maximum(deadline_s - compute_s, _SMALLEST * deadline_s)
    known = np.where(tried, np.minimum(np.exp(log_network), limit[..., None]), np.inf)
    first, second = (np.minimum(times, limit) for times in smallest_two(known, axis=2))
    best, seen = first + compute_s, np.any(tried, axis=2)
    enough = np.maximum(good_enough(best, seen, channels)[:, None] - compute_s, _SMALLEST * deadline_s)
    for_client = np.maximum(channels / about_as_slow(best), np.where(seen, 0.0, UNSEEN))
    on_first, on_second = smallest_two(known, axis=1)
    slowness = np.minimum(on_first, limit.max(axis=1, keepdims=True))
    for_channel = min(1.0, FEW_CLIENTS * channels / tried.shape[1]) * channels / about_as_slow(slowness)
    # Variance by which one more upload moves the estimate; for an untried pair, it is the whole variance.
    moved = np.where(tried, variance**2 / (variance + spread), variance)
    value = np.empty(mean.shape)
    client = np.stack([limit, second, enough, for_client, uploads / deadline_s])
    fill_values(log_network, moved, tried, client, np.stack([on_second, for_channel]), NORMAL, value)
    return value


_TYPES = (
    "(float64[:, :, ::1], float64[:, :, ::1], boolean[:, :, ::1], float64[:, :, ::1], float64[:, :, ::1],"
    " float64[::1], float64[:, :, ::1])"
)


@kernel(_TYPES, error_model="numpy")
def fill_values(log_network, moved, tried, client, channel, normal, value):  # type: ignore[no-untyped-def]
    """Write the value of every pair; ``client`` (5, R, U) and ``channel`` (2, R, N) are stacked by `looking`."""
    replicas, clients, channels = value.shape
    for r in range(replicas):
        for i in range(clients):
            limit, second, enough, for_client, scale = client[:, r, i]
            log_limit, log_second, log_enough = np.log(limit), np.log(second), np.log(enough)
            for j in range(channels):
                forward, deviation = np.exp(log_network[r, i, j]), np.sqrt(max(moved[r, i, j], 1e-12))
                log_forward = log_network[r, i, j]
                floor = _put(enough, log_enough, forward, log_forward, deviation, normal)
                best = 0.0
                seen = tried[r, i, j]
                if enough < second:
                    price = _put(second, log_second, forward, log_forward, deviation, normal)
                    best = _gain(price - floor, second, enough, forward, seen) * for_client
                strike = min(channel[0, r, j], limit)
                if enough < strike:
                    log_strike = log_limit if strike == limit else np.log(strike)
                    price = _put(strike, log_strike, forward, log_forward, deviation, normal)
                    best = max(best, _gain(price - floor, strike, enough, forward, seen) * channel[1, r, j])
                value[r, i, j] = max(best, 0.0) * scale


@part(error_model="numpy")
def _gain(gain, strike, enough, forward, tried):  # type: ignore[no-untyped-def]
    """Return the gain of a look; for a tried pair, a share of what exceeds the gain that is expected anyway."""
    if tried:
        return REPEATED * (gain - max(strike - max(forward, enough), 0.0))
    return gain


@part(error_model="numpy")
def _put(strike, log_strike, forward, log_forward, deviation, normal):  # type: ignore[no-untyped-def]
    """Return `put`, with the normal CDF from a table."""
    d = (log_strike - log_forward) / deviation + deviation / 2
    return max(strike * normal_cdf(d, normal) - forward * normal_cdf(d - deviation, normal), 0.0)
