"""A client's model between two forms: named arrays as they travel, and the flat weights that training moves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, MetricRecord
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedlane.learning.architectures import MODELS
from fedlane.learning.evaluate import evaluate
from fedlane.learning.models import Batch, Model, ModuleModel, make_model
from fedlane.validate import InputError

ModelSource = str | Callable[[], torch.nn.Module]
"""A built-in name (mlp, cnn, softmax), ``package.module:Class``, or what makes a module when called: its class."""
EVALUATION_BYTES = 2e8


def build_model(source: ModelSource, input_shape: Sequence[int], classes: int) -> Model:
    """The model of a client whose inputs have this shape: (planes, height, width), or any other for own modules.

    Whatever would go wrong in training goes wrong here, before an upload is spent on it.
    """
    if isinstance(source, str) and (source in MODELS or len(input_shape) == 3):
        shape = (*(1,) * (3 - len(input_shape)), *input_shape)  # mlp and softmax flatten whatever they get
        return make_model(source, shape, classes)
    if isinstance(source, str):
        raise InputError(f"model '{source}' by name needs inputs (planes, height, width): pass its class instead")
    model = ModuleModel(source)
    name = type(model.module).__name__
    if any(not parameter.is_floating_point() or not parameter.requires_grad for parameter in model.module.parameters()):
        raise InputError(f"model {name} has parameters that are not trained: they have no per-sample gradients")
    inputs = torch.zeros(1, 2, *stored_shape(input_shape))
    weights = model.initial(0)[None]
    try:
        scores = model.logits(weights, inputs)
    except Exception as error:  # a user's own code may fail in any way
        raise InputError(f"model {name} does not take inputs {tuple(input_shape)}: {_line(error)}") from error
    if scores.shape != (1, 2, classes):
        raise InputError(f"model {name} must give {classes} scores a sample, got {tuple(scores.shape[2:])}")
    try:
        model.descend(weights, Batch(inputs, torch.eye(classes)[None, [0, 0]]), 1.0, torch.ones(1, 2))
    except Exception as error:  # dropout, for one: every sample would need its own random numbers
        raise InputError(f"model {name} has no per-sample gradients: {_line(error)}") from error
    return model


def stored_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    """How one input is stored for training: images with their planes last."""
    shape = tuple(input_shape)
    return (*shape[1:], shape[0]) if len(shape) == 3 else shape


def as_flat(model: Model, arrays: Mapping[str, NDArray[Any]]) -> Tensor:
    """Named arrays as one row of weights (1, d). Other names, shapes or kinds of number than the model's: refused."""
    places = _places(model)
    if arrays.keys() != places.keys():
        strange = sorted(arrays.keys() ^ places.keys())
        raise InputError(f"the server's model has other arrays than this client's: {', '.join(strange[:4])}")
    flat = torch.empty(model.size)
    for name, place in places.items():
        array = arrays[name]
        if array.shape != tuple(place.shape) or not np.issubdtype(array.dtype, np.floating):
            raise InputError(
                f"the server's array {name!r} is {array.dtype} {array.shape}, here it is float {tuple(place.shape)}"
            )
        flat[place.reshape(-1)] = torch.from_numpy(np.array(array, np.float32).reshape(-1))
    return flat[None]


def as_arrays(model: Model, flat: Tensor, like: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Weights (d,) as the arrays that came: the same names in the same order, shapes and kinds of number."""
    places = _places(model)
    return ArrayRecord({name: Array(flat[places[name]].numpy().astype(array.dtype)) for name, array in like.items()})


def first_arrays(model: ModelSource, input_shape: Sequence[int], classes: int, seed: int = 0) -> ArrayRecord:
    """A fresh model for the server to begin with."""
    made = build_model(model, input_shape, classes)
    return ArrayRecord(
        {name: Array(tensor.detach().numpy()) for name, tensor in made.tensors(made.initial(seed)).items()}
    )


def evaluate_arrays(
    model: ModelSource, arrays: ArrayRecord, inputs: ArrayLike | Tensor, labels: ArrayLike | Tensor, classes: int
) -> MetricRecord:
    """Loss and accuracy of a model on some samples; for a server's evaluation on public data."""
    stored, targets = as_stored(inputs, labels, classes)
    made = build_model(model, original_shape(stored), classes)
    weights = as_flat(made, {name: array.numpy() for name, array in arrays.items()})
    with torch.no_grad():
        accuracy, loss = evaluate(made, weights, stored, targets, EVALUATION_BYTES)
    return MetricRecord({"loss": float(loss[0]), "accuracy": float(accuracy[0])})


def as_stored(inputs: ArrayLike | Tensor, labels: ArrayLike | Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Samples as training stores them. inputs: (n, planes, height, width), or (n, ...) as the model takes them; bytes
    (0 to 255, which become 0 to 1) or floats. labels: (n,) whole numbers from 0 to classes - 1."""
    x, y = torch.as_tensor(inputs), torch.as_tensor(labels)
    if x.ndim < 2 or len(x) == 0 or y.shape != x.shape[:1]:
        raise InputError(f"data must be inputs (n, ...) and labels (n,), got {tuple(x.shape)} and {tuple(y.shape)}")
    if y.is_floating_point() or y.is_complex() or int(y.min()) < 0 or int(y.max()) >= classes:
        raise InputError(f"labels must be whole numbers from 0 to {classes - 1}")
    if x.dtype != torch.uint8:
        if not x.is_floating_point():
            raise InputError(f"inputs must be bytes or floats, got {x.dtype}")
        x = x.to(torch.float32)
        if not bool(torch.isfinite(x).all()):
            raise InputError("inputs must be finite")
    return (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).contiguous(), y.to(torch.int64)


def original_shape(stored: Tensor) -> tuple[int, ...]:
    """The shape of one input as it was given."""
    shape = tuple(stored.shape[1:])
    return (shape[-1], *shape[:-1]) if len(shape) == 3 else shape


def _places(model: Model) -> dict[str, Tensor]:
    """For every named array, where its elements lie in the flat weights."""
    return model.tensors(torch.arange(model.size))


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
