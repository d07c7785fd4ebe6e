"""A user's `torch.nn.Module` as a model, with per-sample gradients from torch.func."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedlane.learning.model_interface import Batch, Model
from fedlane.rng import generator
from fedlane.validate import InputError


class ModuleModel(Model):
    """A user's `torch.nn.Module` that maps images (B, planes, height, width) to scores (B, M).

    torch.func computes per-sample gradients for one chunk of samples at a time. A module with buffers is refused: if
    they change during training (batch normalisation), samples are not independent and have no individual gradients.
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
        """Return the weights of the module's own initialisation, seeded by the replica."""
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
        """Return class scores, see `Model.logits`."""
        shared = x.expand(len(weights), *x.shape[1:])
        return torch.stack([self._scores(flat, inputs) for flat, inputs in zip(weights, shared, strict=True)])

    def descend(
        self, weights: Tensor, batch: Batch, clip_norm: float | None, scale: Tensor, into: Tensor | None = None
    ) -> None:
        """Subtract the clipped gradients, see `Model.descend`."""

        def loss(flat: Tensor, sample: Tensor, target: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(self._scores(flat, sample[None]), target[None])

        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        updated = weights if into is None else into
        for flat, target, inputs, targets, amount in zip(weights, updated, batch.x, batch.targets, scale, strict=True):
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
        """Return the approximate memory in bytes that one sample needs during training."""
        return 8 * self.size

    def tensors(self, weights: Tensor) -> dict[str, Tensor]:
        """Return the weights (d,) under the module's parameter names."""
        return {name: tensor.contiguous() for name, tensor in self._named(weights).items()}
