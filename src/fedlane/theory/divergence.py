"""Theorem 1: how far a client's uploaded model diverges from centralised training.

Numbered readings are explained in docs/reading-the-paper.md.
"""

import numpy as np
from numpy.typing import ArrayLike

from fedlane.records import FloatArray
from fedlane.validate import InputError


def theta(
    label_shares: ArrayLike,
    sizes: ArrayLike,
    epsilon: ArrayLike,
    delta: ArrayLike,
    *,
    local_iterations: int,
    batch_size: ArrayLike,
    dimension: int | None = None,
    noise: ArrayLike | None = None,
) -> FloatArray:
    """Return each client's model divergence Theta_i, up to a factor that is the same for all clients.

    The factor eta C sum_j (1 + eta lambda)^j cancels in the quotas:

        Theta_i ~ sum_m |p_im - q_m| + 4 q_i sqrt(2 tau ln(1 / delta_i)) / (sqrt(pi) b_i eps_i),   q_i = b_i / |D_i|

    Args:
        label_shares: Each client's label distribution p_im (..., U, M).
        sizes: Records of each client, |D_i| (..., U).
        epsilon: Epsilon of an upload, one value or (U,); infinite for no noise.
        delta: Delta of an upload, one value or (U,).
        local_iterations: Steps of an upload, tau.
        batch_size: Records in a step's sample, one value or (U,).
        dimension: Number of weights d, for a noise term of sigma sqrt(d) (reading 21); None for the paper's formula.
        noise: Standard deviation of an upload's noise in units of eta C (..., U); None for the paper's, from epsilon.

    Returns:
        Divergences (..., U), without a unit.

    Raises:
        InputError: A shape or a value is wrong.

    Examples:
        >>> theta([[1.0, 0.0], [0.0, 1.0]], [100, 100], np.inf, 1e-3, local_iterations=5, batch_size=10).tolist()
        [1.0, 1.0]
    """
    p = np.asarray(label_shares, dtype=np.float64)
    size = np.asarray(sizes, dtype=np.float64)
    if p.ndim < 2 or size.shape != p.shape[:-1]:
        raise InputError(f"sizes must have shape {p.shape[:-1]} like label_shares, got {size.shape}")
    if np.any(size <= 0):
        raise InputError(f"sizes must be greater than 0, got {size.min()}")
    eps, dlt, batch = (np.asarray(x, dtype=np.float64) for x in (epsilon, delta, batch_size))
    if np.any(eps <= 0) or np.any((dlt <= 0) | (dlt >= 1)):
        raise InputError("epsilon must be greater than 0 and delta between 0 and 1")
    share = size / size.sum(axis=-1, keepdims=True)
    q = np.sum(share[..., None] * p, axis=-2, keepdims=True)
    skew = np.abs(p - q).sum(axis=-1)
    sampling_rate = batch / size
    sigma = 4 * sampling_rate * np.sqrt(-local_iterations * np.log(dlt)) / (batch * eps)
    if noise is not None:
        sigma = np.asarray(noise, dtype=np.float64)
    # Norm of Gaussian noise: E|n| = sigma sqrt(2 / pi) for one weight (the paper's), sigma sqrt(d) for d weights.
    result: FloatArray = skew + sigma * np.sqrt(2 / np.pi if dimension is None else dimension)
    return result
