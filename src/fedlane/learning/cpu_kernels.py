"""Compiled kernels for training on a CPU: the middle part of the MLP, gathering images, drawing samples, noise.

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
    asked_batch: int,
    gamma: int,
) -> NDArray[np.int64]:
    """Return the same records as `counter_rng.sample_positions`, (G, tau, max_batch)."""
    result = np.empty((len(key), iterations, max_batch), np.int64)
    for g in range(len(key)):
        n, count = size[g], counts[g]
        for t in range(iterations):
            base = (counter[g] + t) * (asked_batch + 1)
            shift = (_high_bits(key[g] + (base + asked_batch) * gamma) * n) >> 32
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


@njit(cache=True, fastmath={"contract", "nsz"}, error_model="numpy")
def add_normals(rows: Floats, seed: NDArray[np.int64], amount: Floats) -> None:
    """Add amount (G,) times the normal numbers of seed (G,) to rows (G, d) in place: `counter_rng.seeded_normals`.

    Pairs are made by Box and Muller's method from two 32-bit numbers. Everything is written in 32-bit arithmetic
    without branches or library calls, so that the compiler turns the loop into vector instructions.
    """
    half = (rows.shape[1] + 1) // 2
    for g in range(len(rows)):
        low, high = np.uint32(seed[g] & 0xFFFFFFFF), np.uint32((seed[g] >> 32) & 0xFFFFFFFF)
        scale = amount[g]
        first, second = rows[g, :half], rows[g, half:]
        for j in range(len(second)):
            cosine, sine = _normal_pair(np.uint32(j), low, high)
            first[j] += scale * cosine
            second[j] += scale * sine
        if half > len(second):
            first[half - 1] += scale * _normal_pair(np.uint32(half - 1), low, high)[0]


@njit(inline="always")
def _mixed(x: np.uint32) -> np.uint32:
    """Return x with its bits mixed: two multiplications and three shifts, a bijection."""
    x ^= x >> np.uint32(16)
    x = np.uint32(x * np.uint32(0x7FEB352D))
    x ^= x >> np.uint32(15)
    x = np.uint32(x * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@njit(inline="always")
def _normal_pair(j: np.uint32, low: np.uint32, high: np.uint32) -> tuple[np.float32, np.float32]:
    """Return the pair of standard normal numbers of position j under the 64-bit seed (high, low)."""
    hashed = _mixed(np.uint32(j * np.uint32(0x9E3779B9) + low))
    radius_bits = _mixed(np.uint32(hashed ^ high))
    angle_bits = _mixed(np.uint32(hashed + np.uint32(high * np.uint32(0x85EBCA6B)) + np.uint32(0x27D4EB2F)))
    uniform = (np.float32(np.int32(radius_bits >> np.uint32(1))) + np.float32(0.5)) * np.float32(2.0**-31)
    radius = np.sqrt(np.float32(-2.0) * _logarithm(uniform))
    # An angle in [-pi/4, pi/4), turned by a number of quarters.
    t = np.float32(np.int32(angle_bits << np.uint32(2)) >> np.int32(2)) * np.float32(2.0**-31 * np.pi)
    square = t * t
    sine = np.float32(-1.9515295891e-4) * square + np.float32(8.3321608736e-3)
    sine = (sine * square + np.float32(-1.6666654611e-1)) * square * t + t
    cosine = np.float32(2.443315711809948e-5) * square + np.float32(-1.388731625493765e-3)
    cosine = (cosine * square + np.float32(4.166664568298827e-2)) * square * square
    cosine = cosine - np.float32(0.5) * square + _ONE
    quarters = angle_bits >> np.uint32(30)
    odd = (quarters & np.uint32(1)) != np.uint32(0)
    turned = -radius if (quarters & np.uint32(2)) != np.uint32(0) else radius
    return turned * (sine if odd else cosine), turned * (cosine if odd else sine)


@njit(inline="always")
def _logarithm(x: np.float32) -> np.float32:
    """Return ln(x) of a positive normal number: exponent, and a polynomial for a mantissa in [sqrt(1/2), sqrt(2))."""
    word = np.float32(x).view(np.int32)
    mantissa = np.int32((word & np.int32(0x7FFFFF)) | np.int32(0x3F800000)).view(np.float32)
    large = mantissa > np.float32(1.4142135)
    exponent = np.float32((word >> np.int32(23)) - np.int32(127)) + (_ONE if large else _ZERO)
    f = (np.float32(0.5) * mantissa if large else mantissa) - _ONE
    y = np.float32(7.0376836292e-2)
    y = y * f + np.float32(-1.1514610310e-1)
    y = y * f + np.float32(1.1676998740e-1)
    y = y * f + np.float32(-1.2420140846e-1)
    y = y * f + np.float32(1.4249322787e-1)
    y = y * f + np.float32(-1.6668057665e-1)
    y = y * f + np.float32(2.0000714765e-1)
    y = y * f + np.float32(-2.4999993993e-1)
    y = (y * f + np.float32(3.3333331174e-1)) * f * (f * f)
    y = y + exponent * np.float32(-2.12194440e-4) - np.float32(0.5) * (f * f)
    return f + y + exponent * np.float32(0.693359375)


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
