"""The built-in models, computed layer by layer over many weight sets, with per-sample clipping."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlane.learning import fused, layers
from fedlane.learning.architectures import Convolution, Dense, Embedding, Layer
from fedlane.learning.dataset_records import CLASSES, Objective
from fedlane.learning.model_interface import Batch, Model
from fedlane.rng import generator

try:
    from fedlane.learning.cpu_kernels import mlp_tail
except ImportError:  # without Numba, PyTorch does the same a little more slowly
    mlp_tail = None


class LayeredModel(Model):
    """A built-in model: hand-written layers with per-sample clipping."""

    def __init__(self, stack: Sequence[Layer], objective: Objective = CLASSES) -> None:
        self.layers, self.objective = tuple(stack), objective
        self.size = self.trained = sum(layer.size for layer in self.layers)
        self._has_kernels = objective.kind == "classes"  # compiled code computes the gradient of cross-entropy
        self._is_mlp = [isinstance(layer, Dense) and layer.relu for layer in self.layers] == [True, False]
        self._is_mlp &= self._has_kernels

    def initial(self, seed: int) -> Tensor:
        """Return He-normal weights and zero biases (reading 16 in docs/reading-the-paper.md); embeddings are normal."""
        rng = generator(seed, "weights")
        parts = []
        for layer in self.layers:
            if isinstance(layer, Embedding):
                parts.append(torch.from_numpy(rng.standard_normal(layer.size)))
                continue
            inputs = layer.inputs if isinstance(layer, Dense) else 9 * layer.inputs
            parts.append(torch.from_numpy(rng.standard_normal(inputs * layer.outputs) * (2.0 / inputs) ** 0.5))
            parts.append(torch.zeros(layer.outputs, dtype=torch.float64))
        return torch.cat(parts).to(torch.float32)

    def _blocks(self, weights: Tensor) -> Sequence[Tensor]:
        return torch.split(weights, [layer.size for layer in self.layers], dim=1)

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return class scores, see `Model.logits`."""
        if self._is_fused(weights):
            from fedlane.learning.fused.network import FusedNetwork

            return FusedNetwork(self.layers, self._blocks(weights), fused.convolution_format()).logits(x)
        h = x.expand(len(weights), *x.shape[1:])
        for layer, block in zip(self.layers, self._blocks(weights), strict=True):
            h = layers.forward(layer, block, h, keep=False).outputs
        return h

    def descend(
        self, weights: Tensor, batch: Batch, clip_norm: float | None, scale: Tensor, into: Tensor | None = None
    ) -> None:
        """Subtract the clipped gradients, see `Model.descend`."""
        if self.takes_unpadded(weights) and batch.squares is not None:
            self._descend_compiled(weights, weights if into is None else into, batch, clip_norm, scale)
            return
        if self.reads_records(weights):
            self._descend_perceptron(weights, weights if into is None else into, batch, clip_norm, scale)
            return
        blocks = self._blocks(weights)
        targets = blocks if into is None else self._blocks(into)
        if self._is_fused(weights):
            self._descend_fused(blocks, targets, batch, clip_norm, scale)
            return
        passes: list[layers.Pass] = []
        h = batch.x
        for layer, block in zip(self.layers, blocks, strict=True):
            passes.append(layers.forward(layer, block, h, keep=True))
            h = passes[-1].outputs
        gradient: Tensor | None
        if self.objective.kind == "values":
            gradient = h.sub(batch.targets).mul_(2.0 / h.shape[2])
        else:  # the gradient of cross-entropy: softmax minus one-hot label
            gradient = softmax(h).sub_(batch.targets)
        for index in reversed(range(len(self.layers))):
            assert gradient is not None
            gradient = layers.backward(self.layers[index], blocks[index], passes[index], gradient, first=index == 0)
        factor = scale
        if clip_norm is not None:
            square = layers.squared_norms(self.layers[0], passes[0], batch.squares)
            for layer, results in zip(self.layers[1:], passes[1:], strict=True):
                square += layers.squared_norms(layer, results)
            finite = torch.isfinite(square)
            if weights.device.type != "cpu" or not bool(finite.all()):  # on a GPU, checking would force a wait
                for results in passes:
                    layers.drop_samples(results, ~finite)
            factor = torch.where(finite, scale * (clip_norm / square.sqrt_().clamp_(min=clip_norm)), 0.0)
        for layer, target, results in zip(self.layers, targets, passes, strict=True):
            layers.descend(layer, target, results, factor)

    def reads_records(self, weights: Tensor) -> bool:
        """Return whether records are read in place, see `Model.reads_records`: on a GPU, by a two-layer network."""
        hidden = self.layers[0].outputs
        return self._is_mlp and fused.usable(weights) and hidden >= 16 and hidden & (hidden - 1) == 0

    def takes_unpadded(self, weights: Tensor) -> bool:
        """Return whether batches need no padding, see `Model.takes_unpadded`: on a CPU, by a two-layer network."""
        return self._is_mlp and mlp_tail is not None and weights.device.type == "cpu"

    def _is_fused(self, weights: Tensor) -> bool:
        return self._has_kernels and isinstance(self.layers[0], Convolution) and fused.usable(weights)

    def _descend_perceptron(
        self, weights: Tensor, into: Tensor, batch: Batch, clip_norm: float | None, scale: Tensor
    ) -> None:
        """Do the same for a two-layer network on a GPU, in two kernels."""
        from fedlane.learning.fused.two_layer import perceptron_step_

        groups, places = scale.shape
        counts = torch.full((groups,), places, device=scale.device) if batch.counts is None else batch.counts
        x, targets, squares, records = batch.x, batch.targets, batch.squares, batch.records
        if records is None:  # gathered samples are a data set as well
            x, targets = x.reshape(groups * places, -1), targets.reshape(groups * places, -1)
            squares = (x.square().sum(1) if squares is None else squares).reshape(-1).contiguous()
            records = torch.arange(groups * places, device=scale.device).view(groups, places)
        assert squares is not None
        data = x.contiguous(), targets.contiguous(), squares
        perceptron_step_(
            weights, into, data, records, counts, scale.contiguous(), clip_norm, precision=fused.dense_format()
        )

    def _descend_fused(
        self,
        blocks: Sequence[Tensor],
        targets: Sequence[Tensor],
        batch: Batch,
        clip_norm: float | None,
        scale: Tensor,
    ) -> None:
        """Do the same for a convolutional network on a GPU, without storing patches or per-sample gradients."""
        from fedlane.learning.fused.network import FusedNetwork

        groups, places = scale.shape
        counts = torch.full((groups,), places, device=scale.device) if batch.counts is None else batch.counts
        network = FusedNetwork(self.layers, blocks, fused.convolution_format())
        network.descend(targets, batch, counts, clip_norm, scale)

    def _descend_compiled(
        self, weights: Tensor, into: Tensor, batch: Batch, clip_norm: float | None, scale: Tensor
    ) -> None:
        """Do the same for a two-layer network, with two matrix products and one kernel for everything in between."""
        assert batch.squares is not None
        groups, samples = len(weights), scale.numel()
        units, pixels = self.layers[0].outputs, self.layers[0].inputs
        starts = torch.arange(groups + 1) * (samples // groups) if batch.starts is None else batch.starts
        x, hidden = batch.x.reshape(samples, pixels), torch.empty(samples, units)
        first, first_into = (rows[:, : units * pixels].view(groups, units, pixels) for rows in (weights, into))
        targets = batch.targets.reshape(samples, self.layers[1].outputs)
        flat = targets, batch.squares.reshape(-1), starts, scale.reshape(-1)
        arrays = [tensor.numpy() for tensor in (hidden, weights, into, *flat)]
        counts = starts.diff().tolist()
        if min(counts) == max(counts):
            batches, outputs = x.view(groups, counts[0], pixels), hidden.view(groups, counts[0], units)
            torch.bmm(batches, first.transpose(1, 2), out=outputs)
            _run_tail(arrays, units * pixels, clip_norm)
            first_into.baddbmm_(outputs.transpose(1, 2), batches, alpha=-1.0)
            return
        rows = list(
            zip(torch.split(x, counts), torch.split(hidden, counts), first.unbind(), first_into.unbind(), strict=True)
        )
        for inputs, outputs, matrix, _ in rows:
            torch.mm(inputs, matrix.t(), out=outputs)
        _run_tail(arrays, units * pixels, clip_norm)
        for inputs, outputs, _, target in rows:
            target.addmm_(outputs.t(), inputs, alpha=-1.0)

    def bytes_per_sample(self) -> int:
        """Return the approximate memory in bytes that one sample needs during training."""
        floats = 0
        for layer in self.layers:
            if isinstance(layer, Convolution):
                positions = layer.height * layer.width
                floats += positions * (2 * 9 * layer.inputs + 2 * layer.inputs + 5 * layer.outputs)
                floats += 9 * layer.inputs * layer.outputs  # the per-sample gradient
            elif isinstance(layer, Embedding):
                floats += layer.length * (layer.length // 4 + 6 + 4 * layer.width)  # comparisons, tokens, gradients
            else:
                floats += layer.inputs + 4 * layer.outputs
        return 4 * floats

    def tensors(self, weights: Tensor) -> dict[str, Tensor]:
        """Return the weights (d,) as ``layerK.weight`` and ``layerK.bias`` in PyTorch's layout."""
        named = {}
        for index, (layer, block) in enumerate(zip(self.layers, self._blocks(weights[None]), strict=True)):
            if isinstance(layer, Embedding):
                named[f"layer{index}.weight"] = block[0].view(layer.tokens, layer.width).contiguous()
                continue
            matrix, bias = layers.weights_of(layer, block)
            if isinstance(layer, Convolution):  # torch.nn.Conv2d's layout: (out, in, 3, 3)
                matrix = matrix.view(1, layer.outputs, 3, 3, layer.inputs).permute(0, 1, 4, 2, 3)
            named[f"layer{index}.weight"] = matrix[0].contiguous()
            named[f"layer{index}.bias"] = bias[0].contiguous()
        return named


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last axis of (G, B, M); a transposed copy is several times faster for small M."""
    return torch.softmax(scores.transpose(1, 2).contiguous(), dim=1).transpose(1, 2)


def _run_tail(arrays: Sequence[NDArray[Any]], first_size: int, clip_norm: float | None) -> None:
    """Run the compiled middle part of a two-layer network."""
    assert mlp_tail is not None
    hidden, weights, into, *samples = arrays
    limit = math.inf if clip_norm is None else clip_norm
    mlp_tail(hidden, weights, into, first_size, *samples, limit)
