"""Accuracy and loss of many models on one test set."""

from itertools import pairwise

import torch
from torch import Tensor

from fedlane.learning.local import as_inputs
from fedlane.learning.losses import sample_losses
from fedlane.learning.model_interface import Model
from fedlane.loss_records import LARGEST_LOSS


@torch.no_grad()
def evaluate(
    model: Model, weights: Tensor, images: Tensor, labels: Tensor, memory_bytes: float
) -> tuple[Tensor, Tensor]:
    """Return accuracy and mean loss of R models on one test set.

    Args:
        model: The model.
        weights: (R, d) weight sets.
        images: (n, ...) test images, bytes or floats.
        labels: (n,) their classes, (n, L) classes of sequences, or (n, M) numbers (see `Objective`).
        memory_bytes: Memory that one chunk of the work may use, in bytes.

    Returns:
        Accuracy (R,), which is NaN where numbers are learned, and loss (R,), float64.
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
            expected = y.expand(len(scores), *y.shape)
            losses = sample_losses(model.objective, scores.flatten(0, 1), expected.flatten(0, 1))
            loss[part] += losses.view(len(scores), -1).sum(1, dtype=torch.float64)
            if model.objective.kind != "values":
                correct[part] += (scores.argmax(-1) == expected).flatten(1).sum(1)
    if model.objective.kind == "values":
        finite = torch.nan_to_num(loss / samples, nan=LARGEST_LOSS).clamp_(max=LARGEST_LOSS)  # even if it diverged
        return torch.full_like(loss, torch.nan), finite
    return correct.double() / labels.numel(), loss / samples
