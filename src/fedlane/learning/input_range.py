"""The range of model inputs, checked when records are loaded."""

import torch
from torch import Tensor

LARGEST_INPUT = 1e6
"""Largest absolute value of an input. Squared norms of inputs then stay far from float32's limits."""


class RecordError(ValueError):
    """The records cannot be used for training. The message may describe records, so only their owner may see it.

    A Flower client sends its server a constant text instead.
    """


def check_inputs(inputs: Tensor) -> None:
    """Raise a `RecordError` unless inputs are bytes, or floats that are finite and at most `LARGEST_INPUT` in size."""
    if inputs.dtype == torch.uint8 or inputs.numel() == 0:
        return
    largest = float(inputs.abs().max())  # NaN if any input is
    if not largest <= LARGEST_INPUT:
        raise RecordError(f"inputs must be finite and from -{LARGEST_INPUT:g} to {LARGEST_INPUT:g}, got {largest:g}")
