"""Layers over many weight sets at once, with per-sample clipping.

G weight sets (one per training client), B samples each. A dense layer's gradient for one sample is an outer product,
so its norm is a product of two norms and needs no stored gradient. A convolution's gradient is a sum over positions,
whose terms may cancel: it is computed for every sample, and the norm is that of the array that is then added. (A norm
from Gram matrices, the "ghost norm", loses all its digits for weights that a hostile server can choose.)
Images are (height, width, planes), so that a convolution is one matrix product per weight set over its 3 x 3 patches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlane.learning.architectures import Convolution, Dense, Layer


@dataclass
class Pass:
    """What one layer remembers of a forward pass, and later the gradient at its output."""

    inputs: Tensor
    """Dense: (G, B, in). Convolution: its patches, (G, B * P, 9 in)."""
    outputs: Tensor
    """After pooling and ReLU; (G, B, ...)."""
    choice: Tensor | None = None
    """Convolution: which of the four pooled values won, (G * B, planes, height, width)."""
    gradient: Tensor | None = None
    """At the output of the matrix product: (G, B, out) or (G, B * P, out)."""
    per_sample: Tensor | None = None
    """Convolution, with clipping: the weight gradient of every sample, (G * B, out, 9 in)."""
    per_sample_bias: Tensor | None = None
    """Convolution, with clipping: the bias gradient of every sample, (G * B, out)."""


def weights_of(layer: Layer, block: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's block (G, size) of flat weights as views: matrix (G, out, in) and bias (G, out)."""
    inputs = layer.inputs if isinstance(layer, Dense) else 9 * layer.inputs
    matrix = block[:, : inputs * layer.outputs].view(-1, layer.outputs, inputs)
    return matrix, block[:, inputs * layer.outputs :]


def forward(layer: Layer, block: Tensor, x: Tensor, *, keep: bool) -> Pass:
    """Run a layer on x (G, B, ...); with ``keep``, remember what the backward pass needs."""
    matrix, bias = weights_of(layer, block)
    groups, samples = x.shape[:2]
    if isinstance(layer, Dense):
        flat = x.reshape(groups, samples, -1)
        out = torch.baddbmm(bias[:, None], flat, matrix.transpose(1, 2))
        return Pass(flat, out.relu_() if layer.relu else out)
    one = x[:1] if x.stride(0) == 0 else x  # the same images for every weight set are cut up once
    patches = _patches(one.reshape(-1, layer.height, layer.width, layer.inputs))
    patches = patches.view(len(one), -1, 9 * layer.inputs).expand(groups, -1, -1)
    out = torch.baddbmm(bias[:, None], patches, matrix.transpose(1, 2))
    image = out.view(groups * samples, layer.height, layer.width, layer.outputs).permute(0, 3, 1, 2)
    pooled, choice = torch.nn.functional.max_pool2d(image, 2, return_indices=True)
    pooled = pooled.permute(0, 2, 3, 1).relu_()
    outputs = pooled.reshape(groups, samples, layer.height // 2, layer.width // 2, layer.outputs)
    return Pass(patches if keep else patches[:0], outputs, choice if keep else None)


def backward(layer: Layer, block: Tensor, done: Pass, gradient: Tensor, *, first: bool) -> Tensor | None:
    """Set ``done.gradient`` from the gradient at the layer's outputs; return that at its inputs (None if ``first``)."""
    matrix, _ = weights_of(layer, block)
    groups, samples = gradient.shape[:2]
    if isinstance(layer, Dense):
        gradient = gradient.reshape(done.outputs.shape)
        done.gradient = _through_relu(gradient, done.outputs) if layer.relu else gradient
        gradient = done.gradient
        return None if first else torch.bmm(gradient, matrix)
    gradient = _through_relu(gradient.reshape(done.outputs.shape), done.outputs)
    assert done.choice is not None
    done.gradient = _unpool(layer, gradient, done.choice).view(
        groups, samples * layer.height * layer.width, layer.outputs
    )
    if first:
        return None
    spread = torch.bmm(done.gradient, matrix)
    image = _gathered(spread.view(groups * samples, layer.height, layer.width, 9, layer.inputs))
    return image.view(groups, samples, layer.height, layer.width, layer.inputs)


def squared_norms(layer: Layer, done: Pass, squares: Tensor | None = None) -> Tensor:
    """The squared norm of each sample's gradient in this layer, bias included, (G, B).

    ``squares`` (G, B): the squared norms of the inputs, if known. A dense layer's gradient is an outer product.
    """
    assert done.gradient is not None
    if isinstance(layer, Dense):
        if squares is None:
            squares = torch.linalg.vector_norm(done.inputs, dim=2).square_()
        lengths = torch.linalg.vector_norm(done.gradient, dim=2).square_()
        return torch.addcmul(lengths, lengths, squares)  # the outer product's, and the bias's
    groups = done.inputs.shape[0]
    positions = layer.height * layer.width
    a = done.inputs.view(-1, positions, 9 * layer.inputs)
    g = done.gradient.view(-1, positions, layer.outputs)
    done.per_sample = torch.bmm(g.transpose(1, 2), a)
    done.per_sample_bias = g.sum(1)
    return (done.per_sample.square().sum((1, 2)) + done.per_sample_bias.square().sum(1)).view(groups, -1)


def descend(layer: Layer, block: Tensor, done: Pass, factor: Tensor) -> None:
    """block -= sum over samples of factor (G, B) times the sample's gradient, in place."""
    matrix, bias = weights_of(layer, block)
    assert done.gradient is not None
    groups, samples = factor.shape
    if done.per_sample is not None and done.per_sample_bias is not None:  # add just what was measured
        matrix -= torch.bmm(factor[:, None], done.per_sample.view(groups, samples, -1)).view_as(matrix)
        bias -= torch.bmm(factor[:, None], done.per_sample_bias.view(groups, samples, -1)).view_as(bias)
        return
    done.gradient.view(groups, samples, -1, layer.outputs).mul_(factor[:, :, None, None])
    matrix.baddbmm_(done.gradient.transpose(1, 2), done.inputs, alpha=-1.0)
    bias -= done.gradient.sum(1)


def _through_relu(gradient: Tensor, outputs: Tensor) -> Tensor:
    """The gradient where the output is positive, else 0."""
    result: Tensor = torch.ops.aten.threshold_backward(gradient, outputs, 0.0)
    return result


def _patches(image: Tensor) -> Tensor:
    """3 x 3 patches of zero-padded images (n, height, width, planes): (n, height, width, 3, 3, planes), contiguous."""
    n, height, width, planes = image.shape
    padded = image.new_zeros(n, height + 2, width + 2, planes)
    padded[:, 1:-1, 1:-1] = image
    a, b, c, d = padded.stride()
    return padded.as_strided((n, height, width, 3, 3, planes), (a, b, c, b, c, d)).contiguous()


def _gathered(spread: Tensor) -> Tensor:
    """The reverse of `_patches`: (n, height, width, 9, planes) added up at each pixel, (n, height, width, planes)."""
    n, height, width, _, planes = spread.shape
    rows = _pixel_rows(n, height, width, spread.device)
    # Row 0 belongs to a neighbour outside the first image, so that it can stand for "nothing".
    return torch.nn.functional.embedding_bag(rows, spread.view(-1, planes), mode="sum", padding_idx=0)


def _pixel_rows(n: int, height: int, width: int, device: torch.device) -> Tensor:
    """For each pixel, the 9 patch rows that hold it (patch pixel, place in patch), 0 for those outside; (n h w, 9)."""
    y, x, k = (torch.arange(count, device=device, dtype=torch.int32) for count in (height, width, 3))
    row, column = y[:, None, None, None] + 1 - k[:, None], x[:, None, None] + 1 - k
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    one = (row * width + column) * 9 + k[:, None] * 3 + k
    images = torch.arange(n, device=device, dtype=torch.int32)[:, None] * (height * width * 9)
    return torch.where(inside.view(-1), images + one.reshape(-1), 0).view(-1, 9)


def _unpool(layer: Convolution, gradient: Tensor, choice: Tensor) -> Tensor:
    """Each pooled gradient to the place that won: (n, height, width, planes)."""
    pooled = gradient.view(-1, layer.height // 2, layer.width // 2, layer.outputs).permute(0, 3, 1, 2)
    shape = (pooled.shape[0], layer.outputs, layer.height, layer.width)
    like = pooled.new_empty(shape).to(memory_format=torch.channels_last)
    spread: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
        pooled, like, [2, 2], [2, 2], [0, 0], [1, 1], False, choice
    )
    return spread.permute(0, 2, 3, 1)
