"""Compiled kernel: a step of the two-layer perceptron, except for the two products with its first matrix."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@njit(cache=True, fastmath={"reassoc", "contract", "nsz", "arcp"})
def mlp_tail(
    hidden: Floats,  # (n, H): input to bias and ReLU; overwritten by the clipped gradient there
    weights: Floats,  # (G, d): first matrix, bias, second matrix (M, H), bias
    into: Floats,  # (G, d): updated except for the first matrix; may be the weights
    first_size: int,  # number of weights in the first matrix
    targets: Floats,  # (n, M): one-hot labels
    squares: Floats,  # (n,): squared norms of the inputs
    starts: NDArray[np.int64],  # (G + 1,): samples starts[g] to starts[g + 1] belong to weight set g
    scale: Floats,  # (n,)
    clip_norm: float,  # infinite for no clipping
) -> None:
    """Run forward through ReLU and the last layer and back to the hidden layer, clip, and update all but its matrix."""
    width, classes = hidden.shape[1], targets.shape[1]
    active, error = np.empty(width, np.float32), np.empty(width, np.float32)
    score = np.empty(classes, np.float32)
    offset, weight = np.empty(width, np.float32), np.empty((classes, width), np.float32)
    out_offset = np.empty(classes, np.float32)
    out_step, bias_step = np.empty(classes, np.float32), np.empty(width, np.float32)
    matrix_step = np.empty((classes, width), np.float32)
    limit = np.float32(clip_norm)
    second, last = first_size + width, first_size + width + classes * width
    for g in range(len(weights)):
        for k in range(width):  # copies are contiguous, so that the loops use vector instructions
            offset[k], bias_step[k] = weights[g, first_size + k], _ZERO
        for c in range(classes):
            out_offset[c], out_step[c] = weights[g, last + c], _ZERO
            for k in range(width):
                weight[c, k], matrix_step[c, k] = weights[g, second + c * width + k], _ZERO
        for s in range(starts[g], starts[g + 1]):
            if scale[s] == _ZERO:  # a null sample: nothing is computed that could overflow
                hidden[s] = _ZERO
                continue
            length = _ONE
            for k in range(width):
                active[k] = max(hidden[s, k] + offset[k], _ZERO)
                length += active[k] * active[k]
            largest = np.float32(-np.inf)
            for c in range(classes):
                z = _ZERO
                for k in range(width):
                    z += weight[c, k] * active[k]
                score[c] = z + out_offset[c]
                largest = max(largest, score[c])
            total = _ZERO
            for c in range(classes):
                score[c] = np.exp(score[c] - largest)
                total += score[c]
            out_square = _ZERO
            for c in range(classes):  # the gradient of cross-entropy: softmax minus one-hot label
                score[c] = score[c] / total - targets[s, c]
                out_square += score[c] * score[c]
            error[:] = _ZERO
            for c in range(classes):
                for k in range(width):
                    error[k] += score[c] * weight[c, k]
            square = _ZERO
            for k in range(width):
                error[k] = error[k] if active[k] > _ZERO else _ZERO
                square += error[k] * error[k]
            norm = np.sqrt(square * (squares[s] + _ONE) + out_square * length)
            if limit < np.inf and not np.isfinite(norm):  # an overflow must not affect the other samples
                hidden[s] = _ZERO
                continue
            factor = scale[s] * (limit / norm if norm > limit else _ONE)
            for c in range(classes):
                share = factor * score[c]
                out_step[c] += share
                for k in range(width):
                    matrix_step[c, k] += share * active[k]
            for k in range(width):
                hidden[s, k] = factor * error[k]
                bias_step[k] += hidden[s, k]
        for k in range(width):
            into[g, first_size + k] -= bias_step[k]
        for c in range(classes):
            into[g, last + c] -= out_step[c]
            for k in range(width):
                into[g, second + c * width + k] -= matrix_step[c, k]
