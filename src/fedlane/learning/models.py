"""Models by name: the built-in ones, and a user's `torch.nn.Module`."""

import importlib
import sys
from collections.abc import Sequence

import torch

from fedlane.learning.architectures import MODELS, architecture
from fedlane.learning.layered_model import LayeredModel
from fedlane.learning.model_interface import Batch, Model
from fedlane.learning.module_checks import checked_module
from fedlane.learning.module_model import ModuleModel
from fedlane.validate import InputError, unknown

__all__ = ["Batch", "LayeredModel", "Model", "ModuleModel", "make_model"]


def make_model(name: str, input_shape: Sequence[int], classes: int, *, per_record: bool = True) -> Model:
    """Return a built-in model, or a user's module.

    Args:
        name: A built-in model's name, or ``package.module:Class`` for a class or function that is called without
            arguments and returns a `torch.nn.Module`.
        input_shape: (planes, height, width) of the images.
        classes: Number of classes, M.
        per_record: Whether every record needs a gradient of its own, as every mechanism but `none` does.

    Raises:
        InputError: If the name is unknown, or the module cannot be created or trained.
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
    return checked_module(make, input_shape, classes, per_record=per_record, label=f"learning.model '{name}'")
