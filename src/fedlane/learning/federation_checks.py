"""Checks that a mechanism fits the data and the model before anything is trained."""

import numpy as np

from fedlane.learning.model_interface import Model
from fedlane.records import IntArray, MechanismSpec
from fedlane.validate import InputError


def check_rates(mechanism: MechanismSpec, sizes: IntArray) -> None:
    """Reject a mechanism for other data, because its privacy accounting would not describe this training."""
    if mechanism.batch_size.shape != sizes.shape:
        raise ValueError(f"the mechanism is for {mechanism.batch_size.shape} clients, the data for {sizes.shape}")
    short = mechanism.sample_rate < mechanism.batch_size / sizes * (1 - 1e-9)
    if np.any(short) or np.any(mechanism.batch_size > sizes):
        raise ValueError("the mechanism was made for larger data sets: its sample rate is too small")


def check_model(model: Model, mechanism: MechanismSpec) -> None:
    """Reject a model that the mechanism cannot train, and noise without a scale."""
    if mechanism.clip_norm is None and (mechanism.step_noise.any() or mechanism.upload_noise.any()):
        raise ValueError("noise needs a clip norm: without one it has no scale")
    if mechanism.clip_norm is not None and not model.per_record:
        raise ValueError("clipping needs a model with gradients of single records (per_record=True)")
    if int(mechanism.batch_size.min()) < model.smallest_batch:
        replica, client = np.argwhere(mechanism.batch_size < model.smallest_batch)[0]
        raise InputError(
            f"this model needs at least {model.smallest_batch} records in a batch, but client {client} has a batch of "
            f"{mechanism.batch_size[replica, client]}: raise learning.batch_size, or use GroupNorm"
        )
