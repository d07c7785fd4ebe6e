"""The built-in models as lists of layers (reading 16 in docs/reading-the-paper.md). PyTorch is not needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fedlane.validate import InputError, unknown

MODELS = ("mlp", "cnn", "softmax")


@dataclass(frozen=True)
class Dense:
    """A fully connected layer with bias on a flattened input."""

    inputs: int
    outputs: int
    relu: bool

    @property
    def size(self) -> int:
        """Number of weights and biases."""
        return (self.inputs + 1) * self.outputs

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one sample's forward pass."""
        return self.inputs * self.outputs


@dataclass(frozen=True)
class Convolution:
    """A 3 x 3 convolution with padding 1 and bias, 2 x 2 max-pooling and ReLU, on images (height, width, planes)."""

    height: int
    width: int
    inputs: int
    outputs: int

    @property
    def size(self) -> int:
        """Number of weights and biases."""
        return (9 * self.inputs + 1) * self.outputs

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one sample's forward pass."""
        return 9 * self.inputs * self.outputs * self.height * self.width


Layer = Dense | Convolution


def architecture(model: str, input_shape: Sequence[int], classes: int) -> tuple[Layer, ...]:
    """Return the layers of a built-in model for inputs (planes, height, width)."""
    pixels = prod(input_shape)
    if model == "softmax":
        return (Dense(pixels, classes, relu=False),)
    if model == "mlp":
        return (Dense(pixels, 64, relu=True), Dense(64, classes, relu=False))
    if model == "cnn":
        planes, height, width = input_shape
        if height < 8 or width < 8:
            raise InputError(f"model cnn needs images of at least 8 x 8, got {height} x {width}")
        convolutions = []
        for outputs in (64, 128, 256):
            convolutions.append(Convolution(height, width, planes, outputs))
            planes, height, width = outputs, height // 2, width // 2
        dense = Dense(planes * height * width, 128, relu=True), Dense(128, 256, relu=True)
        return (*convolutions, *dense, Dense(256, classes, relu=False))
    raise unknown("model", model, MODELS)


def parameter_count(model: str, input_shape: Sequence[int], classes: int) -> int:
    """Return the number of weights and biases of a built-in model."""
    return sum(layer.size for layer in architecture(model, input_shape, classes))


def multiply_adds(model: str, input_shape: Sequence[int], classes: int) -> int:
    """Return the multiply-adds of one sample's forward pass through a built-in model."""
    return sum(layer.multiply_adds for layer in architecture(model, input_shape, classes))
