"""The matching with the largest objective, by local search in compiled code.

The objective of a matching is the sum of its pairs' weights (queue times probability of being punctual, plus the value
of looking) minus the price times E[max of the delays] / d_max. The CDF of a maximum of independent delays is the
product of their CDFs, so that

    E[max] / d_max = sum_g width_g (1 - prod F(g)).

Because the expectation of a maximum saturates, slow clients and looks at unknown pairs are concentrated in few rounds.
The search starts from three matchings: two max-sum matchings, which value a pair's own delay once and N times, and the
previous round's. From each it replaces and swaps clients until no change helps; the best of the three is returned.
"""

import numpy as np

from fedlane.compiled import kernel, part
from fedlane.matching import max_sum_batch
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.scheduling.lane.delay_rows import WIDTHS

_ZERO = 1e-3  # a smaller CDF value counts as 0, so that products can be divided again
_SWEEPS = 30


def search_batch(
    weight: FloatArray,
    rows: FloatArray,
    available: BoolArray,
    previous: IntArray,
    trade_off: float,
    idle_channels: bool,
    widths: FloatArray = WIDTHS,
) -> IntArray:
    """Return the best matching of the search for each replica, (R, U).

    Args:
        weight: Value of each pair apart from its delay (R, U, N).
        rows: Distributions (R, U, N, G + 1): the CDF in each of G cells, and at the deadline.
        available: Which clients may be assigned (R, U).
        previous: The previous round's matching (R, U).
        trade_off: V.
        idle_channels: Whether channels may stay idle although clients are available.
        widths: Widths of the cells (G,), in units of the deadline.
    """
    channels = weight.shape[2]
    reward = rows[..., : len(widths)] @ widths.astype(np.float32)  # the mean of [1 - delay / d_max]^+
    starts = np.empty((3, *available.shape), np.int64)
    for start, factor in zip(starts, (1.0, float(channels)), strict=False):
        value = trade_off * factor * reward
        value += weight
        value[~available] = -np.inf
        start[:] = max_sum_batch(value.astype(np.float64))  # the type for which the solver is compiled ahead
    starts[2] = previous
    result = np.full(available.shape, -1, np.int64)
    improve_starts(weight, rows, widths, available, starts, trade_off * channels, idle_channels, result)
    return result


_TYPES = (
    "(float64[:, :, ::1], float32[:, :, :, ::1], float64[::1], boolean[:, ::1], int64[:, :, ::1], float64, boolean,"
    " int64[:, ::1])"
)


@kernel(_TYPES, error_model="numpy")
def improve_starts(weight, rows, width, available, starts, price, may_idle, result):  # type: ignore[no-untyped-def]
    """Climb from each start (3, R, U) that is allowed; write the best matching.

    Unless channels may stay idle, a start must also assign as many clients as the first one.
    """
    replicas, clients, channels = weight.shape
    cells = len(width)
    client_at, zeros, idle = np.empty(channels, np.int64), np.empty(cells, np.int64), np.empty(clients, np.bool_)
    product, others = np.empty(cells, np.float64), np.empty(cells, np.float64)
    for r in range(replicas):
        best, first_size = -np.inf, 0
        for s in range(len(starts)):
            size, usable = 0, True
            for j in range(channels):
                client_at[j] = -1
            for i in range(clients):
                idle[i] = available[r, i]
                if starts[s, r, i] >= 0:
                    client_at[starts[s, r, i]] = i
                    usable &= available[r, i]
                    size += 1
            if s == 0:
                first_size = size
            if not usable or (size != first_size and not may_idle):
                continue
            value = _climb(r, client_at, weight, rows, width, price, may_idle, idle, product, zeros, others)
            if value > best:
                best = value
                for i in range(clients):
                    result[r, i] = -1
                for j in range(channels):
                    if client_at[j] >= 0:
                        result[r, client_at[j]] = j


@part(error_model="numpy")
def _climb(r, client_at, weight, rows, width, price, may_idle, idle, product, zeros, others):  # type: ignore[no-untyped-def]
    """Improve ``client_at`` (N,) in place by replacements and swaps until none helps; return the objective."""
    channels, tolerance = len(client_at), 1e-9 * (1.0 + price)
    for j in range(channels):
        if client_at[j] >= 0:
            idle[client_at[j]] = False
    _multiply(r, client_at, rows, width, product, zeros)
    for _ in range(_SWEEPS):
        improved = False
        for j in range(channels):
            current = client_at[j]
            if current >= 0 or may_idle:
                total = _without(r, current, j, rows, product, zeros, others)
                best = _best_client(r, current, j, idle, weight, rows, price, may_idle, others, total, tolerance)
                if best != current:
                    if current >= 0:
                        idle[current] = True
                    if best >= 0:
                        idle[best] = False
                    client_at[j] = best
                    _multiply(r, client_at, rows, width, product, zeros)
                    improved = True
        for j in range(channels):
            for k in range(j):
                a, b = client_at[j], client_at[k]
                if a < 0 and b < 0:
                    continue
                if _swap_gain(r, a, b, j, k, weight, rows, price, product, zeros) > tolerance:
                    client_at[j], client_at[k] = b, a
                    _multiply(r, client_at, rows, width, product, zeros)
                    improved = True
        if not improved:
            break
    value = 0.0
    for j in range(channels):
        if client_at[j] >= 0:
            value += weight[r, client_at[j], j]
    for g in range(len(product)):
        value += price * (product[g] if zeros[g] == 0 else 0.0)
    return value


@part(error_model="numpy")
def _multiply(r, client_at, rows, width, product, zeros):  # type: ignore[no-untyped-def]
    """Write each cell's width times the product of the non-zero CDFs, and the number of CDFs that are 0."""
    for g in range(len(product)):
        product[g], zeros[g] = width[g], 0
    for j in range(len(client_at)):
        if client_at[j] >= 0:
            for g in range(len(product)):
                value = rows[r, client_at[j], j, g]
                if value < _ZERO:
                    zeros[g] += 1
                else:
                    product[g] *= value


@part(error_model="numpy")
def _without(r, i, j, rows, product, zeros, others):  # type: ignore[no-untyped-def]
    """Write the product without client i on channel j for each cell; return its sum."""
    total = 0.0
    for g in range(len(product)):
        value = rows[r, i, j, g] if i >= 0 else 1.0
        if value < _ZERO:
            others[g] = product[g] if zeros[g] == 1 else 0.0
        else:
            others[g] = product[g] / value if zeros[g] == 0 else 0.0
        total += others[g]
    return total


@part(error_model="numpy")
def _best_client(r, current, j, idle, weight, rows, price, may_idle, others, total, tolerance):  # type: ignore[no-untyped-def]
    """Return the client that is worth most on channel j given the others: the current one, an idle one or none."""
    best, best_value = current, price * total + tolerance
    if current >= 0:
        best_value = weight[r, current, j] + price * _overlap(r, current, j, rows, others) + tolerance
        if may_idle and price * total > best_value:
            best, best_value = -1, price * total
    for i in range(len(idle)):
        if idle[i] and weight[r, i, j] + price * total > best_value:
            value = weight[r, i, j] + price * _overlap(r, i, j, rows, others)
            if value > best_value:
                best, best_value = i, value
    return best


@part(error_model="numpy")
def _swap_gain(r, a, b, j, k, weight, rows, price, product, zeros):  # type: ignore[no-untyped-def]
    """Return the gain if clients a on channel j and b on channel k are swapped; -1 means no client."""
    gain = 0.0
    if a >= 0:
        gain += weight[r, a, k] - weight[r, a, j]
    if b >= 0:
        gain += weight[r, b, j] - weight[r, b, k]
    for g in range(len(product)):
        before_a = rows[r, a, j, g] if a >= 0 else 1.0
        before_b = rows[r, b, k, g] if b >= 0 else 1.0
        if zeros[g] - (before_a < _ZERO) - (before_b < _ZERO) == 0:
            after = (rows[r, a, k, g] if a >= 0 else 1.0) * (rows[r, b, j, g] if b >= 0 else 1.0)
            rest = product[g] / (before_a if before_a >= _ZERO else 1.0) / (before_b if before_b >= _ZERO else 1.0)
            gain += price * rest * (after - before_a * before_b)
    return gain


@part(fastmath={"reassoc", "contract"})  # the sum may be reordered, for vector instructions
def _overlap(r, i, j, rows, others):  # type: ignore[no-untyped-def]
    """Return sum_g others(g) F_ij(g)."""
    total = 0.0
    for g in range(len(others)):
        total += others[g] * rows[r, i, j, g]
    return total
