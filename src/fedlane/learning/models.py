"""Models by name: the built-in ones, and a user's `torch.nn.Module`."""

import importlib
from collections.abc import Sequence

import torch

from fedlane.learning.architectures import MODELS, architecture
from fedlane.learning.dataset_records import CLASSES, DatasetInfo, Objective
from fedlane.learning.layered_model import LayeredModel
from fedlane.learning.model_interface import Batch, Model
from fedlane.learning.module_checks import checked_module
from fedlane.learning.module_model import ModuleModel
from fedlane.learning.user_imports import importing_from_here
from fedlane.validate import InputError, first_line, unknown

__all__ = ["Batch", "LayeredModel", "Model", "ModuleModel", "dataset_model", "make_model"]


def dataset_model(name: str, data: DatasetInfo, *, per_record: bool = True) -> Model:
    """Return a model for a data set, see `make_model`."""
    shape, outputs = data.input_shape, data.outputs
    return make_model(name, shape, outputs, per_record=per_record, tokens=data.tokens, objective=data.objective)


def make_model(
    name: str,
    input_shape: Sequence[int],
    classes: int,
    *,
    per_record: bool = True,
    tokens: int | None = None,
    objective: Objective = CLASSES,
) -> Model:
    """Return a built-in model, or a user's module.

    Args:
        name: A built-in model's name, or ``package.module:Class`` for a class or function that is called without
            arguments and returns a `torch.nn.Module`.
        input_shape: (planes, height, width) of the images, or the shape of any other input.
        classes: Number of classes, or of target values, M.
        per_record: Whether every record needs a gradient of its own, as every mechanism but `none` does.
        tokens: Size of the vocabulary where inputs are tokens; None where they are numbers.
        objective: What is learned.

    Raises:
        InputError: If the name is unknown, or the module cannot be created or trained.
    """
    if name in MODELS:
        if objective.kind == "positions":
            raise InputError(f"model {name} scores whole samples: targets at every position need your own module")
        return LayeredModel(architecture(name, input_shape, classes, tokens), objective)
    path, colon, attribute = name.partition(":")
    if not colon:
        raise unknown("model", name, MODELS)
    try:
        with importing_from_here():
            make = getattr(importlib.import_module(path), attribute)
            module = make()
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise InputError(f"learning.model '{name}' cannot be created: {first_line(error)}") from error
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"learning.model '{name}' must be a torch.nn.Module, got {type(module).__name__}")
    label = f"learning.model '{name}'"
    return checked_module(
        make, input_shape, classes, per_record=per_record, label=label, tokens=tokens, objective=objective
    )
