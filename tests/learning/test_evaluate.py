"""Accuracy and loss of models on a test set, against counts by hand."""

import numpy as np
import pytest
import torch

from fedlane.learning.dataset_records import Objective
from fedlane.learning.evaluate import evaluate
from fedlane.loss_records import LARGEST_LOSS


class Given:
    """A model of one weight, its number: its scores are given, (models, samples, ...), and inputs number samples."""

    test_batch = None

    def __init__(self, objective, scores):
        self.objective, self.scores = objective, scores

    def bytes_per_sample(self):
        return 1.0

    def logits(self, weights, x):
        return self.scores[weights[:, 0].long()][:, x[0, :, 0].long()]


def evaluated(objective, scores, targets, memory_bytes=1e6):
    weights, inputs = torch.arange(float(len(scores)))[:, None], torch.arange(float(len(targets)))[:, None]
    return [figure.numpy() for figure in evaluate(Given(objective, scores), weights, inputs, targets, memory_bytes)]


@pytest.mark.parametrize("memory_bytes", [1.0, 2.0, 1e6])  # pieces of one sample, and all at once
def test_the_accuracy_of_sequences_is_the_share_of_right_places(memory_bytes):
    """Two models, three sequences of four places: 5 and 12 of 12 scores are largest at the right class."""
    labels = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2], [2, 0, 0, 1]])
    right = torch.tensor([[[1, 0, 0, 1], [0, 1, 0, 0], [1, 0, 0, 1]], [[1, 1, 1, 1]] * 3])
    guesses = torch.where(right > 0, labels, (labels + 1) % 3)
    scores = torch.nn.functional.one_hot(guesses, 3).float()
    accuracy, loss = evaluated(Objective("positions", 4), scores, labels, memory_bytes)
    np.testing.assert_allclose(accuracy, [5 / 12, 1.0], rtol=1e-12)
    wrong, good = np.log(2 + np.e), np.log(2 + np.e) - 1
    np.testing.assert_allclose(loss, [(5 * good + 7 * wrong) / 12, good], rtol=1e-6)


def test_the_loss_of_a_model_of_numbers_that_diverged_is_the_largest():
    """Errors of 1 and 3 have the mean square 5; those of 1e30, infinity and no number have none that can be stored."""
    scores = torch.tensor([[[1.0], [3.0]], [[1e30], [0.0]], [[float("inf")], [0.0]], [[float("nan")], [0.0]]])
    accuracy, loss = evaluated(Objective("values"), scores, torch.zeros(2, 1))
    assert np.isnan(accuracy).all()
    np.testing.assert_allclose(loss, [5.0, LARGEST_LOSS, LARGEST_LOSS, LARGEST_LOSS], rtol=1e-6)
