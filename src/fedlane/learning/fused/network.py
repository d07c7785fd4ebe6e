"""One step of a convolutional network with per-sample clipping: fused convolutions, then dense layers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedlane.learning import layers
from fedlane.learning.architectures import Convolution, Dense, Layer
from fedlane.learning.fused import convolution


def split(stack: Sequence[Layer]) -> tuple[list[Convolution], list[Dense]]:
    """Return the convolutions and the dense layers that follow them."""
    return [x for x in stack if isinstance(x, Convolution)], [x for x in stack if isinstance(x, Dense)]


def product_operands(x: Tensor, precision: str) -> Tensor:
    """Return images in the format of the products' operands."""
    return x.to(torch.bfloat16 if precision == "bf16" else torch.float32).contiguous()


def logits(stack: Sequence[Layer], blocks: Sequence[Tensor], x: Tensor, precision: str) -> Tensor:
    """Return class scores (G, B, M) of images (G, B, ...) or (1, B, ...)."""
    convolutions, dense = split(stack)
    counts = torch.full((len(blocks[0]),), x.shape[1], dtype=torch.int64, device=x.device)
    h = product_operands(x, precision)
    for layer, block in zip(convolutions, blocks, strict=False):
        h, _ = convolution.forward(layer, block, h, counts, precision, keep=False)
    h = h.float()
    for layer, block in zip(dense, blocks[len(convolutions) :], strict=True):
        h = layers.forward(layer, block, h, keep=False).outputs
    return h


def descend(
    stack: Sequence[Layer],
    blocks: Sequence[Tensor],
    targets: Sequence[Tensor],
    x: Tensor,
    labels: Tensor,
    counts: Tensor,
    clip_norm: float | None,
    scale: Tensor,
    precision: str,
) -> None:
    """Subtract the clipped gradients from ``targets``; see `Model.descend`.

    Args:
        stack: The layers.
        blocks: Weights of each layer, (G, size).
        targets: Arrays of the same shapes that are changed.
        x: (G, B, height, width, planes) images.
        labels: (G, B, M) one-hot labels.
        counts: (G,) images in each row; the places after them are padding.
        clip_norm: C, or None.
        scale: (G, B) factor of each clipped gradient, 0 for padding.
        precision: `ieee`, `tf32` or `bf16`, the format of the convolutions' operands.
    """
    convolutions, dense = split(stack)
    inputs, choices = [product_operands(x, precision)], []
    for layer, block in zip(convolutions, blocks, strict=False):
        outputs, choice = convolution.forward(layer, block, inputs[-1], counts, precision, keep=True)
        inputs.append(outputs)
        choices.append(choice)
    passes, h = [], inputs.pop().float()
    dense_blocks = blocks[len(convolutions) :]
    for flat, block in zip(dense, dense_blocks, strict=True):
        passes.append(layers.forward(flat, block, h, keep=True))
        h = passes[-1].outputs
    gradient: Tensor | None = torch.softmax(h, 2).sub_(labels)
    for flat, block, results in reversed(list(zip(dense, dense_blocks, passes, strict=True))):
        assert gradient is not None
        gradient = layers.backward(flat, block, results, gradient, first=False)
    assert gradient is not None
    gradients: list[Tensor] = []
    biases: list[Tensor] = []
    for layer, block, choice, source in reversed(
        list(zip(convolutions, blocks[: len(convolutions)], choices, inputs, strict=True))
    ):
        gradient = gradient.to(source.dtype).view(choice.shape)
        biases.insert(0, convolution.bias_gradients(gradient, choice))
        gradients.insert(0, convolution.unpooled(layer, gradient, choice))
        if len(gradients) < len(convolutions):
            gradient = convolution.input_gradient(layer, block, gradients[0], counts, precision)
    factor = scale
    if clip_norm is not None:
        square = sum(layers.squared_norms(flat, results) for flat, results in zip(dense, passes, strict=True))
        for layer, source, g, bias in zip(convolutions, inputs, gradients, biases, strict=True):
            square += convolution.squared_norms(layer, source, g, counts, precision)
            square += bias.square().sum(2)
        finite = torch.isfinite(square)
        for results in passes:
            layers.drop_samples(results, ~finite)
        biases = [bias.masked_fill(~finite[..., None], 0) for bias in biases]
        factor = torch.where(finite, scale * (clip_norm / square.sqrt_().clamp_(min=clip_norm)), 0.0)
    factor = factor.contiguous()
    for layer, target, source, g, bias in zip(
        convolutions, targets[: len(convolutions)], inputs, gradients, biases, strict=True
    ):
        matrix, offset = layers.weights_of(layer, target)
        matrix -= convolution.weighted_sum(layer, source, g, counts, factor, precision)
        offset -= torch.bmm(factor[:, None], bias)[:, 0]
    for flat, target, results in zip(dense, targets[len(convolutions) :], passes, strict=True):
        layers.descend(flat, target, results, factor)
