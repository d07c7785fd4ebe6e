"""Compiled kernel: the max-sum matching along edge lists, by successive shortest paths."""

from typing import NamedTuple

import numpy as np
from numba import njit

from fedlane.records import FloatArray, IntArray


class Edges(NamedTuple):
    """Edge lists: those of row r are ``[start[r], stop[r])`` in `column` and `value`, best value first."""

    start: IntArray
    stop: IntArray
    column: IntArray
    value: FloatArray


@njit(cache=True)
def assign(edges: Edges, columns: int, deficient: bool) -> IntArray:
    """Return each row's column in the max-sum matching of all rows along ``edges``, by successive shortest paths.

    If ``deficient``, column ``columns + r`` means that row r stays unmatched, at a cost above any sum.
    """
    k = len(edges.start)
    cost, penalty = _costs(edges)
    extra = k if deficient else 0
    row_of = np.full(columns + extra, -1, np.int64)
    column_of = np.full(k, -1, np.int64)
    price = np.zeros(columns + extra)
    potential = np.empty(k)
    for r in range(k):
        potential[r] = cost[edges.start[r]] if edges.stop[r] > edges.start[r] else penalty
        e = edges.start[r]
        while e < edges.stop[r] and cost[e] == potential[r]:
            if row_of[edges.column[e]] < 0:
                row_of[edges.column[e]] = r
                column_of[r] = edges.column[e]
                break
            e += 1

    distance = np.full(columns + extra, np.inf)
    came_from = np.empty(columns + extra, np.int64)
    closed = np.zeros(columns + extra, np.bool_)
    touched = np.empty(columns + extra, np.int64)
    heap_key = np.empty(len(cost) + extra + 1)
    heap_column = np.empty(len(cost) + extra + 1, np.int64)
    for root in range(k):
        if column_of[root] >= 0:
            continue
        heap_size, touched_size = 0, 0
        r, reached, sink = root, 0.0, -1
        while sink < 0:
            for e in range(edges.start[r], edges.stop[r] + (1 if deficient else 0)):
                dummy = e == edges.stop[r]
                c = columns + r if dummy else edges.column[e]
                through = reached + (penalty if dummy else cost[e]) - potential[r] - price[c]
                if not closed[c] and through < distance[c]:
                    if distance[c] == np.inf:
                        touched[touched_size] = c
                        touched_size += 1
                    distance[c] = through
                    came_from[c] = r
                    _push(heap_key, heap_column, heap_size, through, c)
                    heap_size += 1
            c = heap_column[0]
            while closed[c]:
                _pop(heap_key, heap_column, heap_size)
                heap_size -= 1
                c = heap_column[0]
            _pop(heap_key, heap_column, heap_size)
            heap_size -= 1
            closed[c] = True
            reached = distance[c]
            if row_of[c] < 0:
                sink = c
            else:
                r = row_of[c]
        potential[root] += reached
        for position in range(touched_size):
            c = touched[position]
            if closed[c]:
                price[c] -= reached - distance[c]
                if row_of[c] >= 0:
                    potential[row_of[c]] += reached - distance[c]
            closed[c] = False
            distance[c] = np.inf
        while sink >= 0:
            r = came_from[sink]
            row_of[sink] = r
            sink, column_of[r] = column_of[r], sink
    return column_of


@njit(cache=True)
def _costs(edges: Edges) -> tuple[FloatArray, float]:
    """Return non-negative costs; minimising them maximises the number of +inf edges, then the finite sum."""
    k = len(edges.start)
    low, high, infinite = np.inf, -np.inf, False
    for r in range(k):
        for e in range(edges.start[r], edges.stop[r]):
            v = edges.value[e]
            if v == np.inf:
                infinite = True
            else:
                low, high = min(low, v), max(high, v)
    scale = 2.0**-100 if max(abs(low), abs(high)) > 1e290 else 1.0
    spread = (high - low) if scale == 1.0 else (high * scale - low * scale)
    spread = spread if 0 < spread < np.inf else 1.0
    finite_base = (k + 1) * spread if infinite else 0.0
    cost = np.zeros(len(edges.value))
    for r in range(k):
        for e in range(edges.start[r], edges.stop[r]):
            if edges.value[e] < np.inf:
                cost[e] = finite_base + (high * scale - edges.value[e] * scale)
    return cost, (k + 1) * (finite_base + spread)


@njit(cache=True)
def _push(key: FloatArray, item: IntArray, size: int, new_key: float, new_item: int) -> None:
    at = size
    while at > 0 and key[(at - 1) // 2] > new_key:
        key[at], item[at] = key[(at - 1) // 2], item[(at - 1) // 2]
        at = (at - 1) // 2
    key[at], item[at] = new_key, new_item


@njit(cache=True)
def _pop(key: FloatArray, item: IntArray, size: int) -> None:
    last_key, last_item = key[size - 1], item[size - 1]
    size -= 1
    at, child = 0, 1
    while child < size:
        if child + 1 < size and key[child + 1] < key[child]:
            child += 1
        if key[child] >= last_key:
            break
        key[at], item[at] = key[child], item[child]
        at, child = child, 2 * child + 1
    key[at], item[at] = last_key, last_item
