"""Client-channel matchings: exact max-min (the paper's OM), greedy in a given order, and exact max-sum.

All take ``(..., U, N)`` values of client i on channel j and return ``(..., U)`` integers: each client's channel,
-1 where it has none. The smaller side is saturated as far as allowed edges permit. +inf is better than any finite
value, -inf is a forbidden edge, NaN is an error.
"""

import numpy as np
from numpy.typing import ArrayLike

from fedlane.matching import bottleneck as kernels
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.validate import InputError, matrix


def max_min_matching(estimates: ArrayLike) -> IntArray:
    """The matching with the largest smallest value and, among those, the largest sum (paper, Section V-A, reading 8).

    In order: as many matched pairs as allowed edges permit; the largest bottleneck (exact: only comparisons); as
    many +inf pairs as that allows; the largest finite sum (to rounding, about k ulp of the spread of k matched values).
    """
    return _solve(estimates, max_min=True)


def max_sum_matching(weights: ArrayLike) -> IntArray:
    """The matching of largest cardinality, then most +inf pairs, then largest finite sum."""
    return _solve(weights, max_min=False)


def greedy_matching(estimates: ArrayLike, order: ArrayLike) -> IntArray:
    """Serve the first min(U, N) clients of ``order`` (..., U), each with its best free channel (paper, Algorithm 2).

    Ties go to the lowest channel. A client whose free channels are all forbidden gets none.
    """
    values = matrix("estimates", estimates, 2)
    clients, channels = values.shape[-2:]
    orders = np.ascontiguousarray(order, dtype=np.int64)
    if orders.shape != values.shape[:-1]:
        raise InputError(f"order must have shape {values.shape[:-1]}, got {orders.shape}")
    if not np.array_equal(np.sort(orders, axis=-1), np.broadcast_to(np.arange(clients), orders.shape)):
        raise InputError(f"order must hold every client from 0 to {clients - 1} once")
    flat: IntArray = kernels.greedy_batch(values.reshape(-1, clients, channels), orders.reshape(-1, clients))
    return flat.reshape(orders.shape)


def random_matching(available: BoolArray, client_keys: FloatArray, channel_keys: FloatArray) -> IntArray:
    """A uniformly random saturating matching of the available clients, from uniform keys.

    available (R, U), client_keys (R, U), channel_keys (R, N) -> (R, U).
    """
    order = np.argsort(np.where(available, client_keys, np.inf), axis=1, kind="stable")
    channel = np.argsort(channel_keys, axis=1, kind="stable")
    return serve_in_order(order, channel, available)


def serve_in_order(order: IntArray, channel: IntArray, available: BoolArray) -> IntArray:
    """Give the k-th client of each order the k-th channel of each list, unless it is unavailable; (R, U)."""
    count = min(order.shape[1], channel.shape[1])
    assignment = np.full(order.shape, -1, np.int64)
    np.put_along_axis(assignment, order[:, :count], channel[:, :count], axis=1)
    return np.where(available, assignment, -1)


def _solve(values: ArrayLike, *, max_min: bool) -> IntArray:
    array = matrix("estimates", values, 2)
    clients, channels = array.shape[-2:]
    if array.size == 0:
        return np.full(array.shape[:-1], -1, np.int64)
    flat: IntArray = kernels.solve_batch(array.reshape(-1, clients, channels), max_min)
    return flat.reshape(array.shape[:-1])
