"""Checks of a saved schedule before it is used: compiled code and PyTorch index arrays with what it holds."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.files import fitting_array
from fedlane.learning.datasets import dataset_info
from fedlane.learning.optimization import Optimization
from fedlane.learning.own_data import is_own_data
from fedlane.validate import SMALLEST_CLIP_NORM, InputError

Arrays = Mapping[str, NDArray[Any]]
SCALARS = {
    "dataset": "text",
    "model": "text",
    "learning_rate": np.float64,
    "evaluate_every": np.int64,
    "mechanism.name": "text",
    "mechanism.sampling": "text",
    "mechanism.clip_norm": np.float64,
    "mechanism.local_iterations": np.int64,
    "mechanism.histogram_noise": np.float64,
    "digest": "text",
    "natural": np.bool_,
}
"""Type of each value of a learning task that is not an array."""
LATER = {"digest": np.array(""), "natural": np.array(False)}
"""Values that older schedules lack."""
MAX_STEPS, MAX_BATCH, LARGEST = 100_000, 1_000_000, 1e12
"""Largest number of local iterations and of records in a batch, and largest noise and learning rate."""


def checked_task(arrays: Arrays) -> dict[str, Any]:
    """Return the values of a learning task by name, from the arrays of a file.

    Raises:
        KeyError: A value is missing.
        InputError: A value has the wrong type or shape, or is out of bounds.
    """
    arrays = {**LATER, **arrays}
    values: dict[str, Any] = {name: _scalar(arrays, name, kind) for name, kind in SCALARS.items()}
    counts = arrays["label_counts"]
    if counts.ndim != 3 or 0 in counts.shape:
        raise InputError(f"label_counts must have 3 axes, got shape {counts.shape}")
    replicas, clients, _ = counts.shape
    shapes: dict[str, tuple[type, tuple[int, ...]]] = {
        "label_counts": (np.int64, counts.shape),
        "seeds": (np.int64, (replicas,)),
        **{f"mechanism.{name}": (np.int64, (clients,)) for name in ("asked_batch", "max_uploads")},
        **{f"mechanism.{name}": (np.float64, (clients,)) for name in ("epsilon", "delta")},
        "mechanism.batch_size": (np.int64, (replicas, clients)),
        **{
            f"mechanism.{name}": (np.float64, (replicas, clients))
            for name in ("sample_rate", "step_noise", "upload_noise")
        },
    }
    values |= {name: _array(arrays, name, kind, shape) for name, (kind, shape) in shapes.items()}
    _check_ranges(values)
    return values


def checked_optimization(arrays: Arrays) -> Optimization:
    """Return the optimisers of a learning task; a file of 0.1.0 has none of these values, and averages by size.

    Raises:
        KeyError: Some of the values are missing.
        InputError: A value has the wrong type or shape, or is out of bounds.
    """
    prefix = "optimization."
    if not any(name.startswith(prefix) for name in arrays):
        return Optimization()
    kinds = {str: "text", int: np.int64, float: np.float64}
    return Optimization(
        **{f.name: _scalar(arrays, prefix + f.name, kinds[type(f.default)]) for f in fields(Optimization)}
    )


def checked_rounds(arrays: Arrays, replicas: int, clients: int) -> dict[str, NDArray[Any]]:
    """Return the rounds of a schedule by name: client, punctual and delay_s.

    Raises:
        KeyError: An array is missing.
        InputError: An array has the wrong type or shape, or is out of bounds.
    """
    shape = np.shape(arrays["client"])
    if len(shape) != 3 or shape[0] != replicas or 0 in shape:
        raise InputError(f"client must have the shape ({replicas}, rounds, channels), got {shape}")
    client = _array(arrays, "client", np.int32, shape)
    punctual = _array(arrays, "punctual", np.bool_, shape)
    delay_s = _array(arrays, "delay_s", np.float64, shape[:2])
    _within("client", client, -1, clients - 1)
    ordered = np.sort(client, axis=2)
    if np.any((np.diff(ordered, axis=2) == 0) & (ordered[:, :, 1:] >= 0)) or np.any(punctual & (client < 0)):
        raise InputError("client must name a client at most once in a round, and punctual only channels with a client")
    _within("delay_s", delay_s, 0, LARGEST)
    return {"client": client, "punctual": punctual, "delay_s": delay_s}


def _scalar(arrays: Arrays, name: str, kind: Any) -> Any:
    array = arrays[name]
    if kind != "text":
        return _array(arrays, name, kind, ()).item()
    if array.dtype.kind != "U" or array.ndim:
        raise InputError(f"{name} must be a text, got {array.dtype} {array.shape}")
    return array.item()


def _array(arrays: Arrays, name: str, kind: type, shape: tuple[int, ...]) -> NDArray[Any]:
    return fitting_array(arrays, name, np.broadcast_to(np.zeros((), kind), shape))


def _check_ranges(values: Mapping[str, Any]) -> None:
    """Raise `InputError` if a number of a learning task is out of bounds."""
    counts = values["label_counts"]
    _within("label_counts", counts, 0, None)
    sizes = counts.sum(axis=2)
    if not is_own_data(values["dataset"]):  # a user's data set is loaded, and compared, when training starts
        _check_totals(counts, values["dataset"])
    _within("samples of a client", sizes, 1, None)
    _within("seeds", values["seeds"], 0, None)
    _within("learning_rate", values["learning_rate"], 0, LARGEST)
    _within("evaluate_every", values["evaluate_every"], 1, None)
    if values["mechanism.sampling"] not in ("fixed", "poisson"):
        raise InputError(f"mechanism.sampling must be fixed or poisson, got '{values['mechanism.sampling']}'")
    for name, low, high in (
        ("clip_norm", SMALLEST_CLIP_NORM, np.inf),
        ("local_iterations", 1, MAX_STEPS),
        ("asked_batch", 1, MAX_BATCH),
        ("batch_size", 1, sizes),
        ("sample_rate", 1e-300, 1.0),
        ("step_noise", 0, LARGEST),
        ("upload_noise", 0, LARGEST),
        ("histogram_noise", 0, LARGEST),
    ):
        _within(f"mechanism.{name}", values[f"mechanism.{name}"], low, high)
    if values["mechanism.sampling"] == "fixed":
        _within("mechanism.batch_size", values["mechanism.batch_size"], 1, values["mechanism.asked_batch"].max())


def _check_totals(counts: NDArray[Any], dataset: str) -> None:
    """Raise `InputError` unless a data set has as many samples of each class as label_counts."""
    totals = dataset_info(dataset).class_totals
    if counts.shape[2] != len(totals) or np.any(counts.sum(axis=1) > totals):
        raise InputError(f"label_counts has more samples of a class than data set {dataset}")


def _within(name: str, value: Any, low: float, high: Any) -> None:
    """Raise `InputError` unless all entries lie in [low, high], which NaN does not."""
    if not np.all((np.asarray(value) >= low) & (True if high is None else np.asarray(value) <= high)):
        bound = "" if high is None else f" and at most {np.max(high):g}"
        raise InputError(f"{name} must be at least {low:g}{bound}")
