"""The learning task: the model, and each client's part of the embedded Fashion-MNIST subset."""

from typing import Any

import torch
from flwr.app import Context

from fedlane.learning.datasets import load_dataset
from fedlane.learning.partition import Partition, assign_samples, label_counts

CLASSES = 10


class Net(torch.nn.Module):
    """An ordinary PyTorch module, independent of FedLane."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(28 * 28, hidden)
        self.last = torch.nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return class scores (n, CLASSES) of images (n, 1, 28, 28)."""
        scores: torch.Tensor = self.last(torch.relu(self.first(x.flatten(1))))
        return scores


def my_records(context: Context) -> tuple[Any, Any]:
    """Return this client's images (n, 1, 28, 28) and labels (n,): half are of one class, the rest of all classes."""
    part, parts = int(context.node_config["partition-id"]), int(context.run_config["clients"])
    train = load_dataset("fashion-mnist-mini").train
    totals = torch.bincount(torch.as_tensor(train.labels)).numpy()
    counts = label_counts(Partition("dominant", 0.5, 0.0), totals, parts, seed=0)
    sizes = counts.sum(axis=1)
    start = int(sizes[:part].sum())
    indices = assign_samples(counts, train.labels, seed=0)[start : start + int(sizes[part])]
    return train.images[indices].transpose(0, 3, 1, 2), train.labels[indices]


def public_records() -> tuple[Any, Any]:
    """Return the test images and labels, which the server holds."""
    test = load_dataset("fashion-mnist-mini").test
    return test.images.transpose(0, 3, 1, 2), test.labels
