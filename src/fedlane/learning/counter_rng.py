"""Random numbers on any device, without state: a hash of (key, counter).

A replica's numbers follow from its own key, whatever runs beside it, and integers are the same on CPU and GPU.
For simulation only: this is no cryptographic generator.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from fedlane.records import FloatArray, IntArray
from fedlane.rng import key

POISSON_STRIDE = 1 << 22
"""Numbers set aside for each Poisson sample, whatever its size: more records than a client has."""
GAMMA = -7046029254386353131  # 2^64 / golden ratio, as a signed 64-bit integer


def keys(seeds: Sequence[int], purpose: str, device: torch.device) -> torch.Tensor:
    """One 64-bit key per replica for a purpose, (R,)."""
    return torch.tensor([key(seed, purpose) for seed in seeds], dtype=torch.int64, device=device)


def bits(key: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """64 random bits for every (key, counter), broadcast together: the finaliser of splitmix64."""
    x = key + counter * GAMMA
    x = (x ^ _shifted(x, 30)) * -4658895280553007687
    x = (x ^ _shifted(x, 27)) * -7723592293110705685
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, places: int) -> torch.Tensor:
    """x >> places with zeros coming in from the left."""
    return (x >> places) & ((1 << (64 - places)) - 1)


def sample_positions(
    key: torch.Tensor, counter: torch.Tensor, size: torch.Tensor, count: torch.Tensor, most: int
) -> torch.Tensor:
    """``count`` distinct positions below ``size``, each position equally likely to be among them.

    One from each of ``count`` equal strata, the strata turned by a random offset. key, counter, size and count have one
    shape S, count is at most size; the result is (*S, most), int64, and only the first ``count`` of it mean anything.
    """
    places = torch.arange(most + 1, device=key.device)
    size, count = size[..., None], count[..., None]
    edges = torch.minimum(places, count) * size // count
    random = _shifted(bits(key[..., None], (counter * (most + 1))[..., None] + places), 32)  # products stay below 2^63
    width = edges.diff(dim=-1).clamp_(min=1)
    within = edges[..., :-1] + ((random[..., :-1] * width) >> 32)
    turn = (random[..., -1:] * size) >> 32
    return (within + turn) % size


def poisson_positions(
    key: torch.Tensor, counter: torch.Tensor, size: torch.Tensor, rate: torch.Tensor, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every position below ``size`` with probability ``rate``, independently: positions (*S, most) and their mask.

    By the gaps between chosen positions, which are geometric: floor(ln u / ln(1 - q)). All arguments have one shape
    S; a draw of more than ``most`` positions loses the last ones (see `largest_poisson_batch`).
    """
    random = bits(key[..., None], (counter * POISSON_STRIDE)[..., None] + torch.arange(most, device=key.device))
    uniform = (_shifted(random, 11).to(torch.float64) + 0.5) * 2.0**-53
    gap = torch.log(uniform).div_(torch.log1p(-rate)[..., None]).clamp_(max=2.0**31).long()
    positions = (gap + 1).cumsum(-1) - 1
    mask = positions < size[..., None]
    return torch.where(mask, positions, 0), mask


def largest_poisson_batch(sizes: IntArray, rates: FloatArray, tail: float = 1e-12) -> int:
    """A batch size that Binomial(size, rate) exceeds with at most probability ``tail``, by Chernoff's bound."""
    size, rate = (np.asarray(column, np.float64).ravel() for column in (sizes, rates))
    low, high = np.ceil(size * rate), size.copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        while np.any(low < high):
            middle = np.floor((low + high) / 2)
            share = middle / size
            divergence = share * np.log(share / rate) + (1 - share) * np.log((1 - share) / (1 - rate))
            enough = (size * divergence >= -np.log(tail)) | (middle >= size)
            low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return max(1, int(high.max()))


def add_normals_(
    weights: torch.Tensor, key: torch.Tensor, counter: torch.Tensor, deviation: torch.Tensor
) -> torch.Tensor:
    """weights (G, d) += deviation (G,) times the standard normal numbers of (key, counter), each (G,), in place."""
    if key.device.type != "cpu":
        return weights.add_(box_muller(key, counter, weights.shape[1]).mul_(deviation[:, None]))
    source, numbers = torch.Generator(), torch.empty(weights.shape[1])
    for row, seed, amount in zip(weights, bits(key, counter).tolist(), deviation.tolist(), strict=True):
        torch.randn(len(row), generator=source.manual_seed(seed), out=numbers)  # one row's noise stays in the cache
        row.add_(numbers, alpha=amount)
    return weights


def normals(key: torch.Tensor, counter: torch.Tensor, count: int) -> torch.Tensor:
    """Standard normal numbers (R, count) for keys (R,) and one counter, float32.

    On a CPU from PyTorch's own generator, seeded by each (key, counter); on a GPU by Box-Muller on hashed bits, all
    replicas at once. The same device gives the same numbers.
    """
    if key.device.type == "cpu":
        source = torch.Generator()
        numbers = torch.empty(len(key), count)
        for row, seed in zip(numbers, bits(key, counter).tolist(), strict=True):
            torch.randn(count, generator=source.manual_seed(seed), out=row)
        return numbers
    return box_muller(key, counter, count)


def box_muller(key: torch.Tensor, counter: torch.Tensor, count: int) -> torch.Tensor:
    """Standard normal numbers (R, count) from hashed bits: two for every 64 bits. One counter, or one per row."""
    half = (count + 1) // 2
    first_bits = (counter * half)[:, None] if counter.ndim else counter * half
    random = bits(key[:, None], first_bits + torch.arange(half, device=key.device))
    first = (_shifted(random, 32).to(torch.float32) + 0.5) * 2.0**-32
    angle = (random & 0xFFFFFFFF).to(torch.float32) * (2.0 * math.pi * 2.0**-32)
    radius = torch.log(first).mul_(-2.0).sqrt_()
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)[:, :count]
