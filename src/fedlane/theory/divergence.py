"""Theorem 1: how far a client's uploaded model strays from centralised training."""

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
    """Theta_i up to the factor eta C sum_j (1 + eta lambda)^j, which is the same for all and cancels in the quotas.

        Theta_i ~ sum_m |p_im - q_m| + 4 q_i sqrt(2 tau ln(1 / delta_i)) / (sqrt(pi) b_i eps_i),   q_i = b_i / |D_i|

    label_shares (..., U, M): p_im, each client's label distribution. sizes (..., U): |D_i|. epsilon, delta and
    batch_size: one value or one per client; an infinite epsilon means no noise. ``dimension`` given: the noise term
    is the norm of a vector of that many weights, sigma sqrt(d) (reading 21); without it, the paper's formula.
    ``noise`` (..., U) given: the deviation of an upload's noise in units of eta C, instead of the paper's from epsilon.
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
    # The norm of Gaussian noise: E|n| = sigma sqrt(2 / pi) of one weight (the paper's), sigma sqrt(d) of d weights.
    result: FloatArray = skew + sigma * np.sqrt(2 / np.pi if dimension is None else dimension)
    return result
