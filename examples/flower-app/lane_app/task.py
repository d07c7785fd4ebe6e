"""What is learned: the model, and every client's part of the embedded Fashion-MNIST subset."""

from typing import Any

import torch
from flwr.app import Context

from fedlane.learning.datasets import load_dataset
from fedlane.learning.partition import Partition, assign_samples, label_counts

CLASSES = 10


class Net(torch.nn.Module):
    """An ordinary PyTorch module; nothing in it knows of FedLane."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(28 * 28, hidden)
        self.last = torch.nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(torch.relu(self.first(x.flatten(1))))
        return scores


def my_records(context: Context) -> tuple[Any, Any]:
    """This client's pictures (n, 1, 28, 28) and labels: half of them of one class, the rest of all."""
    part, parts = int(context.node_config["partition-id"]), int(context.run_config["clients"])
    train = load_dataset("fashion-mnist-mini").train
    totals = torch.bincount(torch.as_tensor(train.labels)).numpy()
    counts = label_counts(Partition("dominant", 0.5, 0.0), totals, parts, seed=0)
    sizes = counts.sum(axis=1)
    start = int(sizes[:part].sum())
    mine = assign_samples(counts, train.labels, seed=0)[start : start + int(sizes[part])]
    return train.images[mine].transpose(0, 3, 1, 2), train.labels[mine]


def public_records() -> tuple[Any, Any]:
    """The test set, which the server has."""
    test = load_dataset("fashion-mnist-mini").test
    return test.images.transpose(0, 3, 1, 2), test.labels
