"""The built-in models as lists of layers (reading 16 in docs/reading-the-paper.md). PyTorch is not needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fedlane.validate import InputError, unknown

MODELS = ("mlp", "cnn", "softmax", "sequence")
EMBEDDING_WIDTH, SEQUENCE_UNITS = 8, 128
"""Of the model "sequence": numbers per token, and hidden units."""


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


@dataclass(frozen=True)
class Embedding:
    """A table with a vector of ``width`` numbers for each of ``tokens`` tokens, looked up for ``length`` of them."""

    tokens: int
    length: int
    width: int

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.tokens * self.width

    @property
    def inputs(self) -> int:
        """Tokens per sample."""
        return self.length

    @property
    def outputs(self) -> int:
        """Numbers per sample."""
        return self.length * self.width

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one sample's forward pass: none, because a table is only read."""
        return 0


Layer = Dense | Convolution | Embedding


def architecture(model: str, input_shape: Sequence[int], classes: int, tokens: int | None = None) -> tuple[Layer, ...]:
    """Return the layers of a built-in model.

    Args:
        model: Name of the model.
        input_shape: (planes, height, width) of images, or the shape of any other input.
        classes: Number of classes, M.
        tokens: Size of the vocabulary where inputs are tokens; None where they are numbers.

    Raises:
        InputError: The model is unknown or does not take such inputs.
    """
    pixels = prod(input_shape)
    if model == "sequence":
        return _sequence(input_shape, classes, tokens)
    if tokens is not None and model in MODELS:
        raise InputError(f"model {model} takes numbers, but the data set has tokens: use sequence or your own module")
    if model == "softmax":
        return (Dense(pixels, classes, relu=False),)
    if model == "mlp":
        return (Dense(pixels, 64, relu=True), Dense(64, classes, relu=False))
    if model == "cnn":
        if len(input_shape) != 3:
            raise InputError(f"model cnn needs images (planes, height, width), got inputs {tuple(input_shape)}")
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


def _sequence(input_shape: Sequence[int], classes: int, tokens: int | None) -> tuple[Layer, ...]:
    """Return the layers of the model of token sequences (Bengio et al., 2003): embeddings, then a two-layer network."""
    if tokens is None or len(input_shape) != 1:
        raise InputError("model sequence needs sequences of tokens (samples, length), whole numbers")
    embedding = Embedding(tokens, input_shape[0], EMBEDDING_WIDTH)
    return (
        embedding,
        Dense(embedding.outputs, SEQUENCE_UNITS, relu=True),
        Dense(SEQUENCE_UNITS, classes, relu=False),
    )


def parameter_count(model: str, input_shape: Sequence[int], classes: int, tokens: int | None = None) -> int:
    """Return the number of weights and biases of a built-in model, see `architecture`."""
    return sum(layer.size for layer in architecture(model, input_shape, classes, tokens))


def multiply_adds(model: str, input_shape: Sequence[int], classes: int, tokens: int | None = None) -> int:
    """Return the multiply-adds of one sample's forward pass through a built-in model, see `architecture`."""
    return sum(layer.multiply_adds for layer in architecture(model, input_shape, classes, tokens))
