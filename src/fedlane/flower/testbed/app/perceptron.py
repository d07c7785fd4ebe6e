"""A network with one hidden layer, sized to a payload, and its training by plain SGD without privacy."""

import numpy as np
from numpy.typing import NDArray

from fedlane.records import IntArray
from fedlane.rng import generator
from fedlane.validate import InputError

Weights = dict[str, NDArray[np.float32]]
INPUTS, CLASSES = 784, 10
_PER_HIDDEN = 4 * (INPUTS + 1 + CLASSES)
MIN_BYTES = _PER_HIDDEN + 4 * CLASSES


def hidden_units(payload_bytes: int) -> int:
    """Return the width whose weights come closest to a payload."""
    if payload_bytes < MIN_BYTES:
        raise InputError(f"--payload must be at least {MIN_BYTES} bytes, got {payload_bytes}")
    return round((payload_bytes - 4 * CLASSES) / _PER_HIDDEN)


def size_bytes(payload_bytes: int) -> int:
    """Return the size of the weights that come closest to a payload."""
    return hidden_units(payload_bytes) * _PER_HIDDEN + 4 * CLASSES


def initial(payload_bytes: int, seed: int) -> Weights:
    """Draw random weights, all of them different, because Flower sends equal pieces only once."""
    width, rng = hidden_units(payload_bytes), generator(seed, "initial")
    return {
        "hidden.weight": (rng.standard_normal((INPUTS, width)) / INPUTS**0.5).astype(np.float32),
        "hidden.bias": (0.01 * rng.standard_normal(width)).astype(np.float32),
        "output.weight": (rng.standard_normal((width, CLASSES)) / width**0.5).astype(np.float32),
        "output.bias": (0.01 * rng.standard_normal(CLASSES)).astype(np.float32),
    }


def inputs_of(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Convert images (n, height, width, planes) to rows (n, 784) between 0 and 1."""
    return images.reshape(len(images), INPUTS).astype(np.float32) / np.float32(255.0)


def train(
    weights: Weights,
    inputs: NDArray[np.float32],
    labels: IntArray,
    *,
    iterations: int,
    batch_size: int,
    learning_rate: float,
    rng: np.random.Generator,
) -> Weights:
    """Return the weights after some steps of SGD on random batches."""
    w = {key: value.copy() for key, value in weights.items()}
    for _ in range(iterations):
        rows = rng.choice(len(inputs), min(batch_size, len(inputs)), replace=False)
        x, y = inputs[rows], labels[rows]
        hidden = np.maximum(x @ w["hidden.weight"] + w["hidden.bias"], 0.0)
        error = _softmax(hidden @ w["output.weight"] + w["output.bias"])
        error[np.arange(len(y)), y] -= 1.0
        error /= np.float32(len(y))
        back = (error @ w["output.weight"].T) * (hidden > 0)
        for key, gradient in (
            ("output.weight", hidden.T @ error),
            ("output.bias", error.sum(axis=0)),
            ("hidden.weight", x.T @ back),
            ("hidden.bias", back.sum(axis=0)),
        ):
            w[key] -= np.float32(learning_rate) * gradient
    return w


def evaluate(weights: Weights, inputs: NDArray[np.float32], labels: IntArray) -> tuple[float, float]:
    """Return the accuracy and the mean cross-entropy."""
    hidden = np.maximum(inputs @ weights["hidden.weight"] + weights["hidden.bias"], 0.0)
    probabilities = _softmax(hidden @ weights["output.weight"] + weights["output.bias"])
    accuracy = float((probabilities.argmax(axis=1) == labels).mean())
    return accuracy, float(-np.log(np.maximum(probabilities[np.arange(len(labels)), labels], 1e-12)).mean())


def _softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    scores = scores - scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores
