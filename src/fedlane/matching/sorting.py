"""Compiled kernels: the largest values of an array."""

import numpy as np
from numba import njit

from fedlane.records import FloatArray, IntArray

SHORT = 17
"""Parts of at most this length are sorted by insertion."""


@njit(cache=True)
def sort_best(column: IntArray, value: FloatArray, k: int) -> int:
    """Bring the k largest values to the front, largest first, with their columns; return their number.

    This is a quicksort that leaves the part after position k unsorted.
    """
    if len(value) <= SHORT:  # the usual case in batches of small problems
        _insertion_sort(column, value, 0, len(value) - 1)
        return min(len(value), k)
    pending = np.empty((64, 2), np.int64)
    pending[0] = 0, len(value) - 1
    depth = 1
    while depth > 0:
        depth -= 1
        low, high = pending[depth]
        while high - low >= SHORT:
            pivot = _median(value[low], value[(low + high) // 2], value[high])
            i, j = low, high
            while i <= j:
                while value[i] > pivot:
                    i += 1
                while value[j] < pivot:
                    j -= 1
                if i <= j:
                    value[i], value[j] = value[j], value[i]
                    column[i], column[j] = column[j], column[i]
                    i += 1
                    j -= 1
            if i < k and j - low > high - i:  # the longer part is deferred, so that the stack stays short
                pending[depth] = low, j
                depth += 1
                low = i
            elif i < k:
                pending[depth] = i, high
                depth += 1
                high = j
            else:
                high = j
        _insertion_sort(column, value, low, high)
    return min(len(value), k)


@njit(cache=True)
def _insertion_sort(column: IntArray, value: FloatArray, low: int, high: int) -> None:
    for e in range(low + 1, high + 1):
        c, v = column[e], value[e]
        f = e
        while f > low and value[f - 1] < v:
            column[f], value[f] = column[f - 1], value[f - 1]
            f -= 1
        column[f], value[f] = c, v


@njit(cache=True)
def _median(a: float, b: float, c: float) -> float:
    return max(min(a, b), min(max(a, b), c))


@njit(cache=True)
def largest(values: FloatArray, rank: int) -> float:
    """Return the ``rank``-th largest value, counted from 1."""
    copy = values.copy()
    sort_best(np.empty(len(copy), np.int64), copy, rank)
    return copy[rank - 1]
