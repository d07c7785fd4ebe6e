"""The compiled search of `lane`: a local search for the matching that maximises

    sum_i Q_i p_ij  -  V N E[max of the assigned delays] / d_max.

A delay distribution is a row of G cells over [0, d_max], each the mean of the CDF over the cell. The CDF of the maximum
of independent delays is the product of their CDFs, so E[max] / d_max = 1 - mean_g prod F(g). Putting client i on
channel j is worth Q_i p_ij + (V N / G) sum_g P(g) F_ij(g), where P is the product over the other channels.
"""

import numpy as np
from numba import njit

from fedlane.matching.bottleneck import solve
from fedlane.records import BoolArray, FloatArray, IntArray

_ZERO = 1e-3  # a smaller CDF value counts as 0, so that products can be divided again
_SWEEPS = 30


@njit(cache=True)
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
    replicas, clients, _ = weight.shape
    result = np.full((replicas, clients), -1, np.int64)
    for r in range(replicas):
        _search(
            weight[r], reward[r], shift[r], count[r], slot[r], rows[r], available[r], previous[r], trade_off, result[r]
        )
    return result


@njit(cache=True)
def _search(weight, reward, shift, count, slot, rows, available, previous, trade_off, result):  # type: ignore[no-untyped-def]
    clients, channels = weight.shape
    price = trade_off * channels
    start = np.empty((clients, channels))
    for i in range(clients):
        for j in range(channels):
            start[i, j] = weight[i, j] + trade_off * reward[i, j] if available[i] else -np.inf
    solve(start, False, result)
    client_at = _by_channel(result, channels)
    value = _climb(client_at, weight, reward, shift, count, slot, rows, available, price)

    size, usable = 0, True
    for i in range(clients):
        size += (previous[i] >= 0) - (result[i] >= 0)
        usable &= previous[i] < 0 or available[i]
    if usable and size == 0:
        other = _by_channel(previous, channels)
        if _climb(other, weight, reward, shift, count, slot, rows, available, price) > value:
            client_at = other
    result[:] = -1
    for j in range(channels):
        if client_at[j] >= 0:
            result[client_at[j]] = j


@njit(cache=True)
def _by_channel(assignment: IntArray, channels: int) -> IntArray:
    client_at = np.full(channels, -1, np.int64)
    for i in range(len(assignment)):
        if assignment[i] >= 0:
            client_at[assignment[i]] = i
    return client_at


@njit(cache=True)
def _climb(client_at, weight, reward, shift, count, slot, rows, available, price):  # type: ignore[no-untyped-def]
    """Improve ``client_at`` (N,) in place by replacements and swaps until none helps; return the objective."""
    channels, cells = weight.shape[1], rows.shape[1]
    per_cell = price / cells
    cdf = np.ones((channels, cells))
    idle = available.copy()
    for j in range(channels):
        if client_at[j] >= 0:
            idle[client_at[j]] = False
            _row(client_at[j], j, shift, count, slot, rows, cdf[j])
    product, zeros = np.empty(cells), np.empty(cells, np.int64)
    _multiply(cdf, product, zeros)
    others, first, second = np.empty(cells), np.empty(cells), np.empty(cells)
    for _ in range(_SWEEPS):
        improved = False
        for j in range(channels):
            if client_at[j] >= 0:
                _without(product, zeros, cdf[j], others)
                best = _best_client(client_at[j], j, idle, others, weight, reward, shift, count, slot, rows, per_cell)
                if best != client_at[j]:
                    idle[client_at[j]], idle[best] = True, False
                    client_at[j] = best
                    _row(best, j, shift, count, slot, rows, cdf[j])
                    _multiply(cdf, product, zeros)
                    improved = True
        for j in range(channels):
            for k in range(j):
                a, b = client_at[j], client_at[k]
                if a < 0 and b < 0:
                    continue
                gain = 0.0
                first[:] = 1.0
                second[:] = 1.0
                if a >= 0:
                    gain += weight[a, k] - weight[a, j]
                    _row(a, k, shift, count, slot, rows, second)
                if b >= 0:
                    gain += weight[b, j] - weight[b, k]
                    _row(b, j, shift, count, slot, rows, first)
                for g in range(cells):
                    at_j, at_k = cdf[j, g], cdf[k, g]
                    if zeros[g] - (at_j == 0.0) - (at_k == 0.0) == 0:
                        rest = product[g] / (at_j if at_j > 0.0 else 1.0) / (at_k if at_k > 0.0 else 1.0)
                        gain += per_cell * rest * (first[g] * second[g] - at_j * at_k)
                if gain > 1e-9 * (1.0 + price):
                    client_at[j], client_at[k] = b, a
                    cdf[j], cdf[k] = first, second
                    _multiply(cdf, product, zeros)
                    improved = True
        if not improved:
            break
    value = 0.0
    for j in range(channels):
        if client_at[j] >= 0:
            value += weight[client_at[j], j]
    for g in range(cells):
        value += per_cell * (product[g] if zeros[g] == 0 else 0.0)
    return value


@njit(cache=True)
def _best_client(current, j, idle, others, weight, reward, shift, count, slot, rows, per_cell):  # type: ignore[no-untyped-def]
    """Return the client that is worth most on channel j given the other channels: the current one or an idle one."""
    cells = len(others)
    ceiling = per_cell * others.sum()
    best = current
    best_value = weight[current, j] + per_cell * _overlap(current, j, others, shift, count, slot, rows)
    best_value += 1e-9 * (1.0 + per_cell * cells)
    for i in range(len(idle)):
        if idle[i] and weight[i, j] + min(ceiling, per_cell * cells * reward[i, j]) > best_value:
            value = weight[i, j] + per_cell * _overlap(i, j, others, shift, count, slot, rows)
            if value > best_value:
                best, best_value = i, value
    return best


@njit(cache=True, fastmath={"reassoc", "contract"})  # the sum may be reordered, for vector instructions
def _overlap(i, j, others, shift, count, slot, rows):  # type: ignore[no-untyped-def]
    """Return sum_g P(g) F_ij(g)."""
    cells = len(others)
    total = 0.0
    whole = cells if shift[i, j] >= cells else int(shift[i, j])
    if whole < cells:
        row, part, scale = rows[slot[i, j]], shift[i, j] - whole, 1.0 / count[i, j]
        for g in range(cells - whole - 1):
            total += others[g] * ((1.0 - part) * row[g + whole] + part * row[g + whole + 1]) * scale
        g = cells - whole - 1
        total += others[g] * ((1.0 - part) * row[cells - 1] * scale + part)
    for g in range(cells - whole, cells):
        total += others[g]
    return total


@njit(cache=True)
def _row(i, j, shift, count, slot, rows, out):  # type: ignore[no-untyped-def]
    """Write the cells of F_ij: the empirical CDF shifted to shorter delays by the optimism bonus.

    A late upload counts as one at the deadline.
    """
    cells = len(out)
    whole = cells if shift[i, j] >= cells else int(shift[i, j])
    out[cells - whole :] = 1.0
    if whole < cells:
        row, part, scale = rows[slot[i, j]], shift[i, j] - whole, 1.0 / count[i, j]
        for g in range(cells - whole):
            after = row[g + whole + 1] * scale if g + whole + 1 < cells else 1.0
            out[g] = (1.0 - part) * row[g + whole] * scale + part * after
            if out[g] < _ZERO:
                out[g] = 0.0


@njit(cache=True)
def _multiply(cdf, product, zeros):  # type: ignore[no-untyped-def]
    """Write the product of the non-zero CDFs and the number of zero CDFs of each cell."""
    product[:] = 1.0
    zeros[:] = 0
    for j in range(len(cdf)):
        for g in range(len(product)):
            if cdf[j, g] == 0.0:
                zeros[g] += 1
            else:
                product[g] *= cdf[j, g]


@njit(cache=True)
def _without(product, zeros, row, out):  # type: ignore[no-untyped-def]
    """Write the product of all CDFs except ``row`` for each cell."""
    for g in range(len(out)):
        if row[g] == 0.0:
            out[g] = product[g] if zeros[g] == 1 else 0.0
        else:
            out[g] = product[g] / row[g] if zeros[g] == 0 else 0.0
