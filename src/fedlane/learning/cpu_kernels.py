"""Compiled kernels for training on a CPU: the middle part of the paper's MLP, gathering images, drawing samples.

They are optional: without Numba, PyTorch does the same in many small operations that are mostly overhead.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@njit(cache=True, fastmath={"reassoc", "contract", "nsz", "arcp"})
def mlp_tail(
    hidden: Floats,  # (G, B, H): input to bias and ReLU; overwritten by the clipped gradient there
    bias: Floats,  # (G, H)
    matrix: Floats,  # (G, M, H)
    out_bias: Floats,  # (G, M)
    bias_into: Floats,  # updated, as are the next two; may be the arrays above
    matrix_into: Floats,
    out_bias_into: Floats,
    targets: Floats,  # (G, B, M): one-hot labels
    squares: Floats,  # (G, B): squared norms of the inputs
    scale: Floats,  # (G, B)
    clip_norm: float,  # infinite for no clipping
) -> None:
    """Run forward through ReLU and the last layer and back to the hidden layer, clip, and update all but its matrix."""
    groups, samples, width = hidden.shape
    classes = matrix.shape[1]
    active, error = np.empty(width, np.float32), np.empty(width, np.float32)
    score = np.empty(classes, np.float32)
    limit = np.float32(clip_norm)
    for g in range(groups):
        weight, offset = matrix[g].copy(), bias[g].copy()  # contiguous, so that the loops use vector instructions
        matrix_step = np.zeros((classes, width), np.float32)
        out_step, bias_step = np.zeros(classes, np.float32), np.zeros(width, np.float32)
        for s in range(samples):
            if scale[g, s] == _ZERO:  # a null sample: nothing is computed that could overflow
                hidden[g, s] = _ZERO
                continue
            length = _ONE
            for k in range(width):
                active[k] = max(hidden[g, s, k] + offset[k], _ZERO)
                length += active[k] * active[k]
            largest = np.float32(-np.inf)
            for c in range(classes):
                z = _ZERO
                for k in range(width):
                    z += weight[c, k] * active[k]
                score[c] = z + out_bias[g, c]
                largest = max(largest, score[c])
            total = _ZERO
            for c in range(classes):
                score[c] = np.exp(score[c] - largest)
                total += score[c]
            out_square = _ZERO
            for c in range(classes):  # the gradient of cross-entropy: softmax minus one-hot label
                score[c] = score[c] / total - targets[g, s, c]
                out_square += score[c] * score[c]
            error[:] = _ZERO
            for c in range(classes):
                for k in range(width):
                    error[k] += score[c] * weight[c, k]
            square = _ZERO
            for k in range(width):
                error[k] = error[k] if active[k] > _ZERO else _ZERO
                square += error[k] * error[k]
            norm = np.sqrt(square * (squares[g, s] + _ONE) + out_square * length)
            if limit < np.inf and not np.isfinite(norm):  # an overflow must not affect the other samples
                hidden[g, s] = _ZERO
                continue
            factor = scale[g, s] * (limit / norm if norm > limit else _ONE)
            for c in range(classes):
                share = factor * score[c]
                out_step[c] += share
                for k in range(width):
                    matrix_step[c, k] += share * active[k]
            for k in range(width):
                hidden[g, s, k] = factor * error[k]
                bias_step[k] += hidden[g, s, k]
        matrix_into[g] -= matrix_step
        out_bias_into[g] -= out_step
        bias_into[g] -= bias_step


@njit(cache=True)
def gather_images(images: NDArray[np.uint8], chosen: NDArray[np.int64], out: Floats) -> None:
    """Set out[k] = images[chosen[k]] / 255; reading bytes takes a quarter of the memory traffic of floats."""
    part = np.float32(1.0 / 255.0)
    for k in range(len(chosen)):
        row = images[chosen[k]]
        for p in range(len(row)):
            out[k, p] = np.float32(row[p]) * part


@njit(cache=True)
def sample_rows(
    key: NDArray[np.int64],  # (G,)
    counter: NDArray[np.int64],  # (G,): of the first iteration
    size: NDArray[np.int64],  # (G,)
    counts: NDArray[np.int64],  # (G,): number of records to draw
    start: NDArray[np.int64],  # (G,)
    replica: NDArray[np.int64],  # (G,)
    order: NDArray[np.int32],  # (R, samples)
    iterations: int,
    max_batch: int,
    gamma: int,
) -> NDArray[np.int64]:
    """Return the same records as `counter_rng.sample_positions`, (G, tau, max_batch)."""
    result = np.empty((len(key), iterations, max_batch), np.int64)
    for g in range(len(key)):
        n, count = size[g], counts[g]
        for t in range(iterations):
            base = (counter[g] + t) * (max_batch + 1)
            shift = (_high_bits(key[g] + (base + max_batch) * gamma) * n) >> 32
            for k in range(max_batch):
                low = min(k, count) * n // count
                width = max(min(k + 1, count) * n // count - low, 1)
                within = low + ((_high_bits(key[g] + (base + k) * gamma) * width) >> 32)
                result[g, t, k] = order[replica[g], start[g] + (within + shift) % n]
    return result


@njit(cache=True)
def poisson_rows(
    key: NDArray[np.int64],  # (G,)
    counter: NDArray[np.int64],  # (G,): of the first iteration
    size: NDArray[np.int64],  # (G,)
    rate: NDArray[np.float64],  # (G,)
    start: NDArray[np.int64],  # (G,)
    replica: NDArray[np.int64],  # (G,)
    order: NDArray[np.int32],  # (R, samples)
    iterations: int,
    max_batch: int,
    gamma: int,
    stride: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the same records as `counter_rng.poisson_positions`, (G, tau, max_batch), and their number, (G, tau).

    Where the number exceeds ``max_batch``, the records beyond it are missing.
    """
    result = np.empty((len(key), iterations, max_batch), np.int64)
    drawn = np.zeros((len(key), iterations), np.int64)
    for g in range(len(key)):
        log_skip = np.log1p(-rate[g])
        result[g] = order[replica[g], start[g]]  # unused places hold one of the client's own records
        for t in range(iterations):
            position = np.int64(-1)
            for k in range(size[g]):
                random = _bits(key[g] + ((counter[g] + t) * stride + k) * gamma)
                uniform = (np.float64(random >> np.uint64(11)) + 0.5) * 2.0**-53
                position += np.int64(min(np.log(uniform) / log_skip, 2.0**31)) + 1
                if position >= size[g]:
                    break
                if k < max_batch:
                    result[g, t, k] = order[replica[g], start[g] + position]
                drawn[g, t] = k + 1
    return result, drawn


@njit(cache=True)
def _high_bits(x: int) -> int:
    """Return the upper 32 bits of `_bits`."""
    return np.int64(_bits(x) >> np.uint64(32))  # type: ignore[return-value]  # a plain integer once compiled


@njit(cache=True)
def _bits(x: int) -> np.uint64:
    """Return the finaliser of splitmix64, as in `counter_rng.bits`."""
    z = np.uint64(x)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
