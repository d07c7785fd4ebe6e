"""Participation quotas beta_i (paper, equation (8)), and the test of whether any policy can serve them."""

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.optimize import linprog

from fedlane.records import FloatArray
from fedlane.validate import InputError


def quotas(theta: ArrayLike, channels: int) -> FloatArray:
    """Return the quotas beta_i = min{N (1 / Theta_i) / sum_u (1 / Theta_u), 1}.

    If some Theta_i are 0 (no skew and no noise), those clients share the channels equally, which is the limit.

    Args:
        theta: Model divergences (..., U), at least 0 and finite.
        channels: Number of channels, N.

    Returns:
        Share of rounds in which each client must be punctual (..., U).

    Raises:
        InputError: A divergence is negative, infinite or NaN, or there are no channels.

    Examples:
        >>> quotas([1.0, 1.0, 2.0], channels=1).tolist()
        [0.4, 0.4, 0.2]
    """
    values = np.asarray(theta, dtype=np.float64)
    if not np.all((values >= 0) & np.isfinite(values)) or channels < 1:
        raise InputError("theta must not be negative, infinite or NaN, and channels must be at least 1")
    zero = values == 0
    inverse = np.where(zero.any(axis=-1, keepdims=True), zero, 1.0 / np.where(zero, 1.0, values))
    return np.minimum(channels * inverse / inverse.sum(axis=-1, keepdims=True), 1.0)


def feasible_scale(success: ArrayLike, quotas: ArrayLike) -> float:
    """Return the largest multiple of the quotas that any policy can serve in the long run.

    Time-sharing between matchings reaches exactly the x >= 0 with sum_j x_ij <= 1 and sum_i x_ij <= 1 (Birkhoff). The
    result is the optimum of the linear program

        max s   subject to   sum_j p_ij x_ij >= s beta_i   for all i.

    Args:
        success: Probability p_ij that a pair's upload is punctual (U, N).
        quotas: Quotas beta_i (U,).

    Returns:
        The multiple s; infinite if all quotas are 0.

    Raises:
        InputError: The shapes do not match.

    Examples:
        >>> round(feasible_scale(np.ones((10, 4)), np.full(10, 0.35)), 3)
        1.143
    """
    p, beta = np.asarray(success, dtype=np.float64), np.asarray(quotas, dtype=np.float64)
    if p.ndim != 2 or beta.shape != p.shape[:1]:
        raise InputError(f"success must be (U, N) and quotas (U,), got {p.shape} and {beta.shape}")
    clients, channels = p.shape
    if not np.any(beta > 0):
        return float("inf")
    client, channel = np.divmod(np.arange(clients * channels), channels)
    pair = np.arange(clients * channels)
    served = sparse.csr_array((-p.ravel(), (client, pair)), shape=(clients, clients * channels))
    rows = sparse.vstack(
        [
            sparse.hstack([served, sparse.csr_array(beta[:, None])]),
            sparse.csr_array((np.ones(len(pair)), (client, pair)), shape=(clients, len(pair) + 1)),
            sparse.csr_array((np.ones(len(pair)), (channel, pair)), shape=(channels, len(pair) + 1)),
        ],
        format="csr",
    )
    limits = np.concatenate([np.zeros(clients), np.ones(clients + channels)])
    objective = np.concatenate([np.zeros(len(pair)), [-1.0]])
    solution = linprog(objective, A_ub=rows, b_ub=limits, method="highs")  # type: ignore[call-overload]  # takes sparse
    if not solution.success:
        raise RuntimeError(f"the feasibility linear program failed: {solution.message}")
    return float(-solution.fun)
