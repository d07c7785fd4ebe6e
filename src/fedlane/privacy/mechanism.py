"""Mechanism specs: what a client does to its data before anything leaves it, in one record."""

import numpy as np

from fedlane.records import FloatArray, MechanismSpec
from fedlane.validate import InputError


def paper_sigma(
    epsilon: FloatArray,
    delta: FloatArray,
    sizes: FloatArray,
    *,
    learning_rate: float,
    clip_norm: float,
    local_iterations: int,
) -> FloatArray:
    """The standard deviation that Theorem 1 implies: 4 eta C sqrt(tau ln(1 / delta_i)) / (|D_i| eps_i) (reading 19).

    It is not (epsilon, delta)-DP at the paper's own settings (reading 20).
    """
    sigma: FloatArray = 4 * learning_rate * clip_norm * np.sqrt(-local_iterations * np.log(delta)) / (sizes * epsilon)
    return sigma


def make_mechanism(
    name: str,
    epsilon: FloatArray,
    delta: FloatArray,
    sizes: FloatArray,
    *,
    learning_rate: float,
    clip_norm: float,
    local_iterations: int,
) -> MechanismSpec:
    """The spec of a mechanism for clients with (epsilon, delta) (U,) and sizes (R, U)."""
    if name == "none":
        return MechanismSpec(name, None, np.zeros(sizes.shape))
    if name == "paper":
        sigma = paper_sigma(
            epsilon, delta, sizes, learning_rate=learning_rate, clip_norm=clip_norm, local_iterations=local_iterations
        )
        return MechanismSpec(name, clip_norm, sigma)
    raise InputError(f"privacy.mechanism '{name}' cannot train yet: use 'paper' or 'none', or --no-learning")
