"""Compiled kernel: the max-sum matching of small problems in which every client may use every channel.

It takes the same steps as `bottleneck.solve` takes for such a problem, so the result is the same to the bit. Nearly all
simulations need no other solver, and this one compiles in a fraction of the time.
"""

import numpy as np

from fedlane.compiled import kernel, part
from fedlane.matching.assignment import Edges, augment, costs, empty_duals, take_best
from fedlane.matching.sorting import SHORT
from fedlane.records import FloatArray, IntArray


def is_small(clients: int, channels: int) -> bool:
    """Whether a problem has few clients and few channels."""
    return max(clients, channels) <= SHORT


def is_complete(weights: FloatArray) -> bool:
    """Whether each matrix of (B, U, N) allows all pairs, apart from clients and channels that have none at all."""
    if weights.min() > -np.inf:
        return True
    allowed = weights > -np.inf
    return bool(np.array_equal(allowed, allowed.any(axis=2, keepdims=True) & allowed.any(axis=1, keepdims=True)))


@kernel("(float64[:, :, ::1],)", error_model="numpy")
def max_sum_small(weights: FloatArray) -> IntArray:
    """Match every matrix of ``weights`` (B, U, N), small and complete; return each client's channel (B, U) or -1."""
    batch, clients, channels = weights.shape
    result = np.empty((batch, clients), np.int64)
    for b in range(batch):
        w = weights[b]
        rows, row_is_channel = _smaller_side(w)
        columns = clients if row_is_channel else channels
        edges = collect_all(w, rows, row_is_channel)
        cost, penalty = costs(edges)
        duals = empty_duals(columns, len(rows))
        take_best(edges, cost, penalty, duals)
        augment(edges, cost, penalty, columns, False, duals)
        for i in range(clients):
            result[b, i] = -1
        for r in range(len(rows)):
            if row_is_channel:
                result[b, duals.column_of[r]] = rows[r]
            else:
                result[b, rows[r]] = duals.column_of[r]
    return result


@part(inline="always")
def _smaller_side(w: FloatArray) -> tuple[IntArray, bool]:
    """Return the channels that have an allowed pair, or the clients if they are fewer, and whether it is channels."""
    clients, channels = w.shape
    integers = np.empty(clients + channels, np.int64)
    client_count, channel_count = 0, 0
    for i in range(clients):
        for j in range(channels):
            if w[i, j] > -np.inf:
                integers[client_count] = i
                client_count += 1
                break
    for j in range(channels):
        for i in range(clients):
            if w[i, j] > -np.inf:
                integers[clients + channel_count] = j
                channel_count += 1
                break
    row_is_channel = channel_count <= client_count
    rows = integers[clients : clients + channel_count] if row_is_channel else integers[:client_count]
    return rows, row_is_channel


@part(inline="always")
def collect_all(w: FloatArray, rows: IntArray, row_is_channel: bool) -> Edges:
    """Return each row's k best edges, best first, for at most `SHORT` columns.

    The result is that of `bottleneck._collect`, with few allocations, which take most of the time. Equal
    values stay in the order of their columns, as in `sort_best` for short lists.
    """
    k, columns = len(rows), w.shape[0] if row_is_channel else w.shape[1]
    integers, value = np.empty(k * (columns + 2), np.int64), np.empty(k * columns)
    start, stop, column = integers[:k], integers[k : 2 * k], integers[2 * k :]
    for r in range(k):
        first, row, size = r * columns, rows[r], 0
        for c in range(columns):
            v = w[c, row] if row_is_channel else w[row, c]
            if v == -np.inf or (size == k and v <= value[first + k - 1]):
                continue
            size = min(size + 1, k)
            e = first + size - 1
            while e > first and value[e - 1] < v:  # insert it among the k best
                column[e], value[e] = column[e - 1], value[e - 1]
                e -= 1
            column[e], value[e] = c, v
        start[r], stop[r] = first, first + size
    return Edges(start, stop, column, value)
