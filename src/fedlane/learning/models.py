"""Sizes of the built-in models (reading 16): what the payload and the sqrt(d) reading of Theorem 1 need."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from fedlane.validate import unknown

MODELS = ("mlp", "cnn", "softmax")


def parameter_count(model: str, input_shape: Sequence[int], classes: int) -> int:
    """Number of weights and biases of a built-in model on inputs (channels, height, width)."""
    if model == "softmax":
        return _dense(prod(input_shape), classes)
    if model == "mlp":
        return _dense(prod(input_shape), 64, classes)
    if model == "cnn":
        planes, height, width = input_shape
        filters = (planes, 64, 128, 256)
        convolutions = sum((9 * before + 1) * after for before, after in pairwise(filters))
        return convolutions + _dense(256 * (height // 8) * (width // 8), 128, 256, classes)
    raise unknown("model", model, MODELS)


def _dense(*widths: int) -> int:
    return sum((before + 1) * after for before, after in pairwise(widths))
