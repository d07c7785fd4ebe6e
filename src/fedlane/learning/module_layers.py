"""Layers of a user's module that need attention: they mix records, draw random numbers or keep running statistics."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.lazy import LazyModuleMixin

from fedlane.validate import InputError

WITHOUT_PRIVACY = 'privacy.mechanism = "none" (LaneClient: epsilon=None)'
"""The remedy for every layer that has no gradients of single records."""


def layer_name(module: torch.nn.Module, name: str) -> str:
    """Return a layer as error messages name it: ``layer 'features.1' (BatchNorm2d)``."""
    kind = type(module.get_submodule(name)).__name__
    return f"layer '{name}' ({kind})" if name else f"model {kind}"


def check_layers(module: torch.nn.Module, *, per_record: bool) -> None:
    """Refuse layers by their type.

    Args:
        module: The user's module.
        per_record: Whether every record needs a gradient of its own, as clipping does.

    Raises:
        InputError: The module has a layer that cannot be trained in this way; the message names layer and remedy.
    """
    for name, layer in module.named_modules():
        label = layer_name(module, name)
        if per_record and isinstance(layer, _BatchNorm):
            raise InputError(
                f"{label} mixes the records of a batch, which per-record clipping does not allow: "
                f"use GroupNorm, or {WITHOUT_PRIVACY}"
            )
        if per_record and isinstance(layer, _NormBase) and layer.track_running_stats:
            raise InputError(
                f"{label} keeps running statistics of the records, which per-record clipping does not allow: "
                f"set track_running_stats=False, or use {WITHOUT_PRIVACY}"
            )
        if per_record and is_random(layer):
            raise InputError(
                f"{label} draws random numbers, which per-record gradients do not support: "
                f"remove it or set its dropout probability to 0, or use {WITHOUT_PRIVACY}"
            )
        if isinstance(layer, torch.nn.SyncBatchNorm):
            raise InputError(
                f"{label} synchronises the processes of one training, which a federation does not have: use BatchNorm"
            )
        if isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params():  # type: ignore[misc]
            usual = type(layer).__name__.removeprefix("Lazy")
            raise InputError(f"{label} has no shape before its first input: use {usual} with its sizes")


def needs_whole_batch(module: torch.nn.Module) -> bool:
    """Return whether a layer's type shows that a batch cannot be trained record by record."""
    return any(
        isinstance(layer, _BatchNorm)
        or (isinstance(layer, _NormBase) and layer.track_running_stats)
        or is_random(layer)
        for layer in module.modules()
    )


def is_random(layer: torch.nn.Module) -> bool:
    """Return whether a layer is known to draw random numbers: dropout, or attention and recurrence with dropout."""
    if not layer.training:
        return False
    if isinstance(layer, torch.nn.RReLU):
        return layer.lower < layer.upper
    if isinstance(layer, _DropoutNd):
        return layer.p > 0
    return isinstance(layer, torch.nn.MultiheadAttention | torch.nn.RNNBase) and layer.dropout > 0


def running_statistics(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return the buffers that normalisation layers update in training, by name."""
    return {
        f"{name}.{key}" if name else key: buffer
        for name, layer in module.named_modules()
        if isinstance(layer, _NormBase) and layer.track_running_stats
        for key, buffer in layer.named_buffers(recurse=False)
    }


def constant_buffers(module: torch.nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield every other buffer: its name, its value, and whether the module's state dict holds it."""
    changing, saved = running_statistics(module), module.state_dict()
    for name, buffer in module.named_buffers():
        if name not in changing:
            yield name, buffer, name in saved
