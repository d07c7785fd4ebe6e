"""Losses by objective: cross-entropy for classes and for sequences of classes, squared error for numbers."""

import torch
from torch import Tensor
from torch.nn import functional

from fedlane.learning.dataset_records import Objective


def sample_losses(objective: Objective, scores: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each of B samples, (B,).

    Args:
        objective: What is learned.
        scores: (B, M), or (B, L, M) for sequences.
        targets: (B,) classes, (B, M) one-hot labels or numbers, or (B, L) classes of sequences.
    """
    if objective.kind == "values":
        return (scores - targets).square().mean(1)
    if objective.kind == "positions":
        return functional.cross_entropy(scores.transpose(1, 2), targets, reduction="none").mean(1)
    return functional.cross_entropy(scores, targets, reduction="none")


def training_targets(objective: Objective, labels: Tensor, classes: int) -> Tensor:
    """Return the targets of samples as training uses them: class labels become one-hot rows."""
    if objective.kind == "classes":
        return functional.one_hot(labels, classes).to(torch.float32)
    return labels


def trial_targets(objective: Objective, outputs: int) -> Tensor:
    """Return targets of two samples, for the trial of a model with M outputs."""
    second = min(1, outputs - 1)
    if objective.kind == "positions":
        return torch.tensor([0, second])[:, None].expand(2, objective.length).contiguous()
    return torch.eye(outputs)[[0, second]]
