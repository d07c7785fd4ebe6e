"""Models over many weight sets at once: built-in ones layer by layer, anybody's `torch.nn.Module` by torch.func.

Weights are flat rows, (G, d) for G weight sets, so that copying, noising and averaging models are single operations.
"""

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlane.learning import layers
from fedlane.learning.architectures import MODELS, Convolution, Dense, Layer, architecture
from fedlane.rng import generator
from fedlane.validate import InputError, unknown

try:
    from fedlane.learning.cpu_kernels import mlp_tail
except ImportError:  # Numba is not here: PyTorch alone does it, a little slower
    mlp_tail = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Batch:
    """Samples to train on, B for each of G weight sets."""

    x: Tensor
    """(G, B, ...)"""
    targets: Tensor
    """(G, B, M): one-hot labels."""
    squares: Tensor | None = None
    """(G, B): the squared norm of each input, where it is known already."""


class Model(ABC):
    """A classifier with flat weights."""

    size: int
    """d, the number of weights."""

    @abstractmethod
    def initial(self, seed: int) -> Tensor:
        """First weights of a replica, (d,)."""

    @abstractmethod
    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Class scores (G, B, M) of weights (G, d) on inputs x (G, B, ...) or, the same for all, (1, B, ...)."""

    @abstractmethod
    def descend(
        self, weights: Tensor, batch: Batch, clip_norm: float | None, scale: Tensor, into: Tensor | None = None
    ) -> None:
        """into -= scale_s min(1, C / |g_s|) g_s, summed over samples s, in place; ``into`` is the weights if not given.

        g_s is the cross-entropy gradient of sample s at the weights, scale (G, B). Without a clip norm, the plain
        gradients. With one, a sample whose gradient is not finite counts for nothing.
        """

    @abstractmethod
    def bytes_per_sample(self) -> int:
        """About what one sample needs while it is trained on, for fitting work into memory."""

    @abstractmethod
    def tensors(self, weights: Tensor) -> dict[str, Tensor]:
        """One flat weight set (d,) as named tensors, for saving."""


class LayeredModel(Model):
    """A built-in model: its layers by hand, clipped per sample."""

    def __init__(self, stack: Sequence[Layer]) -> None:
        self.layers = tuple(stack)
        self.size = sum(layer.size for layer in self.layers)
        self._is_mlp = [isinstance(layer, Dense) and layer.relu for layer in self.layers] == [True, False]

    def initial(self, seed: int) -> Tensor:
        """He-normal weights, zero biases (reading 16)."""
        rng = generator(seed, "weights")
        parts = []
        for layer in self.layers:
            inputs = layer.inputs if isinstance(layer, Dense) else 9 * layer.inputs
            parts.append(torch.from_numpy(rng.standard_normal(inputs * layer.outputs) * (2.0 / inputs) ** 0.5))
            parts.append(torch.zeros(layer.outputs, dtype=torch.float64))
        return torch.cat(parts).to(torch.float32)

    def _blocks(self, weights: Tensor) -> Sequence[Tensor]:
        return torch.split(weights, [layer.size for layer in self.layers], dim=1)

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        h = x.expand(len(weights), *x.shape[1:])
        for layer, block in zip(self.layers, self._blocks(weights), strict=True):
            h = layers.forward(layer, block, h, keep=False).outputs
        return h

    def descend(
        self, weights: Tensor, batch: Batch, clip_norm: float | None, scale: Tensor, into: Tensor | None = None
    ) -> None:
        blocks = self._blocks(weights)
        targets = blocks if into is None else self._blocks(into)
        if mlp_tail is not None and self._is_mlp and weights.device.type == "cpu" and batch.squares is not None:
            self._descend_compiled(blocks, targets, batch, batch.squares, clip_norm, scale)
            return
        passes: list[layers.Pass] = []
        h = batch.x
        for layer, block in zip(self.layers, blocks, strict=True):
            passes.append(layers.forward(layer, block, h, keep=True))
            h = passes[-1].outputs
        # The gradient of cross-entropy: softmax minus one-hot label.
        gradient: Tensor | None = softmax(h).sub_(batch.targets)
        for index in reversed(range(len(self.layers))):
            assert gradient is not None
            gradient = layers.backward(self.layers[index], blocks[index], passes[index], gradient, first=index == 0)
        factor = scale
        if clip_norm is not None:
            square = layers.squared_norms(self.layers[0], passes[0], batch.squares)
            for layer, done in zip(self.layers[1:], passes[1:], strict=True):
                square += layers.squared_norms(layer, done)
            finite = torch.isfinite(square)
            if weights.device.type == "cpu" and bool((~finite & (scale > 0)).any()):
                # An overflow, of one sample perhaps: it must not reach the others, so the step is done without it.
                kept = finite.view(*finite.shape, *(1,) * (batch.x.ndim - 2))
                rest = Batch(batch.x.where(kept, torch.zeros(())), batch.targets)
                self.descend(weights, rest, clip_norm, scale * finite, into)
                return
            factor = torch.where(finite, scale * (clip_norm / square.sqrt_().clamp_(min=clip_norm)), 0.0)
        for layer, target, done in zip(self.layers, targets, passes, strict=True):
            layers.descend(layer, target, done, factor)

    def _descend_compiled(
        self,
        blocks: Sequence[Tensor],
        targets: Sequence[Tensor],
        batch: Batch,
        squares: Tensor,
        clip_norm: float | None,
        scale: Tensor,
    ) -> None:
        """The same step of a two-layer network: two matrix products, and one kernel for all between them."""
        assert mlp_tail is not None
        (first, bias), (second, out_bias) = (
            layers.weights_of(layer, block) for layer, block in zip(self.layers, blocks, strict=True)
        )
        (first_into, bias_into), (second_into, out_into) = (
            layers.weights_of(layer, target) for layer, target in zip(self.layers, targets, strict=True)
        )
        x = batch.x.flatten(2)
        hidden = torch.bmm(x, first.transpose(1, 2))
        small = (
            *(hidden, bias, second, out_bias, bias_into, second_into, out_into),
            *(batch.targets, squares, scale),
        )
        arrays = [tensor.numpy() for tensor in small]
        mlp_tail(*arrays, float("inf") if clip_norm is None else clip_norm)  # type: ignore[call-arg, arg-type]
        first_into.baddbmm_(hidden.transpose(1, 2), x, alpha=-1.0)

    def bytes_per_sample(self) -> int:
        floats = 0
        for layer in self.layers:
            if isinstance(layer, Convolution):
                positions = layer.height * layer.width
                floats += positions * (2 * 9 * layer.inputs + 2 * layer.inputs + 5 * layer.outputs)
                floats += 9 * layer.inputs * layer.outputs  # a per-sample gradient
            else:
                floats += layer.inputs + 4 * layer.outputs
        return 4 * floats

    def tensors(self, weights: Tensor) -> dict[str, Tensor]:
        named = {}
        for index, (layer, block) in enumerate(zip(self.layers, self._blocks(weights[None]), strict=True)):
            matrix, bias = layers.weights_of(layer, block)
            if isinstance(layer, Convolution):  # as torch.nn.Conv2d has it: (out, in, 3, 3)
                matrix = matrix.view(1, layer.outputs, 3, 3, layer.inputs).permute(0, 1, 4, 2, 3)
            named[f"layer{index}.weight"] = matrix[0].contiguous()
            named[f"layer{index}.bias"] = bias[0].contiguous()
        return named


class ModuleModel(Model):
    """Anybody's `torch.nn.Module` from images (B, planes, height, width) to scores (B, M).

    Per-sample gradients by torch.func, a chunk of samples at a time. Modules with buffers that change while training
    (batch normalisation) mix samples, so that no per-sample gradient exists: they are refused.
    """

    def __init__(self, make: Callable[[], torch.nn.Module], chunk: int = 64) -> None:
        module = make()
        if any(True for _ in module.buffers()):
            raise InputError(
                f"model {type(module).__name__} has buffers (batch normalisation?): its samples are not independent, "
                "so they cannot be clipped one by one"
            )
        self.module, self.chunk, self._make = module, chunk, make
        self.shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self.size = sum(shape.numel() for shape in self.shapes.values())
        if self.size == 0:
            raise InputError(f"model {type(module).__name__} has no parameters to learn")

    def initial(self, seed: int) -> Tensor:
        """The weights the module's own initialisation gives under the replica's seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(generator(seed, "weights").integers(2**62)))
            fresh = self._make()
        return torch.cat([parameter.detach().reshape(-1) for parameter in fresh.parameters()]).float()

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        parts = torch.split(flat, [shape.numel() for shape in self.shapes.values()], dim=-1)
        return {name: part.view(shape) for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)}

    def _scores(self, flat: Tensor, x: Tensor) -> Tensor:
        images = x.permute(0, 3, 1, 2) if x.ndim == 4 else x
        scores: Tensor = torch.func.functional_call(self.module, self._named(flat), (images,))
        return scores

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        many = x.expand(len(weights), *x.shape[1:])
        return torch.stack([self._scores(flat, inputs) for flat, inputs in zip(weights, many, strict=True)])

    def descend(
        self, weights: Tensor, batch: Batch, clip_norm: float | None, scale: Tensor, into: Tensor | None = None
    ) -> None:
        def loss(flat: Tensor, sample: Tensor, target: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(self._scores(flat, sample[None]), target[None])

        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        moved = weights if into is None else into
        for flat, target, inputs, targets, amount in zip(weights, moved, batch.x, batch.targets, scale, strict=True):
            step = torch.zeros_like(flat)
            for start in range(0, len(targets), self.chunk):
                piece = slice(start, start + self.chunk)
                gradients = per_sample(flat, inputs[piece], targets[piece])
                factor = amount[piece]
                if clip_norm is not None:
                    norm = gradients.norm(dim=1)
                    gradients = gradients.where(torch.isfinite(norm)[:, None], torch.zeros((), device=norm.device))
                    factor = torch.where(torch.isfinite(norm), factor * (clip_norm / norm.clamp(min=clip_norm)), 0.0)
                step += factor @ gradients
            target -= step

    def bytes_per_sample(self) -> int:
        return 8 * self.size

    def tensors(self, weights: Tensor) -> dict[str, Tensor]:
        return {name: tensor.contiguous() for name, tensor in self._named(weights).items()}


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis of (G, B, M), computed across samples: several times faster where M is small."""
    return torch.softmax(scores.transpose(1, 2).contiguous(), dim=1).transpose(1, 2)


def make_model(name: str, input_shape: Sequence[int], classes: int) -> Model:
    """A built-in model by name, or ``package.module:Class`` (called without arguments)."""
    if name in MODELS:
        return LayeredModel(architecture(name, input_shape, classes))
    module, colon, attribute = name.partition(":")
    if not colon:
        raise unknown("model", name, MODELS)
    sys.path.insert(0, "")
    try:
        make = getattr(importlib.import_module(module), attribute)
        made = make()
    except Exception as error:  # a user's own code may fail in any way
        raise InputError(f"learning.model '{name}' cannot be made: {error}") from error
    finally:
        sys.path.remove("")
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"learning.model '{name}' must be a torch.nn.Module, got {type(made).__name__}")
    model = ModuleModel(make)
    planes, height, width = input_shape
    weights = model.initial(0)[None]
    try:
        scores = made(torch.zeros(2, planes, height, width))
        shape = tuple(scores.shape)
    except Exception as error:
        size = f"{planes} x {height} x {width}"
        raise InputError(f"learning.model '{name}' does not take images {size}: {error}") from error
    if shape != (2, classes):
        raise InputError(f"learning.model '{name}' must give {classes} scores a sample, got {shape[1:]}")
    batch = Batch(torch.zeros(1, 2, height, width, planes), torch.eye(classes)[None, :2])
    try:
        model.descend(weights, batch, 1.0, torch.ones(1, 2))
    except Exception as error:  # dropout, for one: every sample would need its own random numbers
        raise InputError(f"learning.model '{name}' has no per-sample gradients: {error}") from error
    return model
