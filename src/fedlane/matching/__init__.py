"""Matchings of clients and channels: exact max-min (the paper's OM), greedy in a given order, and exact max-sum.

The values of client i on channel j are an array ``(..., U, N)``. The result is an integer array ``(..., U)`` with each
client's channel, -1 where it has none. As many pairs are matched as the allowed edges permit. +inf is better than any
finite value, -inf is a forbidden edge, and NaN is an error.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from fedlane.matching import bottleneck as kernels
from fedlane.matching.small import is_complete, is_small, max_sum_small
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.validate import InputError, matrix


def max_min_matching(estimates: ArrayLike) -> IntArray:
    """Return the matching whose smallest value is largest and, among those, whose sum is largest.

    This is the paper's OM (Section V-A; reading 8 in docs/reading-the-paper.md). The criteria, in this order: as many
    pairs as the allowed edges permit; the largest bottleneck, which is exact because values are only compared; as many
    +inf pairs as that bottleneck permits; the largest finite sum, up to rounding of about k ulp of the spread of the k
    matched values.

    Args:
        estimates: (..., U, N) value of each client on each channel; -inf forbids a pair.

    Returns:
        (..., U) channel of each client, -1 for none.

    Raises:
        InputError: If there is a NaN, or there are fewer than two axes.

    Examples:
        >>> max_min_matching([[10.0, 4.0], [5.0, 0.0]])
        array([1, 0])
    """
    return _in_batch(estimates, _max_min_batch)


def max_sum_matching(weights: ArrayLike) -> IntArray:
    """Return the matching with the most pairs, then the most +inf pairs, then the largest finite sum.

    Args:
        weights: (..., U, N) value of each client on each channel; -inf forbids a pair.

    Returns:
        (..., U) channel of each client, -1 for none.

    Raises:
        InputError: If there is a NaN, or there are fewer than two axes.

    Examples:
        >>> max_sum_matching([[10.0, 4.0], [5.0, 0.0]])
        array([0, 1])
    """
    return _in_batch(weights, max_sum_batch)


def greedy_matching(estimates: ArrayLike, order: ArrayLike) -> IntArray:
    """Give each of the first min(U, N) clients of an order its best free channel (paper, Algorithm 2).

    Ties go to the lowest channel. A client whose free channels are all forbidden gets none.

    Args:
        estimates: (..., U, N) value of each client on each channel; -inf forbids a pair.
        order: (..., U) clients in the order in which they choose.

    Returns:
        (..., U) channel of each client, -1 for none.

    Raises:
        InputError: If there is a NaN, or ``order`` is not a permutation of all clients.

    Examples:
        >>> greedy_matching([[10.0, 4.0], [5.0, 0.0]], order=[1, 0])
        array([1, 0])
    """
    values = matrix("estimates", estimates, 2)
    clients, channels = values.shape[-2:]
    orders = np.ascontiguousarray(order, dtype=np.int64)
    if orders.shape != values.shape[:-1]:
        raise InputError(f"order must have shape {values.shape[:-1]}, got {orders.shape}")
    if not np.array_equal(np.sort(orders, axis=-1), np.broadcast_to(np.arange(clients), orders.shape)):
        raise InputError(f"order must contain every client from 0 to {clients - 1} once")
    flat: IntArray = kernels.greedy_batch(values.reshape(-1, clients, channels), orders.reshape(-1, clients))
    return flat.reshape(orders.shape)


def random_matching(available: BoolArray, client_keys: FloatArray, channel_keys: FloatArray) -> IntArray:
    """Return a uniformly random matching of as many available clients as possible, (R, U).

    ``available`` is (R, U); ``client_keys`` (R, U) and ``channel_keys`` (R, N) are independent uniform numbers.
    """
    order = np.argsort(np.where(available, client_keys, np.inf), axis=1, kind="stable")
    channel = np.argsort(channel_keys, axis=1, kind="stable")
    return serve_in_order(order, channel, available)


def serve_in_order(order: IntArray, channel: IntArray, available: BoolArray) -> IntArray:
    """Return the matching (R, U) of the k-th client of each order with the k-th channel of each list, if available."""
    count = min(order.shape[1], channel.shape[1])
    assignment = np.full(order.shape, -1, np.int64)
    np.put_along_axis(assignment, order[:, :count], channel[:, :count], axis=1)
    return np.where(available, assignment, -1)


def max_sum_batch(weights: FloatArray) -> IntArray:
    """Return `max_sum_matching` of contiguous, non-empty matrices (B, U, N) without NaN, which is not checked."""
    small = is_small(*weights.shape[1:]) and is_complete(weights)
    result: IntArray = max_sum_small(weights) if small else kernels.solve_batch(weights, False)
    return result


def _max_min_batch(weights: FloatArray) -> IntArray:
    result: IntArray = kernels.solve_batch(weights, True)
    return result


def _in_batch(values: ArrayLike, solve: Callable[[FloatArray], IntArray]) -> IntArray:
    """Solve matrices (..., U, N) as one batch (B, U, N)."""
    array = matrix("estimates", values, 2)
    if array.size == 0:
        return np.full(array.shape[:-1], -1, np.int64)
    return solve(array.reshape(-1, *array.shape[-2:])).reshape(array.shape[:-1])
