"""Create the embedded data set: the first 800 training and 200 test images of each class of Fashion-MNIST.

python examples/make_mini.py        # writes src/fedlane/data/fashion-mnist-mini.npz, byte for byte the same every time
"""

from pathlib import Path

import numpy as np

from fedlane.learning.datasets import Samples, load_dataset

TARGET = Path(__file__).parent.parent / "src" / "fedlane" / "data" / "fashion-mnist-mini.npz"


def first(samples: Samples, per_class: int) -> np.ndarray:
    """Return the indices of the first ``per_class`` samples of each class, in ascending order."""
    return np.sort(np.concatenate([np.flatnonzero(samples.labels == c)[:per_class] for c in range(10)]))


if __name__ == "__main__":
    full = load_dataset("fashion-mnist")
    train, test = first(full.train, 800), first(full.test, 200)
    np.savez_compressed(
        TARGET,
        train_images=full.train.images[train, ..., 0],
        train_labels=full.train.labels[train].astype(np.uint8),
        test_images=full.test.images[test, ..., 0],
        test_labels=full.test.labels[test].astype(np.uint8),
    )
    print(f"Wrote {TARGET.name} ({TARGET.stat().st_size / 1e6:.2f} MB)")
