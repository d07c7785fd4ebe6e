"""The data set on which most tests of learning train."""

import pytest


@pytest.fixture(scope="session")
def data():
    """8,000 training and 2,000 test images of Fashion-MNIST, which FedLane contains."""
    from fedlane.learning.datasets import load_dataset

    return load_dataset("fashion-mnist-mini")
