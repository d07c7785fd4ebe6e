"""Compiled kernels that draw samples of records and gather their images."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def gather_images(images: NDArray[np.uint8], chosen: NDArray[np.int64], out: NDArray[np.float32]) -> None:
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
                random = random_bits(key[g] + ((counter[g] + t) * stride + k) * gamma)
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
    """Return the upper 32 bits of `random_bits`."""
    return np.int64(random_bits(x) >> np.uint64(32))  # type: ignore[return-value]  # a plain integer once compiled


@njit(cache=True)
def random_bits(x: int) -> np.uint64:
    """Return the finaliser of splitmix64, as in `counter_rng.bits`."""
    z = np.uint64(x)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
