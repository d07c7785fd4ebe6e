"""Compiled kernel: the max-sum matching along edge lists, by successive shortest paths.

With many rows, an auction comes first. It finds prices that are nearly right, so that only a few paths are left.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from fedlane.records import FloatArray, IntArray

_FEW_ROWS = 64
"""Up to this number of rows, shortest paths alone are fast."""
_COARSE_STEP = 0.01
"""By how much more than necessary a bid of the first auction lowers a price, as a share of the largest cost."""
_COARSE_BIDS, _FINE_BIDS = 500, 50
"""Most bids per row in the two auctions."""


class Edges(NamedTuple):
    """Edge lists: those of row r are ``[start[r], stop[r])`` in `column` and `value`, best value first."""

    start: IntArray
    stop: IntArray
    column: IntArray
    value: FloatArray


class _Duals(NamedTuple):
    """A partial matching, and prices and potentials that prove its optimality.

    A price is never positive, and that of a free column is 0. A row's potential is the smallest cost - price among its
    edges, and its matched edge attains it.
    """

    row_of: IntArray
    column_of: IntArray
    price: FloatArray
    potential: FloatArray


@njit(cache=True)
def assign(edges: Edges, columns: int, deficient: bool) -> IntArray:
    """Return each row's column in the max-sum matching of all rows along ``edges``, by successive shortest paths.

    If ``deficient``, column ``columns + r`` means that row r stays unmatched, at a cost above any sum.
    """
    k = len(edges.start)
    cost, penalty = _costs(edges)
    size = columns + (k if deficient else 0)
    auction = k > _FEW_ROWS and not deficient
    while True:
        integers, floats = np.full(size + k, -1, np.int64), np.zeros(size + k)  # two allocations instead of four
        duals = _Duals(integers[:size], integers[size:], floats[:size], floats[size:])
        if auction:
            _hold_auctions(edges, cost, duals)
        else:
            _take_best(edges, cost, penalty, duals)
        if duals.column_of.min() < 0:
            _augment(edges, cost, penalty, columns, deficient, duals)
        if not auction or np.all((duals.row_of >= 0) | (duals.price == 0.0)):
            return duals.column_of
        auction = False  # an auction lowered the price of a column that is not needed, so nothing is proved


@njit(cache=True)
def _take_best(edges: Edges, cost: FloatArray, penalty: float, duals: _Duals) -> None:
    """Match every row with one of its best columns, if one is free."""
    for r in range(len(edges.start)):
        duals.potential[r] = cost[edges.start[r]] if edges.stop[r] > edges.start[r] else penalty
        e = edges.start[r]
        while e < edges.stop[r] and cost[e] == duals.potential[r]:
            if duals.row_of[edges.column[e]] < 0:
                duals.row_of[edges.column[e]] = r
                duals.column_of[r] = edges.column[e]
                break
            e += 1


@njit(cache=True)
def _hold_auctions(edges: Edges, cost: FloatArray, duals: _Duals) -> None:
    """Match most rows in two auctions: a coarse one estimates the prices, and an exact one starts a little above them.

    The prices of columns that nobody holds after the coarse auction return to 0. If the exact auction and the shortest
    paths leave a column with a lower price free, `assign` notices it.
    """
    largest = 0.0
    for r in range(len(edges.start)):
        if edges.stop[r] > edges.start[r]:
            largest = max(largest, cost[edges.stop[r] - 1])
    step = _COARSE_STEP * largest
    _bid(edges, cost, duals, step, _COARSE_BIDS)
    for c in range(len(duals.price)):
        duals.price[c] = min(duals.price[c] + 2 * step, 0.0) if duals.row_of[c] >= 0 else 0.0
    duals.row_of[:] = -1
    duals.column_of[:] = -1
    _bid(edges, cost, duals, 0.0, _FINE_BIDS)
    for r in range(len(edges.start)):
        if duals.column_of[r] < 0:
            duals.potential[r] = np.inf
            for e in range(edges.start[r], edges.stop[r]):
                duals.potential[r] = min(duals.potential[r], cost[e] - duals.price[edges.column[e]])


@njit(cache=True)
def _bid(edges: Edges, cost: FloatArray, duals: _Duals, step: float, bids_per_row: int) -> None:
    """Let free rows bid in turn: a row takes its best column, and the row that held the column is free again.

    The column's price falls until the row's second-best column is as good, and by ``step`` more. With a step of 0 this
    is the "augmenting row reduction" of Jonker and Volgenant: all matched edges stay best at the current prices.
    """
    waiting = np.arange(len(edges.start))
    count = len(waiting)
    bids = bids_per_row * count
    while count > 0 and bids > 0:
        bids -= 1
        count -= 1
        r = waiting[count]
        best, second, column = np.inf, np.inf, -1
        for e in range(edges.start[r], edges.stop[r]):
            if cost[e] >= second:  # costs ascend and prices are not positive: the rest is no better
                break
            value = cost[e] - duals.price[edges.column[e]]
            if value < best:
                best, second, column = value, best, edges.column[e]
            elif value < second:
                second = value
        if second == np.inf:
            continue
        other = duals.row_of[column]
        if other >= 0 and not second + step > best:
            continue  # a tie, which shortest paths decide
        duals.price[column] -= second - best + step
        duals.potential[r] = second
        duals.row_of[column], duals.column_of[r] = r, column
        if other >= 0:
            duals.column_of[other] = -1
            waiting[count] = other
            count += 1


@njit(cache=True)
def _augment(edges: Edges, cost: FloatArray, penalty: float, columns: int, deficient: bool, duals: _Duals) -> None:
    """Match the free rows along shortest paths."""
    row_of, column_of, price, potential = duals
    k, size = len(column_of), len(row_of)
    prune = k > _FEW_ROWS and not deficient
    capacity = len(cost) + size - columns + 1
    floats, integers = np.empty(size + capacity), np.empty(2 * size + capacity, np.int64)
    distance, heap_key = floats[:size], floats[size:]
    came_from, touched, heap_column = integers[:size], integers[size : 2 * size], integers[2 * size :]
    closed = np.zeros(size, np.bool_)
    distance[:] = np.inf
    for root in range(k):
        if column_of[root] >= 0:
            continue
        heap_size, touched_size = 0, 0
        r, reached, sink = root, 0.0, -1
        nearest = np.inf  # distance of the nearest free column so far
        while sink < 0:
            for e in range(edges.start[r], edges.stop[r] + (1 if deficient else 0)):
                dummy = e == edges.stop[r]
                if prune and reached + cost[e] - potential[r] > nearest:  # the same is true of the following edges
                    break
                c = columns + r if dummy else edges.column[e]
                through = reached + (penalty if dummy else cost[e]) - potential[r] - price[c]
                if not closed[c] and through < distance[c]:
                    if distance[c] == np.inf:
                        touched[touched_size] = c
                        touched_size += 1
                    distance[c] = through
                    came_from[c] = r
                    if row_of[c] < 0:
                        nearest = min(nearest, through)
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
