"""Models by name: the built-in ones, and a user's `torch.nn.Module`."""

import importlib
import sys
from collections.abc import Sequence

import torch

from fedlane.learning.architectures import MODELS, architecture
from fedlane.learning.layered_model import LayeredModel
from fedlane.learning.model_interface import Batch, Model
from fedlane.learning.module_model import ModuleModel
from fedlane.validate import InputError, unknown

__all__ = ["Batch", "LayeredModel", "Model", "ModuleModel", "make_model"]


def make_model(name: str, input_shape: Sequence[int], classes: int) -> Model:
    """Return a built-in model, or a user's module.

    Args:
        name: A built-in model's name, or ``package.module:Class`` for a class or function that is called without
            arguments and returns a `torch.nn.Module`.
        input_shape: (planes, height, width) of the images.
        classes: Number of classes, M.

    Raises:
        InputError: If the name is unknown, or the module cannot be created or trained with per-sample clipping.
    """
    if name in MODELS:
        return LayeredModel(architecture(name, input_shape, classes))
    path, colon, attribute = name.partition(":")
    if not colon:
        raise unknown("model", name, MODELS)
    sys.path.insert(0, "")
    try:
        make = getattr(importlib.import_module(path), attribute)
        module = make()
    except Exception as error:  # a user's code may raise anything
        raise InputError(f"learning.model '{name}' cannot be created: {error}") from error
    finally:
        sys.path.remove("")
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"learning.model '{name}' must be a torch.nn.Module, got {type(module).__name__}")
    model = ModuleModel(make)
    _check_module(name, module, model, input_shape, classes)
    return model


def _check_module(
    name: str, module: torch.nn.Module, model: ModuleModel, input_shape: Sequence[int], classes: int
) -> None:
    """Raise InputError unless the module takes the images, scores all classes and has per-sample gradients."""
    planes, height, width = input_shape
    weights = model.initial(0)[None]
    try:
        shape = tuple(module(torch.zeros(2, planes, height, width)).shape)
    except Exception as error:
        size = f"{planes} x {height} x {width}"
        raise InputError(f"learning.model '{name}' does not accept images of {size}: {error}") from error
    if shape != (2, classes):
        raise InputError(f"learning.model '{name}' must return {classes} scores per sample, got shape {shape[1:]}")
    batch = Batch(torch.zeros(1, 2, height, width, planes), torch.eye(classes)[None, :2])
    try:
        model.descend(weights, batch, 1.0, torch.ones(1, 2))
    except Exception as error:  # for example dropout, which would need random numbers for every sample
        raise InputError(f"learning.model '{name}' has no per-sample gradients: {error}") from error
