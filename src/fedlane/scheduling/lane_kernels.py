"""The compiled search of `lane`: a local search for the matching that maximises

    sum_i Q_i p_ij  -  V N E[max of the assigned delays] / d_max.

A delay distribution is a row of G cells over [0, d_max], each the mean of the CDF over the cell. The CDF of the maximum
of independent delays is the product of their CDFs, so E[max] / d_max = 1 - mean_g prod F(g). Putting client i on
channel j is worth Q_i p_ij + (V N / G) sum_g P(g) F_ij(g), where P is the product over the other channels.
"""

import numpy as np

from fedlane.compiled import kernel, part
from fedlane.matching import max_sum_batch
from fedlane.records import BoolArray, FloatArray, IntArray

_ZERO = 1e-3  # a smaller CDF value counts as 0, so that products can be divided again
_SWEEPS = 30


def search_batch(
    weight: FloatArray,  # (R, U, N): Q_i p_ij, plus a large number where the pair must come first
    reward: FloatArray,  # (R, U, N): an upper bound on the mean of F_ij
    shift: FloatArray,  # (R, U, N): optimism bonus in cells; +inf for a pair that was never tried
    count: IntArray,  # (R, U, N): number of samples in the pair's row
    slot: IntArray,  # (R, U, N): index of the pair's row in `rows`
    rows: FloatArray,  # (R, S, G): cell CDFs summed over samples
    available: BoolArray,  # (R, U)
    previous: IntArray,  # (R, U): the previous round's matching, a second starting point
    trade_off: float,
) -> IntArray:
    """Return the best matching of the search for each replica, (R, U)."""
    start = trade_off * reward
    start += weight
    start[~available] = -np.inf
    result = max_sum_batch(start)
    improve_batch(weight, reward, shift, count, slot, rows, available, previous, float(trade_off), result)
    return result


_TYPES = (
    "(float64[:, :, ::1], float64[:, :, ::1], float64[:, :, ::1], int32[:, :, ::1], int32[:, :, ::1],"
    " float32[:, :, ::1], boolean[:, ::1], int64[:, ::1], float64, int64[:, ::1])"
)


@kernel(_TYPES, error_model="numpy")
def improve_batch(weight, reward, shift, count, slot, rows, available, previous, trade_off, result):  # type: ignore[no-untyped-def]
    """Climb from ``result`` (R, U) and from the previous matching if it is as large; write the better matching.

    The kernels index whole arrays: every view of an array takes time to compile.
    """
    replicas, clients, channels = weight.shape
    cells = rows.shape[2]
    client_at, zeros, idle = np.empty(channels, np.int64), np.empty(cells, np.int64), np.empty(clients, np.bool_)
    cdf = np.empty((channels + 2, cells), np.float64)  # two more lines for the CDFs after a swap
    product, others = np.empty(cells, np.float64), np.empty(cells, np.float64)
    for r in range(replicas):
        size, usable, best = 0, True, -np.inf
        for i in range(clients):
            size += (previous[r, i] >= 0) - (result[r, i] >= 0)
            usable &= previous[r, i] < 0 or available[r, i]
        for attempt in range(2 if usable and size == 0 else 1):
            for j in range(channels):
                client_at[j] = -1
            for i in range(clients):
                idle[i] = available[r, i]
                j = result[r, i] if attempt == 0 else previous[r, i]
                if j >= 0:
                    client_at[j] = i
            value = _climb(
                r, client_at, weight, reward, shift, count, slot, rows, trade_off, idle, cdf, product, zeros, others
            )
            if attempt == 0 or value > best:
                best = value
                for i in range(clients):
                    result[r, i] = -1
                for j in range(channels):
                    if client_at[j] >= 0:
                        result[r, client_at[j]] = j


@part(error_model="numpy")
def _climb(r, client_at, weight, reward, shift, count, slot, rows, trade_off, idle, cdf, product, zeros, others):  # type: ignore[no-untyped-def]
    """Improve ``client_at`` (N,) in place by replacements and swaps until none helps; return the objective."""
    channels, cells = len(client_at), len(product)
    price = trade_off * channels
    per_cell = price / cells
    for j in range(channels):
        _row(r, client_at[j], j, shift, count, slot, rows, cdf, j)
        if client_at[j] >= 0:
            idle[client_at[j]] = False
    _multiply(cdf, product, zeros)
    for _ in range(_SWEEPS):
        improved = False
        for j in range(channels):
            if client_at[j] >= 0:
                _without(product, zeros, cdf, j, others)
                best = _best_client(
                    r, client_at[j], j, idle, others, weight, reward, shift, count, slot, rows, per_cell
                )
                if best != client_at[j]:
                    idle[client_at[j]], idle[best] = True, False
                    client_at[j] = best
                    _row(r, best, j, shift, count, slot, rows, cdf, j)
                    _multiply(cdf, product, zeros)
                    improved = True
        for j in range(channels):
            for k in range(j):
                a, b = client_at[j], client_at[k]
                if a < 0 and b < 0:
                    continue
                _row(r, b, j, shift, count, slot, rows, cdf, channels)
                _row(r, a, k, shift, count, slot, rows, cdf, channels + 1)
                if _swap_gain(r, a, b, j, k, weight, per_cell, cdf, product, zeros) > 1e-9 * (1.0 + price):
                    client_at[j], client_at[k] = b, a
                    for g in range(cells):
                        cdf[j, g], cdf[k, g] = cdf[channels, g], cdf[channels + 1, g]
                    _multiply(cdf, product, zeros)
                    improved = True
        if not improved:
            break
    value = 0.0
    for j in range(channels):
        if client_at[j] >= 0:
            value += weight[r, client_at[j], j]
    for g in range(cells):
        value += per_cell * (product[g] if zeros[g] == 0 else 0.0)
    return value


@part(inline="always")
def _swap_gain(r, a, b, j, k, weight, per_cell, cdf, product, zeros):  # type: ignore[no-untyped-def]
    """Return the gain if clients a on channel j and b on channel k are swapped; -1 means no client."""
    cells, channels = len(product), len(cdf) - 2
    gain = 0.0
    if a >= 0:
        gain += weight[r, a, k] - weight[r, a, j]
    if b >= 0:
        gain += weight[r, b, j] - weight[r, b, k]
    for g in range(cells):
        at_j, at_k = cdf[j, g], cdf[k, g]
        if zeros[g] - (at_j == 0.0) - (at_k == 0.0) == 0:
            rest = product[g] / (at_j if at_j > 0.0 else 1.0) / (at_k if at_k > 0.0 else 1.0)
            gain += per_cell * rest * (cdf[channels, g] * cdf[channels + 1, g] - at_j * at_k)
    return gain


@part(inline="always")
def _best_client(r, current, j, idle, others, weight, reward, shift, count, slot, rows, per_cell):  # type: ignore[no-untyped-def]
    """Return the client that is worth most on channel j given the other channels: the current one or an idle one."""
    cells = len(others)
    total = 0.0
    for g in range(cells):
        total += others[g]
    ceiling = per_cell * total
    best = current
    best_value = weight[r, current, j] + per_cell * _overlap(r, current, j, others, shift, count, slot, rows)
    best_value += 1e-9 * (1.0 + per_cell * cells)
    for i in range(len(idle)):
        if idle[i] and weight[r, i, j] + min(ceiling, per_cell * cells * reward[r, i, j]) > best_value:
            value = weight[r, i, j] + per_cell * _overlap(r, i, j, others, shift, count, slot, rows)
            if value > best_value:
                best, best_value = i, value
    return best


@part(fastmath={"reassoc", "contract"})  # the sum may be reordered, for vector instructions
def _overlap(r, i, j, others, shift, count, slot, rows):  # type: ignore[no-untyped-def]
    """Return sum_g P(g) F_ij(g)."""
    cells = len(others)
    total = 0.0
    whole = cells if shift[r, i, j] >= cells else int(shift[r, i, j])
    if whole < cells:
        row, part, scale = rows[r, slot[r, i, j]], shift[r, i, j] - whole, 1.0 / count[r, i, j]
        for g in range(cells - whole - 1):
            total += others[g] * ((1.0 - part) * row[g + whole] + part * row[g + whole + 1]) * scale
        g = cells - whole - 1
        total += others[g] * ((1.0 - part) * row[cells - 1] * scale + part)
    for g in range(cells - whole, cells):
        total += others[g]
    return total


@part(error_model="numpy")
def _row(r, i, j, shift, count, slot, rows, cdf, line):  # type: ignore[no-untyped-def]
    """Write the cells of F_ij into a line of ``cdf``: the empirical CDF shifted left by the optimism bonus.

    A late upload counts as one at the deadline. Without a client (i is -1), the channel is never late.
    """
    cells = cdf.shape[1]
    whole = cells if i < 0 or shift[r, i, j] >= cells else int(shift[r, i, j])
    for g in range(cells - whole, cells):
        cdf[line, g] = 1.0
    if whole < cells:
        at, part, scale = slot[r, i, j], shift[r, i, j] - whole, 1.0 / count[r, i, j]
        for g in range(cells - whole):
            after = rows[r, at, g + whole + 1] * scale if g + whole + 1 < cells else 1.0
            value = (1.0 - part) * rows[r, at, g + whole] * scale + part * after
            cdf[line, g] = value if value >= _ZERO else 0.0


@part(error_model="numpy")
def _multiply(cdf, product, zeros):  # type: ignore[no-untyped-def]
    """Write the product of the non-zero CDFs and the number of zero CDFs of each cell.

    The last two lines of ``cdf`` do not count.
    """
    for g in range(len(product)):
        product[g], zeros[g] = 1.0, 0
    for j in range(len(cdf) - 2):
        for g in range(len(product)):
            if cdf[j, g] == 0.0:
                zeros[g] += 1
            else:
                product[g] *= cdf[j, g]


@part(inline="always")
def _without(product, zeros, cdf, j, out):  # type: ignore[no-untyped-def]
    """Write the product of all CDFs except that of channel j for each cell."""
    for g in range(len(out)):
        if cdf[j, g] == 0.0:
            out[g] = product[g] if zeros[g] == 1 else 0.0
        else:
            out[g] = product[g] / cdf[j, g] if zeros[g] == 0 else 0.0
