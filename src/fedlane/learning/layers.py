"""Layers over many weight sets at once, with per-sample clipping.

There are G weight sets (one per training client) with B samples each. A dense layer's gradient for one sample is an
outer product: its norm is a product of two norms, and the gradient need not be stored. A convolution's gradient is a
sum over positions whose terms may cancel. It is computed for every sample, and the norm is taken of the same array that
is added later. (A norm from Gram matrices, the "ghost norm", loses all its digits for weights that a hostile server can
choose.) Images are (height, width, planes): a convolution is then one matrix product per weight set over its 3 x 3
patches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlane.learning import embedding
from fedlane.learning.architectures import Convolution, Dense, Embedding, Layer


@dataclass
class Pass:
    """A layer's intermediate results: those of the forward pass, and later its gradients."""

    inputs: Tensor
    """Dense: (G, B, in). Convolution: patches at P positions, (G, B * P, 9 in). Embedding: tokens (G, B, L)."""
    outputs: Tensor
    """(G, B, ...): after pooling and ReLU."""
    choice: Tensor | None = None
    """Convolution: index of the largest of the four pooled values, (G * B, planes, height, width)."""
    gradient: Tensor | None = None
    """(G, B, out) or (G, B * P, out): gradient at the output of the matrix product. Embedding: gradients of the
    samples' tokens, (G, B, L * width)."""
    per_sample: Tensor | None = None
    """Convolution with clipping: weight gradient of every sample, (G * B, out, 9 in)."""
    per_sample_bias: Tensor | None = None
    """Convolution with clipping: bias gradient of every sample, (G * B, out)."""


def weights_of(layer: Dense | Convolution, block: Tensor) -> tuple[Tensor, Tensor]:
    """Return views of a layer's block (G, size) of flat weights: matrix (G, out, in) and bias (G, out)."""
    inputs = layer.inputs if isinstance(layer, Dense) else 9 * layer.inputs
    matrix = block[:, : inputs * layer.outputs].view(-1, layer.outputs, inputs)
    return matrix, block[:, inputs * layer.outputs :]


def forward(layer: Layer, block: Tensor, x: Tensor, *, keep: bool) -> Pass:
    """Run a layer on x (G, B, ...); with ``keep``, store what the backward pass needs."""
    if isinstance(layer, Embedding):
        return Pass(x, embedding.look_up(layer, block, x))
    matrix, bias = weights_of(layer, block)
    groups, samples = x.shape[:2]
    if isinstance(layer, Dense):
        flat = x.reshape(groups, samples, -1)
        out = torch.baddbmm(bias[:, None], flat, matrix.transpose(1, 2))
        return Pass(flat, out.relu_() if layer.relu else out)
    distinct = x[:1] if x.stride(0) == 0 else x  # images shared by all weight sets are cut into patches once
    patches = _patches(distinct.reshape(-1, layer.height, layer.width, layer.inputs))
    patches = patches.view(len(distinct), -1, 9 * layer.inputs).expand(groups, -1, -1)
    out = torch.baddbmm(bias[:, None], patches, matrix.transpose(1, 2))
    image = out.view(groups * samples, layer.height, layer.width, layer.outputs).permute(0, 3, 1, 2)
    pooled, choice = torch.nn.functional.max_pool2d(image, 2, return_indices=True)
    pooled = pooled.permute(0, 2, 3, 1).relu_()
    outputs = pooled.reshape(groups, samples, layer.height // 2, layer.width // 2, layer.outputs)
    return Pass(patches if keep else patches[:0], outputs, choice if keep else None)


def backward(layer: Layer, block: Tensor, results: Pass, gradient: Tensor, *, first: bool) -> Tensor | None:
    """Set ``results.gradient`` from the gradient at the outputs; return that at the inputs (None if ``first``)."""
    if isinstance(layer, Embedding):  # always the first layer
        results.gradient = embedding.token_gradients(layer, results.inputs, gradient)
        return None
    matrix, _ = weights_of(layer, block)
    groups, samples = gradient.shape[:2]
    if isinstance(layer, Dense):
        gradient = gradient.reshape(results.outputs.shape)
        results.gradient = _through_relu(gradient, results.outputs) if layer.relu else gradient
        gradient = results.gradient
        return None if first else torch.bmm(gradient, matrix)
    gradient = _through_relu(gradient.reshape(results.outputs.shape), results.outputs)
    assert results.choice is not None
    results.gradient = _unpool(layer, gradient, results.choice).view(
        groups, samples * layer.height * layer.width, layer.outputs
    )
    if first:
        return None
    spread = torch.bmm(results.gradient, matrix)
    image = _gathered(spread.view(groups * samples, layer.height, layer.width, 9, layer.inputs))
    return image.view(groups, samples, layer.height, layer.width, layer.inputs)


def squared_norms(layer: Layer, results: Pass, squares: Tensor | None = None) -> Tensor:
    """Return the squared norm of each sample's gradient in this layer, bias included, (G, B).

    ``squares`` (G, B) are the squared norms of a dense layer's inputs, if already computed.
    """
    assert results.gradient is not None
    if isinstance(layer, Dense):
        if squares is None:
            squares = torch.linalg.vector_norm(results.inputs, dim=2).square_()
        lengths = torch.linalg.vector_norm(results.gradient, dim=2).square_()
        return torch.addcmul(lengths, lengths, squares)  # of the outer product and of the bias
    if isinstance(layer, Embedding):
        return results.gradient.square().sum(2)
    groups = results.inputs.shape[0]
    positions = layer.height * layer.width
    inputs = results.inputs.view(-1, positions, 9 * layer.inputs)
    gradient = results.gradient.view(-1, positions, layer.outputs)
    results.per_sample = torch.bmm(gradient.transpose(1, 2), inputs)
    results.per_sample_bias = gradient.sum(1)
    return (results.per_sample.square().sum((1, 2)) + results.per_sample_bias.square().sum(1)).view(groups, -1)


def drop_samples(results: Pass, dropped: Tensor) -> None:
    """Remove samples, dropped (G, B), before `descend`: a factor of 0 would leave NaN where they overflowed."""
    if results.per_sample is not None and results.per_sample_bias is not None:
        results.per_sample.masked_fill_(dropped.view(-1, 1, 1), 0)
        results.per_sample_bias.masked_fill_(dropped.view(-1, 1), 0)
        return
    assert results.gradient is not None
    results.gradient = results.gradient.masked_fill(dropped[..., None], 0)
    results.inputs = results.inputs.masked_fill(dropped[..., None], 0)


def descend(layer: Layer, block: Tensor, results: Pass, factor: Tensor) -> None:
    """Subtract factor (G, B) times each sample's gradient, summed over the samples, from the block in place."""
    assert results.gradient is not None
    if isinstance(layer, Embedding):
        embedding.subtract_(layer, block, results.inputs, results.gradient * factor[..., None])
        return
    matrix, bias = weights_of(layer, block)
    groups, samples = factor.shape
    if results.per_sample is not None and results.per_sample_bias is not None:  # the arrays whose norms were measured
        matrix -= torch.bmm(factor[:, None], results.per_sample.view(groups, samples, -1)).view_as(matrix)
        bias -= torch.bmm(factor[:, None], results.per_sample_bias.view(groups, samples, -1)).view_as(bias)
        return
    results.gradient.view(groups, samples, -1, layer.outputs).mul_(factor[:, :, None, None])
    matrix.baddbmm_(results.gradient.transpose(1, 2), results.inputs, alpha=-1.0)
    bias -= results.gradient.sum(1)


def _through_relu(gradient: Tensor, outputs: Tensor) -> Tensor:
    """Return the gradient where the output is positive, 0 elsewhere."""
    result: Tensor = torch.ops.aten.threshold_backward(gradient, outputs, 0.0)
    return result


def _patches(image: Tensor) -> Tensor:
    """Return the 3 x 3 patches of zero-padded images (n, height, width, planes): (n, height, width, 3, 3, planes)."""
    n, height, width, planes = image.shape
    padded = image.new_zeros(n, height + 2, width + 2, planes)
    padded[:, 1:-1, 1:-1] = image
    image_step, row_step, column_step, plane_step = padded.stride()
    steps = image_step, row_step, column_step, row_step, column_step, plane_step
    return padded.as_strided((n, height, width, 3, 3, planes), steps).contiguous()


def _gathered(spread: Tensor) -> Tensor:
    """Reverse `_patches`: add up (n, height, width, 9, planes) at each pixel, giving (n, height, width, planes)."""
    n, height, width, _, planes = spread.shape
    rows = _pixel_rows(n, height, width, spread.device)
    # Row 0 lies outside the first image, so it can be the padding index.
    return torch.nn.functional.embedding_bag(rows, spread.view(-1, planes), mode="sum", padding_idx=0)


def _pixel_rows(n: int, height: int, width: int, device: torch.device) -> Tensor:
    """Return the 9 patch rows that hold each pixel, 0 for those outside the image; (n h w, 9)."""
    y, x, k = (torch.arange(count, device=device, dtype=torch.int32) for count in (height, width, 3))
    row, column = y[:, None, None, None] + 1 - k[:, None], x[:, None, None] + 1 - k
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    patch_row = (row * width + column) * 9 + k[:, None] * 3 + k
    images = torch.arange(n, device=device, dtype=torch.int32)[:, None] * (height * width * 9)
    return torch.where(inside.view(-1), images + patch_row.reshape(-1), 0).view(-1, 9)


def _unpool(layer: Convolution, gradient: Tensor, choice: Tensor) -> Tensor:
    """Move each pooled gradient to the position of the largest value: (n, height, width, planes)."""
    pooled = gradient.view(-1, layer.height // 2, layer.width // 2, layer.outputs).permute(0, 3, 1, 2)
    shape = (pooled.shape[0], layer.outputs, layer.height, layer.width)
    like = pooled.new_empty(shape).to(memory_format=torch.channels_last)
    spread: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
        pooled, like, [2, 2], [2, 2], [0, 0], [1, 1], False, choice
    )
    return spread.permute(0, 2, 3, 1)
