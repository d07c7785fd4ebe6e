"""Accuracy and loss of many models on one test set."""

import torch
from torch import Tensor

from fedlane.learning.local import as_inputs
from fedlane.learning.models import Model


@torch.no_grad()
def evaluate(
    model: Model, weights: Tensor, images: Tensor, labels: Tensor, memory_bytes: float
) -> tuple[Tensor, Tensor]:
    """Accuracy and mean cross-entropy of each weight set (R, d), each (R,) in float64, a piece at a time."""
    replicas, samples = len(weights), len(labels)
    correct = torch.zeros(replicas, dtype=torch.int64, device=weights.device)
    loss = torch.zeros(replicas, dtype=torch.float64, device=weights.device)
    budget = max(1, int(memory_bytes / model.bytes_per_sample()))
    rows = min(replicas, max(1, budget // min(samples, 500)))
    piece = max(1, min(samples, budget // rows))
    for first in range(0, replicas, rows):
        some = slice(first, first + rows)
        for start in range(0, samples, piece):
            x, y = as_inputs(images[None, start : start + piece]), labels[start : start + piece]
            scores = model.logits(weights[some], x)
            chosen = y.expand(len(scores), -1)
            correct[some] += (scores.argmax(2) == chosen).sum(1)
            losses = torch.nn.functional.cross_entropy(
                scores.reshape(-1, scores.shape[2]), chosen.reshape(-1), reduction="none"
            )
            loss[some] += losses.view(len(scores), -1).sum(1, dtype=torch.float64)
    return correct.double() / samples, loss / samples
