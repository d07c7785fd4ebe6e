"""Randomness of a real client: samples and noise from the operating system's generator, which cannot be replayed.

Simulations use `counter_rng` instead. The remaining weaknesses of floating point are described in docs/privacy.md.
"""

import os

import numpy as np
import torch
from torch import Tensor

from fedlane.learning.local import TrainingBatch
from fedlane.records import BoolArray, FloatArray, MechanismSpec
from fedlane.validate import LARGEST_WEIGHT, PublicError


def system_coins(shape: tuple[int, ...], rate: float) -> BoolArray:
    """Return independent coins that are True with probability ``rate``: 64 random bits against a threshold."""
    if not 0 < rate <= 1:
        raise ValueError(f"rate must be greater than 0 and at most 1, got {rate}")
    threshold = int(rate * 2.0**64)
    count = int(np.prod(shape))
    numbers = np.frombuffer(os.urandom(8 * count), np.uint64)
    return np.ones(shape, np.bool_) if threshold >= 2**64 else (numbers < np.uint64(threshold)).reshape(shape)


def system_normals(count: int) -> FloatArray:
    """Return standard normal numbers in double precision: half the sum of four from Box-Muller.

    A sum of four does not reveal the floating-point numbers behind it (Holohan and Braghin 2021).
    """
    pairs = 2 * count
    bits = np.frombuffer(os.urandom(16 * pairs), np.uint64).reshape(2, pairs)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log(uniform[0])), 2.0 * np.pi * uniform[1]
    summands = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]).reshape(4, count)
    return np.asarray(summands.sum(axis=0) / 2.0)


def system_rows(spec: MechanismSpec, size: int) -> TrainingBatch:
    """Return the Poisson samples and the noise with which a real client trains for one upload.

    Args:
        spec: Mechanism of one replica and one client; the terms in the client's ledger come from it too (`Terms.of`).
        size: Number of the client's records.
    """
    if spec.sampling != "poisson" or spec.batch_size.shape != (1, 1) or not spec.step_noise.all():
        raise ValueError("a real client needs a mechanism for one client, with Poisson samples and noise in every step")
    if spec.sample_rate[0, 0] < spec.batch_size[0, 0] / size * (1 - 1e-9):
        raise ValueError(f"the mechanism was made for more than {size} records: its sample rate is too small")
    coins = system_coins((spec.local_iterations, size), float(spec.sample_rate[0, 0]))
    width = max(1, int(coins.sum(axis=1).max()))
    indices, mask = np.zeros((1, len(coins), width), np.int64), np.zeros((1, len(coins), width), np.bool_)
    for step, row in enumerate(coins):
        chosen = np.flatnonzero(row)
        indices[0, step, : len(chosen)], mask[0, step, : len(chosen)] = chosen, True
    return TrainingBatch(
        indices=torch.from_numpy(indices),
        mask=torch.from_numpy(mask),
        batch_size=torch.from_numpy(spec.batch_size[0]),
        step_noise=torch.from_numpy(spec.step_noise[0]),
        add_noise=_add_noise,
        first_noise=None if spec.loss_query is None else torch.from_numpy(spec.loss_query.first_step_noise[0]),
    )


def check_global_model(weights: Tensor, largest: float = LARGEST_WEIGHT) -> None:
    """Reject a model that no honest server sends: one that is not finite, or large enough to overflow float32."""
    if not bool(torch.isfinite(weights).all()):
        raise PublicError("the server's model is not finite: training is refused")
    if bool((weights.abs() > largest).any()):
        raise PublicError(f"the server's model has weights above {largest:g}: training is refused")


def _add_noise(move: Tensor, step: int, deviation: Tensor) -> object:
    for row, amount in zip(move, deviation.double(), strict=True):
        noise = torch.from_numpy(system_normals(row.numel())) * amount.cpu()
        row.copy_((row.double().cpu() + noise).to(row))
    return move
