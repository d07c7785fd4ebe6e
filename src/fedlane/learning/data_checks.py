"""Checks of a user's data when it arrives, and its arrays as a data set. Every error is one line."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.learning.data_targets import read_targets
from fedlane.learning.dataset_records import Dataset, DatasetInfo, Samples
from fedlane.records import IntArray
from fedlane.validate import InputError, nearest, printable

REQUIRED = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("client_train", "classes")
LARGEST_INPUT = 1e6
"""Largest absolute value of an input, and number of tokens in a vocabulary."""
MAX_COUNTS = 200_000_000
"""Largest number of clients times classes."""
MAX_PLANES = 4
"""Largest number of planes of an image whose planes come first."""


def dataset_of_arrays(name: str, arrays: Mapping[str, Any]) -> Dataset:
    """Check a user's arrays and return them as a data set.

    Args:
        name: The data set as the scenario names it.
        arrays: ``x_train``, ``y_train``, ``x_test``, ``y_test``, and optionally ``client_train`` and ``classes``.

    Raises:
        InputError: An array is missing, unknown, or has values that cannot be used.
    """
    label = f"data.dataset '{name}'"
    values = {key: np.asarray(value) for key, value in _named(label, arrays).items()}
    inputs = {part: _inputs(f"{label}: x_{part}", values[f"x_{part}"]) for part in ("train", "test")}
    _check_alike(label, inputs)
    samples = {part: len(x) for part, x in inputs.items()}
    learned = read_targets(label, {part: values[f"y_{part}"] for part in inputs}, samples, values.get("classes"))
    labels, classes = learned.labels, learned.classes
    clients, natural = None, None
    if "client_train" in values:
        clients = _clients(f"{label}: client_train", values["client_train"], len(inputs["train"]))
        natural = _natural_counts(label, clients, labels["train"], classes)
    x, y = inputs["train"], learned.targets or labels
    whole = x.dtype == np.int32
    info = DatasetInfo(
        name=name,
        title="a user's data set",
        input_shape=(x.shape[3], *x.shape[1:3]) if x.ndim == 4 else x.shape[1:],
        classes=classes,
        train_per_class=0,
        test_per_class=0,
        licence="the user's",
        tokens=1 + int(max(part.max() for part in inputs.values())) if whole else None,
        totals=tuple(np.bincount(labels["train"], minlength=classes).tolist()),
        natural=natural,
        digest=_digest([*inputs.values(), *y.values(), *([] if clients is None else [clients])]),
        value_bytes=x.dtype.itemsize,
        objective=learned.objective,
        targets=learned.outputs,
    )
    return Dataset(
        info,
        Samples(x, labels["train"], clients, learned.of("train")),
        Samples(inputs["test"], labels["test"], None, learned.of("test")),
    )


def _named(label: str, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arrays; raise `InputError` if one is missing or has an unknown name."""
    missing = [key for key in REQUIRED if key not in arrays]
    if missing:
        raise InputError(f"{label} must have {', '.join(REQUIRED)}: {missing[0]} is missing")
    other = next((str(key) for key in arrays if key not in REQUIRED + OPTIONAL), None)
    if other is not None:
        hint = nearest(other, REQUIRED + OPTIONAL) or f": arrays are {', '.join(REQUIRED + OPTIONAL)}"
        raise InputError(f"{label} has an unknown array '{printable(other)}'{hint}")
    return arrays


def _inputs(label: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return inputs in the form in which they are stored: bytes, float32, or int32 for tokens."""
    if x.ndim < 2 or 0 in x.shape:
        raise InputError(f"{label} must have the shape (samples, ...) with at least one value, got {x.shape}")
    if x.dtype == np.uint8:
        if x.ndim not in (3, 4):
            raise InputError(
                f"{label} has bytes, which are images (n, height, width) or (n, height, width, planes), and the shape "
                f"{x.shape}: store features as floats, and tokens as 16-bit or larger integers"
            )
        return _planes_last(x[..., None] if x.ndim == 3 else x)
    if x.dtype.kind in "iu":
        low, high = int(x.min()), int(x.max())
        if low < 0 or high >= LARGEST_INPUT:
            raise InputError(
                f"{label} has integers, which are tokens from 0 to {LARGEST_INPUT - 1:.0f}, got {low} to {high}: "
                "store features as floats"
            )
        return np.ascontiguousarray(x, np.int32)
    if x.dtype.kind not in "fb":
        raise InputError(f"{label} must hold numbers, got {x.dtype}")
    smallest, largest = float(x.min()), float(x.max())  # NaN if any value is
    if not (smallest >= -LARGEST_INPUT and largest <= LARGEST_INPUT):
        worst = largest if not largest <= LARGEST_INPUT else smallest
        raise InputError(f"{label} must be finite and from {-LARGEST_INPUT:g} to {LARGEST_INPUT:g}, got {worst:g}")
    floats = np.ascontiguousarray(x, np.float32)
    return _planes_last(floats) if floats.ndim == 4 else floats


def _planes_last(images: NDArray[Any]) -> NDArray[Any]:
    """Return images (n, height, width, planes), also if the planes came first."""
    first, last = images.shape[1], images.shape[3]
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1) if first <= MAX_PLANES < last else images)


def _check_alike(label: str, inputs: Mapping[str, NDArray[Any]]) -> None:
    """Raise `InputError` unless training and test inputs have the same shape and type."""
    (train, test), described = inputs.values(), []
    for x in (train, test):
        kind = {"u": "bytes", "i": "tokens", "f": "floats"}[x.dtype.kind]
        described.append(f"{kind} {x.shape[1:]}")
    if described[0] != described[1]:
        raise InputError(f"{label}: x_test must have the inputs of x_train, {described[0]}, got {described[1]}")


def _clients(label: str, ids: NDArray[Any], samples: int) -> IntArray:
    """Return the index of each sample's client, in the order of their ids."""
    if ids.dtype.kind not in "iuUS" or ids.shape != (samples,):
        raise InputError(
            f"{label} must hold one client id per sample ({samples}), integers or strings, got {ids.dtype} {ids.shape}"
        )
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)


def _natural_counts(label: str, clients: IntArray, labels: IntArray, classes: int) -> IntArray:
    """(K, M): samples of each class at each of the data's clients."""
    count = int(clients.max()) + 1
    if count * classes > MAX_COUNTS:
        raise InputError(f"{label} has too many clients and classes: {count:,} x {classes:,}")
    return np.bincount(clients * classes + labels, minlength=count * classes).reshape(count, classes)


def _digest(arrays: list[NDArray[Any]]) -> str:
    """Return the SHA-256 of arrays, with their types and shapes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
