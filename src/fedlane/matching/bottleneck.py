"""Compiled kernels of `fedlane.matching`: the exact solvers, one matrix at a time.

The smaller side of the bipartite graph is called *rows*, the larger *columns*. With k rows, only the k best columns of
each row matter: a matching that uses a worse one can exchange it for a free better one. So a problem is stored as k
short edge lists, best edge first, and a threshold selects a prefix of each list.
"""

import numpy as np
from numba import njit

from fedlane.matching.assignment import Edges, assign
from fedlane.matching.sorting import SHORT, largest, sort_best
from fedlane.records import FloatArray, IntArray

_SAMPLE = 16384  # entries sampled from a large matrix to estimate which values matter
_SMALL = 4096  # matrices up to this size are read completely


@njit(cache=True)
def solve_batch(weights: FloatArray, max_min: bool) -> IntArray:
    """Match every matrix of ``weights`` (B, U, N); return each client's channel (B, U), -1 for none."""
    batch, clients, _ = weights.shape
    result = np.full((batch, clients), -1, np.int64)
    for b in range(batch):
        solve(weights[b], max_min, result[b])
    return result


@njit(cache=True)
def greedy_batch(weights: FloatArray, order: IntArray) -> IntArray:
    """Give each of the first min(U, N) clients of ``order`` (B, U) its best free channel."""
    batch, clients, channels = weights.shape
    result = np.full((batch, clients), -1, np.int64)
    for b in range(batch):
        free = np.ones(channels, np.bool_)
        for position in range(min(clients, channels)):
            client = order[b, position]
            best, best_value = -1, -np.inf
            for j in range(channels):
                if free[j] and weights[b, client, j] > best_value:
                    best, best_value = j, weights[b, client, j]
            if best >= 0:
                free[best] = False
                result[b, client] = best
    return result


@njit(cache=True)
def solve(w: FloatArray, max_min: bool, result: IntArray) -> None:
    """Match one matrix (U, N) and write each client's channel into ``result`` (U,), which holds -1 on entry."""
    best_of_client, best_of_channel = _best(w)
    row_is_channel = _allowed(best_of_channel) <= _allowed(best_of_client)
    best_of_row = best_of_channel if row_is_channel else best_of_client
    best_of_column = best_of_client if row_is_channel else best_of_channel
    rows, worst = np.empty(_allowed(best_of_row), np.int64), np.inf
    k = 0
    for r in range(len(best_of_row)):
        if best_of_row[r] > -np.inf:
            rows[k] = r
            worst = min(worst, best_of_row[r])
            k += 1
    columns = len(best_of_column)
    if k == 0:
        return

    row_of = np.full(columns, -1, np.int64)
    floor, share, bottleneck = -np.inf, 1.0, -np.inf
    if max_min:
        # Upper bounds on the bottleneck: the worst row's best value, and the k-th best column's.
        bottleneck = min(worst, largest(best_of_column, k))
        if w.size > _SMALL:
            sample = _sample(w)
            share = max(2 * np.mean(sample >= bottleneck), 1.5 * (np.log(k) + 4) * k / w.size)
            floor = min(bottleneck, _floor(sample, share))
    if columns > SHORT:
        edges = _collect(w, rows, row_is_channel, best_of_client, floor)
    else:
        edges = _collect_all(w, rows, row_is_channel)
    root, bottleneck = _saturate(edges, row_of, 0, bottleneck)
    while root < k and floor > -np.inf:
        share *= 4
        floor = _floor(sample, share)
        edges = _collect(w, rows, row_is_channel, best_of_client, floor)
        root, bottleneck = _saturate(edges, row_of, root, bottleneck)
    deficient = root < k
    if deficient and max_min:
        bottleneck = _largest_threshold(edges, columns)

    for r in range(k):
        while edges.stop[r] > edges.start[r] and edges.value[edges.stop[r] - 1] < bottleneck:
            edges.stop[r] -= 1
    column_of = assign(edges, columns, deficient)
    for r in range(k):
        c = column_of[r]
        if c < columns and row_is_channel:
            result[c] = rows[r]
        elif c < columns:
            result[rows[r]] = c


@njit(cache=True)
def _allowed(best: FloatArray) -> int:
    """Return the number of clients or channels that have an allowed edge."""
    count = 0
    for value in best:
        count += value > -np.inf
    return count


@njit(cache=True, fastmath={"nnan", "nsz"})  # without NaN, maxima can use vector instructions
def _best(w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the largest entry of each client and of each channel."""
    clients, channels = w.shape
    of_client = np.full(clients, -np.inf)
    of_channel = np.full(channels, -np.inf)
    for i in range(clients):
        best = -np.inf
        for j in range(channels):
            v = w[i, j]
            best = v if v > best else best
            of_channel[j] = v if v > of_channel[j] else of_channel[j]
        of_client[i] = best
    return of_client, of_channel


@njit(cache=True)
def _sample(w: FloatArray) -> FloatArray:
    """Return entries spread evenly over the matrix."""
    channels = w.shape[1]
    step = max(61, w.size // _SAMPLE) | 1
    sample = np.empty(w.size // step)
    for s in range(len(sample)):
        sample[s] = w[(s * step) // channels, (s * step) % channels]
    return sample


@njit(cache=True)
def _floor(sample: FloatArray, share: float) -> float:
    """Return approximately the value that a ``share`` of the entries exceeds; -inf if the share is large."""
    return -np.inf if share > 0.25 else largest(sample, 1 + int(len(sample) * share))


@njit(cache=True)
def _collect(w: FloatArray, rows: IntArray, row_is_channel: bool, best: FloatArray, floor: float) -> Edges:
    """Return each row's edges of at least ``floor`` (never -inf), at most its k best, best first.

    ``best`` (U,) is each client's largest entry: clients below the floor are skipped.
    """
    k = len(rows)
    clients, channels = w.shape
    row_at = np.full(channels if row_is_channel else clients, -1, np.int64)
    for r in range(k):
        row_at[rows[r]] = r
    lowest = max(floor, -np.finfo(np.float64).max)
    capacity = w.size if floor == -np.inf else 4096
    edge_row, edge_column = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
    edge_value = np.empty(capacity)
    count = 0
    start = np.zeros(k + 1, np.int64)
    for i in range(clients):
        if best[i] < lowest:
            continue
        if count + channels > capacity:
            capacity = 2 * capacity + channels
            edge_row, edge_column = _grown(edge_row, capacity), _grown(edge_column, capacity)
            edge_value = _grown(edge_value, capacity)
        for j in range(channels):
            if w[i, j] >= lowest:
                r = row_at[j if row_is_channel else i]
                start[r + 1] += 1
                edge_row[count], edge_column[count], edge_value[count] = r, i if row_is_channel else j, w[i, j]
                count += 1
    for r in range(k):
        start[r + 1] += start[r]
    stop = start[:-1].copy()
    column, value = np.empty(count, np.int64), np.empty(count)
    for f in range(count):
        e = stop[edge_row[f]]
        column[e], value[e] = edge_column[f], edge_value[f]
        stop[edge_row[f]] += 1
    for r in range(k):
        stop[r] = start[r] + sort_best(column[start[r] : stop[r]], value[start[r] : stop[r]], k)
    return Edges(start[:-1], stop, column, value)


@njit(cache=True)
def _collect_all(w: FloatArray, rows: IntArray, row_is_channel: bool) -> Edges:
    """Return the same as `_collect` for at most `SHORT` columns, with few allocations, which take most of the time.

    Equal values stay in the order of their columns, as in `sort_best` for short lists.
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


@njit(cache=True)
def _grown(array: FloatArray, capacity: int) -> FloatArray:
    grown = np.empty(capacity, array.dtype)
    grown[: len(array)] = array
    return grown


@njit(cache=True)
def _saturate(edges: Edges, row_of: IntArray, root: int, threshold: float) -> tuple[int, float]:
    """Match rows ``root``, root + 1, ... along edges of at least ``threshold``, lowering it only when forced.

    If a row cannot be matched, the rows reached from it have too few columns above the threshold. The best edge that
    leaves this set is an upper bound on the bottleneck, so the final threshold is the bottleneck itself.
    Return the first row that no edge list can match (or the number of rows), and the threshold.
    """
    k = len(edges.start)
    columns = len(row_of)
    scratch = np.full(2 * columns + 3 * k, -1, np.int64)  # one allocation instead of five
    seen, came_from = scratch[:columns], scratch[columns : 2 * columns]
    column_of = scratch[2 * columns : 2 * columns + k]
    tree, cursor = scratch[2 * columns + k : 2 * columns + 2 * k], scratch[2 * columns + 2 * k :]
    for c in range(len(row_of)):
        if row_of[c] >= 0:
            column_of[row_of[c]] = c
    while root < k:
        tree[0] = root
        cursor[0] = edges.start[root]
        size, head, free = 1, 0, -1
        while free < 0:
            while head < size and free < 0:
                r = tree[head]
                e = cursor[head]
                while e < edges.stop[r] and edges.value[e] >= threshold and free < 0:
                    c = edges.column[e]
                    if seen[c] != root:
                        seen[c] = root
                        came_from[c] = r
                        if row_of[c] < 0:
                            free = c
                        else:
                            tree[size] = row_of[c]
                            cursor[size] = edges.start[row_of[c]]
                            size += 1
                    e += 1
                cursor[head] = e
                head += 1
            if free < 0:
                best = -np.inf
                for position in range(size):
                    r = tree[position]
                    while cursor[position] < edges.stop[r] and seen[edges.column[cursor[position]]] == root:
                        cursor[position] += 1
                    if cursor[position] < edges.stop[r]:
                        best = max(best, edges.value[cursor[position]])
                if best == -np.inf:
                    return root, threshold
                threshold = min(threshold, best)
                head = 0
        while free >= 0:
            r = came_from[free]
            row_of[free] = r
            free, column_of[r] = column_of[r], free
        root += 1
    return root, threshold


@njit(cache=True)
def _largest_threshold(edges: Edges, columns: int) -> float:
    """Return the bottleneck if forbidden edges leave rows unmatched, by bisection over the edge values."""
    values = np.empty(np.sum(edges.stop - edges.start))
    filled = 0
    for r in range(len(edges.start)):
        for e in range(edges.start[r], edges.stop[r]):
            values[filled] = edges.value[e]
            filled += 1
    sort_best(np.empty(filled, np.int64), values, filled)
    cardinality = _cardinality(edges, columns, -np.inf)
    first, last = 0, filled - 1  # largest value first
    while first < last:
        middle = (first + last) // 2
        if _cardinality(edges, columns, values[middle]) == cardinality:
            last = middle
        else:
            first = middle + 1
    return values[first]


@njit(cache=True)
def _cardinality(edges: Edges, columns: int, threshold: float) -> int:
    """Return the size of a maximum matching along edges of at least ``threshold``."""
    row_of = np.full(columns, -1, np.int64)
    stop = edges.stop.copy()
    for r in range(len(stop)):
        while stop[r] > edges.start[r] and edges.value[stop[r] - 1] < threshold:
            stop[r] -= 1
    pruned = Edges(edges.start, stop, edges.column, edges.value)
    root, unmatched = 0, 0
    while True:
        root, _ = _saturate(pruned, row_of, root, -np.inf)
        if root == len(stop):
            return root - unmatched
        unmatched += 1
        root += 1
