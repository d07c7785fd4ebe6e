"""Modules as users write them, for images of 8 x 8, and small federations that train them."""

import numpy as np
import torch
from torch import nn

from fedlane.learning.dataset_records import Dataset, DatasetInfo, Samples
from fedlane.learning.federation import FederationBatch
from fedlane.learning.module_checks import checked_module
from fedlane.records import MechanismSpec

SHAPE, CLASSES = (1, 8, 8), 10
RATE, STEPS = 0.3, 3
"""Learning rate and number of local steps of `federation`."""
BATCHES = np.array([4, 7, 16])
"""Batch sizes of the three clients of `federation`."""


class Positions(nn.Module):
    """Rows of an image as tokens, with a positional encoding and a mask as constants, and a constant not saved."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Linear(8, 6), nn.Linear(6, CLASSES)
        angles = torch.arange(8.0)[:, None] / 10.0 ** (torch.arange(6.0) / 3)
        self.register_buffer("encoding", torch.sin(angles))
        self.register_buffer("allowed", torch.arange(8) < 7)
        self.register_buffer("offset", torch.full((6,), 0.25), persistent=False)

    def forward(self, x):
        tokens = self.embed(x.flatten(1).view(len(x), 8, 8)) + self.encoding + self.offset
        return self.out((tokens.relu() * self.allowed[:, None]).mean(1))


class Forest(nn.Module):
    """Two kinds of batch normalisation, and dropout."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 36, 12), nn.BatchNorm1d(12, momentum=None), nn.ReLU())
        self.out = nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.out(self.head(self.features(x)))


class Centred(nn.Module):
    """Records mixed without any layer that shows it; the last layer starts at 0 and hides it."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(64, CLASSES)
        nn.init.zeros_(self.out.weight)

    def forward(self, x):
        flat = x.flatten(1)
        return self.out(flat - flat.mean(0))


class OnLargeImages:
    """For images of 28 x 28, which are reduced to 8 x 8."""

    def forward(self, x):
        return super().forward(nn.functional.avg_pool2d(x, 3)[:, :, :8, :8])


class LargePositions(OnLargeImages, Positions):
    """`Positions` for images of 28 x 28."""


class LargeForest(OnLargeImages, Forest):
    """`Forest` for images of 28 x 28."""


def with_layer(layer):
    """Return a function that makes a network with this layer, called '1', behind a convolution with four filters."""
    return lambda: nn.Sequential(nn.Conv2d(1, 4, 3), layer(), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, CLASSES))


def checked(make, per_record=False):
    """Return a user's module as a model; with ``per_record``, one whose records are clipped."""
    return checked_module(make, SHAPE, CLASSES, per_record=per_record)


def records(size, seed=0):
    """Return random images (size, 8, 8, 1) and their labels."""
    rng = np.random.default_rng(seed)
    images, labels = rng.random((size, 8, 8, 1), np.float32), rng.integers(CLASSES, size=size)
    return torch.from_numpy(images), torch.from_numpy(labels)


def one_hot(labels):
    """Return the targets (size, classes) of labels."""
    return nn.functional.one_hot(labels, CLASSES).float()


def federation(make, seeds, batches=BATCHES, clip_norm=None):
    """Return federations of three clients with 100, 200 and 300 images."""
    rng = np.random.default_rng(1)
    samples = [Samples(rng.integers(0, 256, (n, 8, 8, 1), np.uint8), np.arange(n) % CLASSES) for n in (600, 60)]
    info = DatasetInfo("dots", "Dots", SHAPE, CLASSES, 60, 6, "own")
    counts = np.stack([np.outer([10, 20, 30], np.ones(CLASSES, np.int64))] * len(seeds))
    spec = MechanismSpec.simple(counts.sum(axis=2), batch_size=batches, local_iterations=STEPS, clip_norm=clip_norm)
    return FederationBatch(checked(make), Dataset(info, *samples), counts, seeds, spec, RATE)
