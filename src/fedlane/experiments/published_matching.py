"""OM as the paper describes it (Section V-A): prune the worst edge, match again, until no matching is left.

It needs up to U N Hungarian runs. `fedlane.matching.max_min_matching` gives the same matching faster; this reference
exists to be timed against the greedy matching, as the paper compares them, and to check the fast one.
"""

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedlane.records import FloatArray, IntArray


def edge_by_edge_matching(estimates: FloatArray) -> IntArray:
    """Return the max-min matching of one network with finite values.

    Args:
        estimates: Value of each client on each channel (U, N).

    Returns:
        Channel of each client (U,), -1 for none: the max-sum matching of the last pruned graph that has a matching
        which saturates the smaller side.
    """
    pruned = estimates.copy()
    best = _hungarian(pruned)
    for edge in np.argsort(estimates, axis=None):
        pruned.flat[edge] = -np.inf
        following = _hungarian(pruned)
        if following is None:
            break
        best = following
    assert best is not None, "a complete graph has a matching"
    return best


def _hungarian(values: FloatArray) -> IntArray | None:
    """The max-sum saturating matching without the pruned edges, or None if there is none."""
    allowed = np.isfinite(values)
    if (allowed.any(axis=1).sum() if values.shape[0] <= values.shape[1] else allowed.any(axis=0).sum()) < min(
        values.shape
    ):
        return None
    # A pruned edge costs more than all others together, so it is used only if it must be.
    spread = float(np.ptp(values[allowed])) + 1.0
    cost = np.where(allowed, values, values[allowed].min() - spread * (min(values.shape) + 1))
    client, channel = linear_sum_assignment(cost, maximize=True)
    if not allowed[client, channel].all():
        return None
    matching = np.full(len(values), -1, np.int64)
    matching[client] = channel
    return matching


def loop_greedy_matching(estimates: FloatArray, order: IntArray) -> IntArray:
    """Algorithm 2 of the paper for one network, as a plain loop: each client of the order takes its best free channel.

    Args:
        estimates: Value of each client on each channel (U, N).
        order: Clients in the order in which they choose (U,).
    """
    matching = np.full(len(estimates), -1, np.int64)
    free = estimates.copy()
    for client in order[: min(estimates.shape)]:
        matching[client] = free[client].argmax()
        free[:, matching[client]] = -np.inf
    return matching
