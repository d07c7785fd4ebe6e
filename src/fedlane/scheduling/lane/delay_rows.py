"""The predictive delay distribution of every pair, as a row of cells.

The cells of [0, d_max] have the edges d_max (g / G)^2, so that fast pairs are resolved well. The delay is compute plus
network time. Its distribution is a mixture of

- a shifted log-normal distribution with the mean and variance of the sum, which begins two standard deviations below
  the client's mean compute time (and not below 0), and
- the pair's own empirical distribution, with weight n / (n + `PRIOR_COUNT`).
"""

import numpy as np

from fedlane.compiled import kernel
from fedlane.records import FloatArray
from fedlane.scheduling.lane.normal_table import NORMAL, REACH, SCALE

CELLS = 32
EDGES = (np.arange(CELLS + 1) / CELLS) ** 2
"""Edges of the cells in units of the deadline."""
WIDTHS = np.diff(EDGES)
PRIOR_COUNT = 6.0
LARGEST_VARIANCE = 60.0
"""Upper limit of the variances of log times, far above any that matters, so that nothing overflows."""
POINTS = np.append((EDGES[1:] + EDGES[:-1]) / 2, 1.0)
"""Where the CDF is evaluated: the middle of each cell, and the deadline."""
_ENDS = np.append(0.0, POINTS)


def sum_moments(
    location: FloatArray, variance: FloatArray, compute_mean: FloatArray, compute_variance: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the shifted log-normal distribution of compute plus network time.

    Args:
        location: Mean of the log network time.
        variance: Variance of the log network time.
        compute_mean: Mean compute time in seconds.
        compute_variance: Its variance.

    Returns:
        The shift in seconds, and the mean and standard deviation of the log of the time after the shift.
    """
    variance = np.minimum(variance, LARGEST_VARIANCE)
    network = np.exp(location + variance / 2)
    shift = np.maximum(compute_mean - 2.0 * np.sqrt(compute_variance), 0.0)
    mean = network + (compute_mean - shift)
    log_variance = np.log1p((network**2 * np.expm1(variance) + compute_variance) / mean**2)
    return shift, np.log(mean) - log_variance / 2, np.sqrt(log_variance)


def predictive_rows(
    mean: FloatArray,
    deviation: FloatArray,
    shift: FloatArray,
    count: FloatArray,
    slot: np.ndarray,
    history: FloatArray,
    deadline_s: float,
) -> FloatArray:
    """Return the CDF in the middle of each cell and at the deadline, (R, U, N, CELLS + 1).

    Args:
        mean: Mean of the log of the delay after the shift (R, U, N).
        deviation: Its standard deviation (R, U, N).
        shift: Shift in seconds (R, U).
        count: Weight of each pair's own distribution (R, U, N).
        slot: Row of each pair in the history, -1 for none (R, U, N).
        history: Empirical distributions (R, S, CELLS + 1).
        deadline_s: The deadline in seconds.
    """
    logs = np.log(np.maximum(POINTS * deadline_s - shift[..., None], 1e-9 * deadline_s))
    rows = np.empty((*mean.shape, CELLS + 1), np.float32)
    fill_rows(mean, deviation, logs, count, slot, history, NORMAL, rows)
    return rows


def quantiles(rows: FloatArray, probabilities: tuple[float, ...]) -> FloatArray:
    """Return quantiles of some distributions in units of the deadline, (Q, P); 1 for those beyond the deadline.

    Args:
        rows: CDFs at `POINTS`, (P, CELLS + 1); they are linear between these points.
        probabilities: Probabilities of the Q quantiles.
    """
    cdf = np.maximum.accumulate(np.concatenate([np.zeros((len(rows), 1)), rows], axis=1), axis=1)
    pair, wanted = np.arange(len(rows)), np.array(probabilities)[:, None]
    after = np.minimum((cdf < wanted[..., None]).sum(axis=2), CELLS + 1)
    before = np.maximum(after - 1, 0)
    below, above = cdf[pair, before], cdf[pair, after]
    share = np.minimum((wanted - below) / np.maximum(above - below, 1e-12), 1.0)
    result: FloatArray = _ENDS[before] + share * (_ENDS[after] - _ENDS[before])
    return result


def own_distribution(delay: FloatArray) -> FloatArray:
    """Return the empirical distribution of one upload, (P, CELLS + 1): delays in units of the deadline, +inf if late.

    An entry is the mean of the step function 1{delay <= x} over the cell; the last one is 1 for a punctual upload.
    """
    cells = np.clip((EDGES[1:] - np.minimum(delay, 2.0)[:, None]) / WIDTHS, 0.0, 1.0)
    return np.concatenate([cells, (delay <= 1.0)[:, None]], axis=1)


_TYPES = (
    "(float64[:, :, ::1], float64[:, :, ::1], float64[:, :, ::1], float32[:, :, ::1], int32[:, :, ::1],"
    " float32[:, :, ::1], float64[::1], float32[:, :, :, ::1])"
)


@kernel(_TYPES, error_model="numpy")
def fill_rows(mean, deviation, logs, count, slot, history, normal, rows):  # type: ignore[no-untyped-def]
    """Write the mixtures; the normal CDF is interpolated linearly from a table."""
    replicas, clients, channels, points = rows.shape
    for r in range(replicas):
        for i in range(clients):
            for j in range(channels):
                at = slot[r, i, j]
                share = PRIOR_COUNT / (PRIOR_COUNT + count[r, i, j]) if at >= 0 else 1.0
                slope = SCALE / deviation[r, i, j]
                offset = SCALE * REACH - mean[r, i, j] * slope
                for g in range(points):
                    z = min(max(logs[r, i, g] * slope + offset, 0.0), len(normal) - 1.001)
                    k = int(z)
                    value = share * (normal[k] + (z - k) * (normal[k + 1] - normal[k]))
                    if at >= 0:
                        value += (1.0 - share) * history[r, at, g]
                    rows[r, i, j, g] = value
