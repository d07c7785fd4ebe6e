"""A real client's randomness: samples and noise from the operating system's generator, nothing that can be replayed.

For simulation see `draws`. What remains of floating point's weaknesses is in docs/privacy.md.
"""

import os

import numpy as np
import torch
from torch import Tensor

from fedlane.learning.local import Rows
from fedlane.records import BoolArray, FloatArray


def system_coins(shape: tuple[int, ...], rate: float) -> BoolArray:
    """Independent coins, true with probability ``rate``: 64 random bits each, against a threshold."""
    if not 0 < rate <= 1:
        raise ValueError(f"rate must be greater than 0 and at most 1, got {rate}")
    threshold = int(rate * 2.0**64)
    count = int(np.prod(shape))
    numbers = np.frombuffer(os.urandom(8 * count), np.uint64)
    return np.ones(shape, np.bool_) if threshold >= 2**64 else (numbers < np.uint64(threshold)).reshape(shape)


def system_normals(count: int) -> FloatArray:
    """Standard normal numbers: half the sum of four by Box-Muller, in double precision.

    A sum of four has no readable trace of the floating-point numbers it was made of (Holohan and Braghin 2021).
    """
    pairs = 2 * count
    bits = np.frombuffer(os.urandom(16 * pairs), np.uint64).reshape(2, pairs)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log(uniform[0])), 2.0 * np.pi * uniform[1]
    four = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]).reshape(4, count)
    return np.asarray(four.sum(axis=0) / 2.0)


def system_rows(size: int, rate: float, iterations: int, batch_size: int, step_noise: float) -> Rows:
    """What one real client trains by: Poisson samples of its records 0 to size - 1, and noise, for one upload."""
    coins = system_coins((iterations, size), rate)
    most = max(1, int(coins.sum(axis=1).max()))
    indices, mask = np.zeros((1, iterations, most), np.int64), np.zeros((1, iterations, most), np.bool_)
    for step, row in enumerate(coins):
        chosen = np.flatnonzero(row)
        indices[0, step, : len(chosen)], mask[0, step, : len(chosen)] = chosen, True
    return Rows(
        indices=torch.from_numpy(indices),
        mask=torch.from_numpy(mask),
        batch_size=torch.tensor([batch_size]),
        step_noise=torch.tensor([step_noise]),
        add_noise=_add_noise if step_noise else None,
    )


def _add_noise(weights: Tensor, step: int, deviation: Tensor) -> object:
    for row, amount in zip(weights, deviation.double(), strict=True):
        noise = torch.from_numpy(system_normals(row.numel())) * amount.cpu()
        row.copy_((row.double().cpu() + noise).to(row))
    return weights
