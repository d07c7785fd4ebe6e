"""The data sets FedLane knows, by what the other planes need to know of them."""

from dataclasses import dataclass

import numpy as np

from fedlane.records import IntArray
from fedlane.validate import unknown


@dataclass(frozen=True)
class DatasetInfo:
    """Facts of a data set that hold whether or not its files are here."""

    name: str
    title: str
    input_shape: tuple[int, ...]
    classes: int
    train_per_class: int
    test_per_class: int
    licence: str

    @property
    def class_totals(self) -> IntArray:
        """(M,): training samples of each class."""
        return np.full(self.classes, self.train_per_class, np.int64)


DATASETS = {
    info.name: info
    for info in (
        DatasetInfo("fashion-mnist", "Fashion-MNIST, full", (1, 28, 28), 10, 6000, 1000, "MIT"),
        DatasetInfo("cifar10", "CIFAR-10, full", (3, 32, 32), 10, 5000, 1000, "none stated; cite Krizhevsky 2009"),
        DatasetInfo("fashion-mnist-mini", "Fashion-MNIST, a subset for first runs", (1, 28, 28), 10, 800, 200, "MIT"),
    )
}


def dataset_info(name: str) -> DatasetInfo:
    """The facts of a data set by name."""
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    return DATASETS[name]
