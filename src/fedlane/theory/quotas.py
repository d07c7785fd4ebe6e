"""Participation quotas beta_i (paper, equation (8)) and whether any policy could serve them."""

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.optimize import linprog

from fedlane.records import FloatArray
from fedlane.validate import InputError


def quotas(theta: ArrayLike, channels: int) -> FloatArray:
    """beta_i = min{N (1 / Theta_i) / sum_u (1 / Theta_u), 1}; theta (..., U) -> (..., U).

    Where some Theta_i are 0 (no skew and no noise), the limit: those clients share the channels equally.
    """
    values = np.asarray(theta, dtype=np.float64)
    if not np.all((values >= 0) & np.isfinite(values)) or channels < 1:
        raise InputError("theta must not be negative, infinite or NaN, and channels must be at least 1")
    zero = values == 0
    inverse = np.where(zero.any(axis=-1, keepdims=True), zero, 1.0 / np.where(zero, 1.0, values))
    return np.minimum(channels * inverse / inverse.sum(axis=-1, keepdims=True), 1.0)


def feasible_scale(success: ArrayLike, quotas: ArrayLike) -> float:
    """The largest multiple of the quotas that any policy can serve in the long run.

    Time-sharing between matchings reaches exactly the x >= 0 with sum_j x_ij <= 1 and sum_i x_ij <= 1 (Birkhoff), so

        max s   subject to   sum_j p_ij x_ij >= s beta_i   for all i,

    where p (U, N) is the chance that a pair's upload is punctual. Infinite when all quotas are 0.
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
        raise RuntimeError(f"the feasibility program failed: {solution.message}")
    return float(-solution.fun)
