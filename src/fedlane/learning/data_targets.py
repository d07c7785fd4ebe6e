"""What is learned from a user's data: its classes, numbers or sequences of classes, checked when they arrive.

Data is divided, and label counts are kept, by classes. Where numbers are learned, the classes are the tenths between
the deciles of the first number in the test data, which the server has; for sequences, a sample counts under its last
class. Either way a sample counts once, as the noise of released label counts requires.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.learning.dataset_records import CLASSES, Objective
from fedlane.records import IntArray
from fedlane.validate import InputError

MAX_CLASSES, MAX_VALUES, LARGEST_TARGET = 100_000, 10_000, 1e6
"""Largest number of classes and of numbers to learn per sample, and largest absolute value of such a number."""
PARTS = 10
"""Number of classes by which data with numbers is divided."""

Split = Mapping[str, NDArray[Any]]
"""Arrays of the training and the test data, under ``train`` and ``test``."""


@dataclass(frozen=True)
class DataTargets:
    """What is learned, and the classes by which the data is divided.

    Attributes:
        labels: (n,) classes of the training and the test samples.
        classes: Number of these classes.
        objective: What is learned.
        outputs: Number of outputs of a model, if they are not these classes; else 0.
        targets: What is learned of each sample, if not its class.
    """

    labels: Mapping[str, IntArray]
    classes: int
    objective: Objective = CLASSES
    outputs: int = 0
    targets: Split | None = None

    def of(self, part: str) -> NDArray[Any] | None:
        """Return what is learned of the samples of ``train`` or ``test``; None if it is their class."""
        return None if self.targets is None else self.targets[part]


def read_targets(label: str, y: Split, samples: Mapping[str, int], classes: NDArray[Any] | None) -> DataTargets:
    """Check the targets of a data set.

    Args:
        label: The data set as error messages name it.
        y: Classes (n,), numbers (n,) or (n, M), or classes of sequences (n, L).
        samples: Number of training and of test samples.
        classes: The number of classes, if the data set has it.

    Raises:
        InputError: Training and test targets differ in kind, or cannot be used.
    """
    for part, values in y.items():
        if values.dtype.kind not in "iubf" or values.shape[:1] != (samples[part],) or values.ndim > 2:
            raise InputError(
                f"{label}: y_{part} must hold one number or one row of numbers per sample ({samples[part]}), "
                f"got {values.dtype} {values.shape}"
            )
    kinds = {part: _kind(values) for part, values in y.items()}
    if kinds["train"] != kinds["test"] or y["train"].shape[1:] != y["test"].shape[1:]:
        raise InputError(
            f"{label}: y_test must have the targets of y_train, {_described(y['train'])}, got {_described(y['test'])}"
        )
    if kinds["train"] == "values":
        if classes is not None:
            raise InputError(f"{label}: classes are for whole numbers, but y_train has floats, which are not classes")
        return _values(label, y)
    if 0 in y["train"].shape:
        raise InputError(f"{label}: y_train must have at least one target per sample, got {y['train'].shape}")
    whole = {part: _whole(f"{label}: y_{part}", values) for part, values in y.items()}
    count = _classes(label, whole, classes)
    if kinds["train"] == "classes":
        return DataTargets(whole, count)
    last = {part: np.ascontiguousarray(values[:, -1]) for part, values in whole.items()}
    return DataTargets(last, count, Objective("positions", whole["train"].shape[1]), count, whole)


def _kind(y: NDArray[Any]) -> str:
    if y.dtype.kind == "f":
        return "values"
    return "classes" if y.ndim == 1 else "positions"


def _described(y: NDArray[Any]) -> str:
    return f"{'floats' if y.dtype.kind == 'f' else 'whole numbers'} {('n', *y.shape[1:])}".replace("'", "")


def _values(label: str, y: Split) -> DataTargets:
    """Return numbers to learn, in float32, with the tenths by which the data is divided."""
    rows = {}
    for part, values in y.items():
        rows[part] = np.ascontiguousarray(values.reshape(len(values), -1), np.float32)
        smallest, largest = float(values.min(initial=0.0)), float(values.max(initial=0.0))  # NaN if any value is
        if not (smallest >= -LARGEST_TARGET and largest <= LARGEST_TARGET):
            worst = largest if not largest <= LARGEST_TARGET else smallest
            raise InputError(
                f"{label}: y_{part} must be finite and from {-LARGEST_TARGET:g} to {LARGEST_TARGET:g}, got {worst:g}"
            )
    outputs = rows["train"].shape[1]
    if not 1 <= outputs <= MAX_VALUES:
        raise InputError(f"{label}: y_train must have from 1 to {MAX_VALUES} numbers per sample, got {outputs}")
    edges = np.unique(np.quantile(rows["test"][:, 0], np.arange(1, PARTS) / PARTS))
    labels = {part: np.searchsorted(edges, values[:, 0], side="right") for part, values in rows.items()}
    return DataTargets(labels, len(edges) + 1, Objective("values"), outputs, rows)


def _whole(label: str, y: NDArray[Any]) -> IntArray:
    """Return class labels as integers."""
    if int(y.min()) < 0:
        raise InputError(f"{label} must hold class labels from 0, got {y.min()}")
    if int(y.max()) >= MAX_CLASSES:
        raise InputError(f"{label} must hold class labels below {MAX_CLASSES}, got {y.max()}")
    return y.astype(np.int64)


def _classes(label: str, labels: Mapping[str, IntArray], given: NDArray[Any] | None) -> int:
    """Return the number of classes: the one given, or one more than the largest training label."""
    classes = int(labels["train"].max()) + 1
    if given is not None:
        if given.dtype.kind not in "iu" or given.size != 1 or not 1 <= int(given.reshape(())) <= MAX_CLASSES:
            raise InputError(f"{label}: classes must be one whole number from 1 to {MAX_CLASSES}")
        classes = int(given.reshape(()))
    for part, y in labels.items():
        if int(y.max()) >= classes:
            raise InputError(f"{label}: y_{part} has the label {y.max()}, but classes are 0 to {classes - 1}")
    if classes < 2:
        raise InputError(f"{label} must have at least two classes, got {classes}")
    return classes
