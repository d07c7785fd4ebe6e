"""A user's `torch.nn.Module` as a model.

Where every record needs a gradient of its own, `fedlane.learning.module_gradients` computes it on a CPU if it knows all
of the module's layers, and otherwise torch.func does, which is slower. Without that need, a module whose records are
not independent (batch normalisation, dropout) is trained as in any PyTorch loop: a batch passes through it as a whole.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from fedlane.learning.dataset_records import CLASSES, Objective
from fedlane.learning.losses import sample_losses
from fedlane.learning.model_interface import Batch, Model
from fedlane.learning.module_gradients import record_gradients, slow_layer
from fedlane.learning.module_layers import (
    check_layers,
    constant_buffers,
    layer_name,
    needs_whole_batch,
    running_statistics,
)
from fedlane.rng import generator
from fedlane.validate import InputError


class ModuleModel(Model):
    """A user's `torch.nn.Module` that maps images (B, planes, height, width), or inputs (B, ...), to scores (B, M).

    The flat weights are the module's parameters, followed by the running statistics of its normalisation layers, if it
    has any: as in federated averaging, these are averaged with the parameters. All other buffers are constants, and a
    module that changes one is refused. Layers train in the mode in which they were made and are evaluated in `eval()`.

    Args:
        make: Class of the module, or a function that returns it.
        chunk: Number of records whose gradients torch.func computes at a time.
        per_record: Whether every record needs a gradient of its own, as clipping does.
        objective: What is learned.

    Attributes:
        slow_reason: Why torch.func computes the gradients of single records, naming the layer; None if it does not.

    Raises:
        InputError: The module has no parameters, or a layer that cannot be trained in this way.
    """

    def __init__(
        self,
        make: Callable[[], torch.nn.Module],
        chunk: int = 64,
        *,
        per_record: bool = True,
        objective: Objective = CLASSES,
    ) -> None:
        module = _seeded(make, 0)  # constants that are drawn at random are then the same in every process
        check_layers(module, per_record=per_record)
        self.module, self.chunk, self._make = module, chunk, make
        self.per_record, self.objective = per_record, objective
        self.whole_batch = not per_record and needs_whole_batch(module)
        self.shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self.trained = sum(shape.numel() for shape in self.shapes.values())
        if self.trained == 0:
            raise InputError(f"model {type(module).__name__} has no parameters to learn")
        self.state = running_statistics(module)
        self.size = self.trained + sum(buffer.numel() for buffer in self.state.values())
        self._pristine = {name: buffer.detach().clone() for name, buffer, _ in constant_buffers(module)}
        self._saved = {name for name, _, saved in constant_buffers(module) if saved}
        self._on_device: dict[torch.device, dict[str, Tensor]] = {}
        self.slow_reason = slow_layer(module) if per_record else None

    def initial(self, seed: int) -> Tensor:
        """Return the weights of the module's own initialisation, seeded by the replica."""
        fresh = _seeded(self._make, int(generator(seed, "weights").integers(2**62)))
        values = [*fresh.parameters(), *running_statistics(fresh).values()]
        return torch.cat([value.detach().reshape(-1).float() for value in values])

    def constants(self) -> dict[str, Tensor]:
        """Return the constant buffers of the module's state dict, by name."""
        saved = {name: buffer for name, buffer in self._pristine.items() if name in self._saved}
        # NumPy has no bfloat16; load_state_dict converts back.
        return {
            name: buffer.float() if buffer.dtype == torch.bfloat16 else buffer.clone() for name, buffer in saved.items()
        }

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        shapes = {**self.shapes, **{name: buffer.shape for name, buffer in self.state.items()}}
        parts = torch.split(flat, [shape.numel() for shape in shapes.values()], dim=-1)
        return {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}

    def _values(self, flat: Tensor) -> dict[str, Tensor]:
        """Return parameters and running statistics, the latter as copies in their own types."""
        named = self._named(flat)
        for name, buffer in self.state.items():
            named[name] = _as_type(named[name].detach(), buffer.dtype).clone()
        return named

    def _called(self, named: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return scores; running statistics in ``named`` are updated, constants must stay as they are."""
        images = x.permute(0, 3, 1, 2) if x.ndim == 4 else x
        constants = self._constants(x.device)
        versions = {name: buffer._version for name, buffer in constants.items()}
        for name, buffer in constants.items():
            named[name] = buffer
        scores: Tensor = torch.func.functional_call(self.module, named, (images,))
        for name, buffer in constants.items():
            if named[name] is not buffer or buffer._version != versions[name]:
                self._refuse_change(name)
        return scores

    def check_constants(self) -> None:
        """Raise `InputError` if a constant buffer has changed, however the module did it."""
        for constants in self._on_device.values():
            for name, buffer in constants.items():
                if not torch.equal(buffer.cpu(), self._pristine[name]):
                    self._refuse_change(name)

    def _refuse_change(self, name: str) -> None:
        self._on_device.clear()  # later calls start from the original values
        layer, _, buffer = name.rpartition(".")
        raise InputError(
            f"{layer_name(self.module, layer)} changes its buffer '{buffer}' in forward, which only PyTorch's own "
            "normalisation layers may do: make it a constant, or use GroupNorm or LayerNorm"
        )

    def _constants(self, device: torch.device) -> dict[str, Tensor]:
        if device not in self._on_device:
            with torch.inference_mode(False):  # only ordinary tensors count their changes
                self._on_device[device] = {
                    name: buffer.to(device, copy=True) for name, buffer in self._pristine.items()
                }
        return self._on_device[device]

    def _scores(self, flat: Tensor, x: Tensor) -> Tensor:
        return self._called(self._named(flat), x)

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return class scores in evaluation mode, see `Model.logits`."""
        shared = x.expand(len(weights), *x.shape[1:])
        with _evaluating(self.module):
            if not self.whole_batch:
                return torch.stack([self._scores(flat, inputs) for flat, inputs in zip(weights, shared, strict=True)])
            rows = []
            for flat, inputs in zip(weights, shared, strict=True):
                with _drawing(0, x.device):  # for layers that draw random numbers in evaluation mode as well
                    rows.append(self._called(self._values(flat), inputs))
            return torch.stack(rows)

    def training_scores(self, flat: Tensor, x: Tensor) -> Tensor:
        """Return scores (B, ...) of weights (d,) on inputs x (B, ...) in training mode."""
        with _drawing(0, x.device):
            return self._called(self._values(flat), x)

    def descend(
        self, weights: Tensor, batch: Batch, clip_norm: float | None, scale: Tensor, into: Tensor | None = None
    ) -> None:
        """Subtract the clipped gradients, see `Model.descend`."""
        if clip_norm is not None and not self.per_record:
            raise ValueError("this model was made for training without clipping (per_record=False)")
        if self.whole_batch:
            self._descend_together(weights, batch, scale, into)
            return

        if self.fast(weights) and clip_norm is not None:
            for row, target in enumerate(weights if into is None else into):
                self._descend_fast(weights[row], target, batch.x[row], batch.targets[row], clip_norm, scale[row])
            return

        def loss(flat: Tensor, sample: Tensor, target: Tensor) -> Tensor:
            return sample_losses(self.objective, self._scores(flat, sample[None]), target[None]).sum()

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

    def fast(self, weights: Tensor) -> bool:
        """Return whether gradients of single records need no torch.func, on the device of these weights."""
        return self.slow_reason is None and self.per_record and weights.device.type == "cpu"

    def _descend_fast(
        self, flat: Tensor, target: Tensor, inputs: Tensor, targets: Tensor, clip_norm: float, scale: Tensor
    ) -> None:
        """Make the step of one row, weights (d,), with the rules of `fedlane.learning.module_gradients`."""
        named = self._named(flat.detach())
        step = torch.zeros_like(flat)
        steps = self._named(step)
        for x, labels, amount in zip(
            *(torch.split(part, self.chunk) for part in (inputs, targets, scale)), strict=True
        ):
            losses = partial(sample_losses, self.objective, targets=labels)
            gradients = record_gradients(self.module, losses, partial(self._called, dict(named), x), len(labels))
            square = gradients.squared_norms()
            finite = torch.isfinite(square)
            if not bool(finite.all()):
                gradients.drop(~finite)
            factor = torch.where(finite, amount * (clip_norm / square.sqrt().clamp(min=clip_norm)), 0.0)
            for name, total in gradients.sums(factor):
                steps[name] += total
        target -= step

    def _descend_together(self, weights: Tensor, batch: Batch, scale: Tensor, into: Tensor | None) -> None:
        """Make one step of every row with its whole batch; places without a record do not enter the module."""
        if batch.seeds is None or (into is not None and into is not weights):
            raise ValueError("a model that trains on whole batches needs Batch.seeds, and is updated in place")
        for row, seed in enumerate(batch.seeds.tolist()):
            real = slice(None) if batch.mask is None else batch.mask[row]
            with torch.inference_mode(False), torch.enable_grad(), _drawing(seed, weights.device):
                leaf = weights[row].clone().requires_grad_()
                named = self._values(leaf)
                scores = self._called(named, batch.x[row][real].clone())
                losses = sample_losses(self.objective, scores, batch.targets[row][real].clone())
                (gradient,) = torch.autograd.grad((losses * scale[row][real].clone()).sum(), leaf)
            weights[row] -= gradient  # 0 for the running statistics
            if self.state:
                weights[row, self.trained :] = torch.cat([named[name].reshape(-1).float() for name in self.state])

    def bytes_per_sample(self) -> int:
        """Return the approximate memory in bytes that one sample needs during training."""
        return 8 * self.size

    def tensors(self, weights: Tensor) -> dict[str, Tensor]:
        """Return the weights (d,) under the names of the module's parameters and running statistics."""
        named = {name: tensor.contiguous() for name, tensor in self._named(weights).items()}
        if weights.is_floating_point():
            named |= {name: _as_type(named[name], buffer.dtype) for name, buffer in self.state.items()}
        return named


def _seeded(make: Callable[[], torch.nn.Module], seed: int) -> torch.nn.Module:
    """Call ``make`` with PyTorch's generator seeded, and restore the generator."""
    with _drawing(seed, torch.device("cpu")):
        return make()


@contextmanager
def _drawing(seed: int, device: torch.device) -> Iterator[None]:
    """Let PyTorch's random layers draw the numbers of a seed, and restore the generators afterwards."""
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
        torch.manual_seed(seed)
        yield


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Switch every layer to evaluation mode, and back to its own mode afterwards."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def _as_type(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert running statistics to their type; averages of counters are rounded."""
    return values.to(dtype) if dtype.is_floating_point else values.round().to(dtype)
