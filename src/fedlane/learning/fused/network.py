"""One step of a convolutional network with per-sample clipping: fused convolutions, then PyTorch's dense layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlane.learning import layers
from fedlane.learning.architectures import Convolution, Dense, Layer
from fedlane.learning.fused import convolution
from fedlane.learning.model_interface import Batch


@dataclass
class ConvolutionPass:
    """What a step keeps of one convolution."""

    layer: Convolution
    inputs: Tensor
    """(G, B, height, width, planes), in the format of the products' operands."""
    choice: Tensor
    """(G, B, height / 2, width / 2, planes): see `fused.convolution`."""
    gradient: Tensor
    """(G, B, height, width, planes): gradient at the output of the product; empty until the backward pass."""
    bias: Tensor
    """(G, B, planes): each sample's bias gradient; empty until the backward pass."""


class FusedNetwork:
    """The layers of a convolutional network on a GPU, over G weight sets.

    Args:
        stack: The layers, convolutions first.
        blocks: Weights of each layer, (G, size).
        precision: `ieee`, `tf32` or `bf16`, the format of the convolutions' operands.
    """

    def __init__(self, stack: Sequence[Layer], blocks: Sequence[Tensor], precision: str) -> None:
        pairs = list(zip(stack, blocks, strict=True))
        self.convolutions = [(layer, block) for layer, block in pairs if isinstance(layer, Convolution)]
        self.dense = [(layer, block) for layer, block in pairs if isinstance(layer, Dense)]
        self.precision = precision

    def logits(self, x: Tensor) -> Tensor:
        """Return class scores (G, B, M) of images (G, B, ...), or (1, B, ...) if all weight sets see the same."""
        groups = len(self.dense[0][1])
        counts = torch.full((groups,), x.shape[1], dtype=torch.int64, device=x.device)
        h = self._operands(x)
        for layer, block in self.convolutions:
            h, _ = convolution.forward(layer, block, h, counts, self.precision)
        h = h.float()
        for dense, block in self.dense:
            h = layers.forward(dense, block, h, keep=False).outputs
        return h

    def descend(
        self, targets: Sequence[Tensor], batch: Batch, counts: Tensor, clip_norm: float | None, scale: Tensor
    ) -> None:
        """Subtract the clipped gradients from the layers' ``targets``, (G, size) each; see `Model.descend`."""
        passes, results = self._forward(batch.x, counts)
        gradient = torch.softmax(results[-1].outputs, 2).sub_(batch.targets)
        self._backward(passes, results, gradient, counts)
        factor = scale
        if clip_norm is not None:
            square = self._squared_norms(passes, results, counts)
            finite = torch.isfinite(square)
            for dense_pass in results:
                layers.drop_samples(dense_pass, ~finite)
            for kept in passes:
                kept.bias = kept.bias.masked_fill(~finite[..., None], 0)
            factor = torch.where(finite, scale * (clip_norm / square.sqrt_().clamp_(min=clip_norm)), 0.0)
        factor = factor.contiguous()
        for kept, target in zip(passes, targets, strict=False):
            matrix, offset = layers.weights_of(kept.layer, target)
            matrix -= convolution.weighted_sum(kept.layer, kept.inputs, kept.gradient, counts, factor, self.precision)
            offset -= torch.bmm(factor[:, None], kept.bias)[:, 0]
        for (dense, _), target, dense_pass in zip(self.dense, targets[len(passes) :], results, strict=True):
            layers.descend(dense, target, dense_pass, factor)

    def _operands(self, x: Tensor) -> Tensor:
        return x.to(torch.bfloat16 if self.precision == "bf16" else torch.float32).contiguous()

    def _forward(self, x: Tensor, counts: Tensor) -> tuple[list[ConvolutionPass], list[layers.Pass]]:
        h, empty = self._operands(x), x.new_empty(0)
        passes: list[ConvolutionPass] = []
        results: list[layers.Pass] = []
        for layer, block in self.convolutions:
            outputs, choice = convolution.forward(layer, block, h, counts, self.precision)
            passes.append(ConvolutionPass(layer, h, choice, empty, empty))
            h = outputs
        h = h.float()
        for dense, block in self.dense:
            results.append(layers.forward(dense, block, h, keep=True))
            h = results[-1].outputs
        return passes, results

    def _backward(
        self, passes: Sequence[ConvolutionPass], results: Sequence[layers.Pass], gradient: Tensor, counts: Tensor
    ) -> None:
        for (dense, block), dense_pass in zip(reversed(self.dense), reversed(results), strict=True):
            below = layers.backward(dense, block, dense_pass, gradient, first=False)
            assert below is not None
            gradient = below
        for (layer, block), kept in zip(reversed(self.convolutions), reversed(passes), strict=True):
            gradient = gradient.to(kept.inputs.dtype).view(kept.choice.shape)
            kept.bias = convolution.bias_gradients(gradient, kept.choice)
            kept.gradient = convolution.unpooled(layer, gradient, kept.choice)
            if kept is not passes[0]:
                gradient = convolution.input_gradient(layer, block, kept.gradient, counts, self.precision)

    def _squared_norms(
        self, passes: Sequence[ConvolutionPass], results: Sequence[layers.Pass], counts: Tensor
    ) -> Tensor:
        """Return the squared norm (G, B) of each sample's gradient over all layers."""
        parts = [layers.squared_norms(dense, kept) for (dense, _), kept in zip(self.dense, results, strict=True)]
        for kept in passes:
            parts.append(convolution.squared_norms(kept.layer, kept.inputs, kept.gradient, counts, self.precision))
            parts.append(kept.bias.square().sum(2))
        return torch.stack(parts).sum(0)
