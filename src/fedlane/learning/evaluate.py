"""Accuracy and loss of many models on one test set."""

from itertools import pairwise

import torch
from torch import Tensor

from fedlane.learning.local import as_inputs
from fedlane.learning.model_interface import Model


@torch.no_grad()
def evaluate(
    model: Model, weights: Tensor, images: Tensor, labels: Tensor, memory_bytes: float
) -> tuple[Tensor, Tensor]:
    """Return accuracy and mean cross-entropy of R models on one test set.

    Args:
        model: The model.
        weights: (R, d) weight sets.
        images: (n, ...) test images, bytes or floats.
        labels: (n,) their classes.
        memory_bytes: Memory that one chunk of the work may use, in bytes.

    Returns:
        Accuracy (R,) and loss (R,), float64.
    """
    replicas, samples = len(weights), len(labels)
    correct = torch.zeros(replicas, dtype=torch.int64, device=weights.device)
    loss = torch.zeros(replicas, dtype=torch.float64, device=weights.device)
    budget = max(1, int(memory_bytes / model.bytes_per_sample()))
    rows = min(replicas, max(1, budget // min(samples, 500)))
    piece = max(1, min(samples, budget // rows))
    starts = [*range(0, samples, piece), samples]
    if model.test_batch is not None:  # equal pieces, whatever the memory and the number of replicas
        pieces = -(-samples // model.test_batch)
        starts = [samples * k // pieces for k in range(pieces + 1)]
    for first in range(0, replicas, rows):
        part = slice(first, first + rows)
        for start, end in pairwise(starts):
            x, y = as_inputs(images[None, start:end]), labels[start:end]
            scores = model.logits(weights[part], x)
            expected = y.expand(len(scores), -1)
            correct[part] += (scores.argmax(2) == expected).sum(1)
            losses = torch.nn.functional.cross_entropy(
                scores.reshape(-1, scores.shape[2]), expected.reshape(-1), reduction="none"
            )
            loss[part] += losses.view(len(scores), -1).sum(1, dtype=torch.float64)
    return correct.double() / samples, loss / samples
