"""Convert a client's model between named arrays, as they are sent, and the flat weights used in training."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, MetricRecord
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedlane.learning.architectures import MODELS
from fedlane.learning.evaluate import evaluate
from fedlane.learning.input_range import RecordError, check_inputs
from fedlane.learning.models import Model, make_model
from fedlane.learning.module_checks import checked_module
from fedlane.validate import InputError, PublicError

ModelSource = str | Callable[[], torch.nn.Module]
"""A built-in model's name (mlp, cnn, softmax, sequence), ``package.module:Class``, or what makes a module."""
EVALUATION_BYTES = 2e8


def build_model(
    source: ModelSource,
    input_shape: Sequence[int],
    classes: int,
    *,
    per_record: bool = True,
    tokens: int | None = None,
) -> Model:
    """Build the model for inputs of a shape: (planes, height, width), or any other shape for a user's own module.

    A model that cannot be trained is rejected here, before an upload is charged. With ``per_record``, as in all private
    training, every record needs a gradient of its own. ``tokens`` is the size of the vocabulary of token sequences.
    """
    if isinstance(source, str) and tokens is not None:
        return make_model(source, input_shape, classes, per_record=per_record, tokens=tokens)
    if isinstance(source, str) and (source in MODELS or len(input_shape) == 3):
        shape = (*(1,) * (3 - len(input_shape)), *input_shape)  # mlp and softmax flatten their inputs
        return make_model(source, shape, classes, per_record=per_record)
    if isinstance(source, str):
        raise InputError(f"model '{source}' given by name needs inputs (planes, height, width): pass its class instead")
    model = checked_module(source, input_shape, classes, per_record=per_record, tokens=tokens)
    if any(not parameter.is_floating_point() or not parameter.requires_grad for parameter in model.module.parameters()):
        raise InputError(f"model {type(model.module).__name__} has frozen parameters, which have no gradients")
    return model


def as_flat(model: Model, arrays: Mapping[str, NDArray[Any]]) -> Tensor:
    """Convert named arrays to flat weights (1, d); raise `PublicError` if names, shapes or types do not match.

    The arrays may also hold the model's constants, as a module's state dict does. They are compared and not used: a
    server cannot change a client's constants.
    """
    positions, constants = _positions(model), model.constants()
    if not positions.keys() <= arrays.keys() <= positions.keys() | constants.keys():
        surplus = sorted(arrays.keys() - positions.keys() - constants.keys())
        missing = sorted(positions.keys() - arrays.keys())
        raise PublicError(
            "the server's model and this client's have different arrays" + _listed(": ", surplus),
            _listed("; missing: ", missing),
        )
    flat = torch.empty(model.size)
    for name, position in positions.items():
        array = arrays[name]
        kind = np.floating if int(position.max()) < model.trained else np.number  # a counter is an integer
        if array.shape != tuple(position.shape) or not np.issubdtype(array.dtype, kind):
            raise PublicError(
                f"the server's array {name!r} must be float {tuple(position.shape)}, got {array.dtype} {array.shape}"
            )
        flat[position.reshape(-1)] = torch.from_numpy(np.array(array, np.float32).reshape(-1))
    for name in arrays.keys() & constants.keys():
        if not _is_constant(arrays[name], constants[name].numpy()):
            raise PublicError(
                f"the server's array {name!r} differs from this client's constant buffer: begin with "
                "first_arrays(...), which leaves constants out"
            )
    return flat[None]


def _listed(introduction: str, names: list[str]) -> str:
    return introduction + ", ".join(names[:4]) if names else ""


def as_arrays(model: Model, flat: Tensor, like: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Convert weights (d,) to named arrays with the order, shapes and types of ``like``; constants are the model's."""
    values = {name: flat[position].numpy() for name, position in _positions(model).items()}
    values |= {name: constant.numpy() for name, constant in model.constants().items()}
    return ArrayRecord({name: Array(values[name].astype(array.dtype)) for name, array in like.items()})


def _is_constant(array: NDArray[Any], constant: NDArray[Any]) -> bool:
    """Return whether a server's array is a constant, up to the rounding of its average over clients."""
    return array.shape == constant.shape and np.allclose(array, constant, rtol=1e-3, atol=1e-6)


def first_arrays(
    model: ModelSource,
    input_shape: Sequence[int],
    classes: int,
    seed: int = 0,
    *,
    private: bool = True,
    tokens: int | None = None,
) -> ArrayRecord:
    """Return a new model for the server to start with, without the constant buffers that every client has itself.

    Args:
        model: Class of a `torch.nn.Module`, or a function that returns one; or the name of a built-in model.
        input_shape: Shape of one input: (planes, height, width), or any other for your own module.
        classes: Number of classes.
        seed: Seed of the initial weights.
        private: Whether clients will train it privately; False allows batch normalisation and dropout.
        tokens: Size of the vocabulary where inputs are sequences of tokens; None where they are numbers.

    Returns:
        The model's named arrays.

    Raises:
        InputError: If the model does not fit the inputs, or cannot be trained in this way.

    Examples:
        >>> from fedlane.flower import first_arrays
        >>> arrays = first_arrays("softmax", (1, 28, 28), 10)
        >>> arrays["layer0.weight"].shape
        (10, 784)
    """
    built = build_model(model, input_shape, classes, per_record=private, tokens=tokens)
    tensors = built.tensors(built.initial(seed))
    return ArrayRecord({name: Array(tensor.detach().numpy()) for name, tensor in tensors.items()})


def evaluate_arrays(
    model: ModelSource,
    arrays: ArrayRecord,
    inputs: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    classes: int,
    tokens: int | None = None,
) -> MetricRecord:
    """Evaluate a model on some samples, for example on the server's public test data.

    Args:
        model: Class of a `torch.nn.Module`, or a function that returns one; or the name of a built-in model.
        arrays: The model's named arrays.
        inputs: Samples (n, planes, height, width), or (n, ...) as the model takes them; bytes, floats or tokens.
        labels: Integer labels (n,) from 0 to classes - 1.
        classes: Number of classes.
        tokens: Size of the vocabulary where inputs are tokens; None where they are numbers.

    Returns:
        The metrics `loss` (mean cross-entropy) and `accuracy`.

    Raises:
        InputError: If model, arrays and samples do not fit together.

    Examples:
        >>> import numpy as np
        >>> from fedlane.flower import evaluate_arrays, first_arrays
        >>> arrays = first_arrays("softmax", (1, 8, 8), 3)
        >>> metrics = evaluate_arrays("softmax", arrays, np.zeros((6, 1, 8, 8)), np.arange(6) % 3, 3)
        >>> sorted(metrics)
        ['accuracy', 'loss']
    """
    stored, targets = as_stored(inputs, labels, classes, tokens)
    built = build_model(model, original_shape(stored), classes, per_record=False, tokens=tokens)
    weights = as_flat(built, {name: array.numpy() for name, array in arrays.items()})
    with torch.no_grad():
        accuracy, loss = evaluate(built, weights, stored, targets, EVALUATION_BYTES)
    return MetricRecord({"loss": float(loss[0]), "accuracy": float(accuracy[0])})


def as_stored(
    inputs: ArrayLike | Tensor, labels: ArrayLike | Tensor, classes: int, tokens: int | None = None
) -> tuple[Tensor, Tensor]:
    """Convert samples to the form that training stores, after checking them.

    Inputs are (n, planes, height, width), or (n, ...) as the model takes them: bytes, which training scales to 0 to 1,
    or floats. With ``tokens``, they are whole numbers from 0 to tokens - 1. Labels (n,) are integers from 0 to
    classes - 1.
    """
    x, y = torch.as_tensor(inputs), torch.as_tensor(labels)
    if x.ndim < 2 or len(x) == 0 or y.shape != x.shape[:1]:
        raise RecordError(
            f"data must be inputs (n, ...) and labels (n,), got shapes {tuple(x.shape)} and {tuple(y.shape)}"
        )
    if y.is_floating_point() or y.is_complex() or int(y.min()) < 0 or int(y.max()) >= classes:
        raise RecordError(f"labels must be integers from 0 to {classes - 1}")
    if tokens is not None:
        return _as_tokens(x, tokens), y.to(torch.int64)
    if x.dtype != torch.uint8:
        if not x.is_floating_point():
            raise InputError(f"inputs must be bytes or floats, got {x.dtype}; for tokens, give the number of them")
        x = x.to(torch.float32)
        check_inputs(x)
    return (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).contiguous(), y.to(torch.int64)


def original_shape(stored: Tensor) -> tuple[int, ...]:
    """Return the shape of one input as the user gave it."""
    shape = tuple(stored.shape[1:])
    return (shape[-1], *shape[:-1]) if len(shape) == 3 else shape


def _positions(model: Model) -> dict[str, Tensor]:
    """Return, for each named array, the positions of its elements in the flat weights."""
    return model.tensors(torch.arange(model.size))


def _as_tokens(x: Tensor, tokens: int) -> Tensor:
    """Return tokens as training stores them, after checking them."""
    if x.is_floating_point() or x.is_complex() or int(x.min()) < 0 or int(x.max()) >= tokens:
        raise RecordError(f"inputs must be tokens, whole numbers from 0 to {tokens - 1}")
    return x.to(torch.int32).contiguous()
