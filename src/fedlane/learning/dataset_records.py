"""Records of a data set: its properties, its samples, and the files that it is read from."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.records import IntArray


@dataclass(frozen=True)
class SourceFile:
    """A file of a data set, with the size in bytes and the SHA-256 of its uncompressed content."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Objective:
    """What a model learns from a sample.

    Attributes:
        kind: "classes": one class, with cross-entropy; "values": numbers, with squared error; "positions": a class at
            each position of a sequence, with the mean cross-entropy of its positions.
        length: Number of positions of a sequence; 0 for the other kinds.
    """

    kind: str = "classes"
    length: int = 0

    def score_shape(self, outputs: int) -> tuple[int, ...]:
        """Return the shape of a sample's scores, for a model with M outputs."""
        return (self.length, outputs) if self.kind == "positions" else (outputs,)


CLASSES = Objective()


@dataclass(frozen=True)
class DatasetInfo:
    """Properties of a data set that are known without its files.

    Attributes:
        name: Name in scenarios.
        title: Human-readable title.
        input_shape: (planes, height, width) of an image, or the shape of any other input.
        classes: Number of classes, M, by which label counts are kept and data is divided.
        train_per_class: Training samples of each class.
        test_per_class: Test samples of each class.
        licence: Licence of the data.
        folders: Names of the folders that are searched for the files.
        files: The files; none for the embedded subset.
        home: Address of the download: a folder of .gz files, or a .tar.gz archive.
        tokens: Size of the vocabulary where inputs are sequences of tokens; None where they are numbers.
        totals: Training samples of each class where they differ; empty if every class has ``train_per_class``.
        natural: (K, M) samples of each class at each of the K clients that come with the data; None without clients.
        digest: SHA-256 of the arrays of a user's data set; empty for built-in ones, whose files are verified.
        value_bytes: Bytes of one input value in memory.
        objective: What is learned.
        targets: Outputs of a model where they are not the classes by which the data is divided; 0 where they are.

    Examples:
        >>> from fedlane.learning.datasets import dataset_info
        >>> dataset_info("cifar10").input_shape
        (3, 32, 32)
    """

    name: str
    title: str
    input_shape: tuple[int, ...]
    classes: int
    train_per_class: int
    test_per_class: int
    licence: str
    folders: tuple[str, ...] = ()
    files: tuple[SourceFile, ...] = field(default=(), repr=False)
    home: str = ""
    tokens: int | None = None
    totals: tuple[int, ...] = field(default=(), repr=False)
    natural: IntArray | None = field(default=None, repr=False, compare=False)
    digest: str = ""
    value_bytes: int = 1
    objective: Objective = CLASSES
    targets: int = 0

    @property
    def outputs(self) -> int:
        """Number of outputs of a model: classes, or target values."""
        return self.targets or self.classes

    @property
    def class_totals(self) -> IntArray:
        """Number of training samples of each class, (M,)."""
        return np.array(self.totals or (self.train_per_class,) * self.classes, np.int64)


@dataclass(frozen=True)
class Samples:
    """Labelled samples.

    Attributes:
        images: (n, height, width, planes) bytes, or (n, ...) floats or integers (tokens).
        labels: (n,) classes from 0, by which the data is divided.
        clients: (n,) index of the client that a training sample belongs to; None where the data has no clients.
        targets: (n, M) numbers or (n, L) classes where these are learned; None where the labels are.
    """

    images: NDArray[Any]
    labels: IntArray
    clients: IntArray | None = None
    targets: NDArray[Any] | None = None


@dataclass(frozen=True)
class Dataset:
    """A data set in memory.

    Attributes:
        info: Its properties.
        train: Training samples.
        test: Test samples.

    Examples:
        >>> from fedlane.learning.datasets import load_dataset
        >>> load_dataset("fashion-mnist-mini").train.images.shape
        (8000, 28, 28, 1)
    """

    info: DatasetInfo
    train: Samples
    test: Samples
