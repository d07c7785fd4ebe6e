"""Stateless random numbers on any device: a hash of (key, counter).

A replica's numbers depend on its own key only, and integers are the same on CPU and GPU. For simulation only: the
generator is not cryptographic; real clients use `system_random`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedlane.learning import fused
from fedlane.records import FloatArray, IntArray
from fedlane.rng import key

try:
    from fedlane.learning import cpu_kernels

    HAS_KERNELS = True
except ImportError:  # without Numba, PyTorch does the same more slowly
    HAS_KERNELS = False

POISSON_STRIDE = 1 << 22
"""Counters reserved for each Poisson sample: more than a client has records."""
GAMMA = -7046029254386353131  # 2^64 / golden ratio, as a signed 64-bit integer


def keys(seeds: Sequence[int], purpose: str, device: torch.device) -> torch.Tensor:
    """Return one 64-bit key per replica for a purpose, (R,)."""
    return torch.tensor([key(seed, purpose) for seed in seeds], dtype=torch.int64, device=device)


def bits(key: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """Return 64 random bits for every (key, counter), broadcast together: the finaliser of splitmix64."""
    x = key + counter * GAMMA
    x = (x ^ _shifted(x, 30)) * -4658895280553007687
    x = (x ^ _shifted(x, 27)) * -7723592293110705685
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, places: int) -> torch.Tensor:
    """Return the logical shift of x by ``places`` to the right, with zeros from the left."""
    return (x >> places) & ((1 << (64 - places)) - 1)


def sample_positions(
    key: torch.Tensor,
    counter: torch.Tensor,
    size: torch.Tensor,
    count: torch.Tensor,
    max_batch: int,
    asked_batch: int | None = None,
) -> torch.Tensor:
    """Draw ``count`` distinct positions below ``size``; all positions are equally likely to be drawn.

    One position is drawn from each of ``count`` equal strata, and all are shifted by one random offset modulo ``size``.
    key, counter, size and count have the same shape S, and count is at most size. The result is (*S, max_batch), int64;
    only the first ``count`` positions are used. Every draw reserves the random numbers of ``asked_batch`` positions, by
    default ``max_batch``, so that the result does not depend on ``max_batch``.
    """
    asked_batch = max_batch if asked_batch is None else asked_batch
    places = torch.arange(max_batch + 1, device=key.device)
    numbers = torch.cat([places[:-1], places.new_full((1,), asked_batch)])  # the last one shifts all positions
    size, count = size[..., None], count[..., None]
    edges = torch.minimum(places, count) * size // count
    # 32 bits, so that the products below stay under 2^63
    random = _shifted(bits(key[..., None], (counter * (asked_batch + 1))[..., None] + numbers), 32)
    width = edges.diff(dim=-1).clamp_(min=1)
    within = edges[..., :-1] + ((random[..., :-1] * width) >> 32)
    offset = (random[..., -1:] * size) >> 32
    return (within + offset) % size


def poisson_positions(
    key: torch.Tensor, counter: torch.Tensor, size: torch.Tensor, rate: torch.Tensor, max_batch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw every position below ``size`` independently with probability ``rate``.

    The gaps between drawn positions are geometric: floor(ln u / ln(1 - q)). All arguments have the same shape S.
    Positions beyond the first ``max_batch`` are dropped (see `largest_poisson_batch`).

    Returns:
        Positions (*S, max_batch) and a mask of that shape, True for those that were drawn.
    """
    random = bits(key[..., None], (counter * POISSON_STRIDE)[..., None] + torch.arange(max_batch, device=key.device))
    uniform = (_shifted(random, 11).to(torch.float64) + 0.5) * 2.0**-53
    gap = torch.log(uniform).div_(torch.log1p(-rate)[..., None]).clamp_(max=2.0**31).long()
    positions = (gap + 1).cumsum(-1) - 1
    mask = positions < size[..., None]
    return torch.where(mask, positions, 0), mask


def largest_poisson_batch(sizes: IntArray, rates: FloatArray, tail: float = 1e-12) -> int:
    """Return a batch size that Binomial(size, rate) exceeds with probability at most ``tail``, by Chernoff's bound."""
    size, rate = (np.asarray(column, np.float64).ravel() for column in (sizes, rates))
    low, high = np.ceil(size * rate), size.copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        while np.any(low < high):
            middle = np.floor((low + high) / 2)
            share = middle / size
            divergence = share * np.log(share / rate) + (1 - share) * np.log((1 - share) / (1 - rate))
            sufficient = (size * divergence >= -np.log(tail)) | (middle >= size)
            low, high = np.where(sufficient, low, middle + 1), np.where(sufficient, middle, high)
    return max(1, int(high.max()))


def add_normals_(
    weights: torch.Tensor, key: torch.Tensor, counter: torch.Tensor, deviation: torch.Tensor
) -> torch.Tensor:
    """Add deviation (G,) times the standard normal numbers of (key, counter), each (G,), to weights (G, d) in place."""
    if key.device.type != "cpu":
        return weights.add_(box_muller(key, counter, weights.shape[1]).mul_(deviation[:, None]))
    if HAS_KERNELS:
        _add_compiled(weights, torch.zeros_like(weights), key, counter, 0, deviation)
        return weights
    for row, seed, scale in zip(weights, bits(key, counter).tolist(), deviation.tolist(), strict=True):
        row.add_(seeded_normals(seed, len(row)), alpha=scale)
    return weights


def _add_compiled(
    weights: torch.Tensor,
    move: torch.Tensor,
    key: torch.Tensor,
    counter: torch.Tensor,
    step: int,
    deviation: torch.Tensor,
) -> None:
    """Add move (G, d) and noise to weights (G, d) on a CPU in one pass, and set the move to 0."""
    arrays = [tensor.numpy() for tensor in (weights, move, key, counter)]
    cpu_kernels.add_move_and_normals(*arrays, step, GAMMA, deviation.to(torch.float32).numpy())  # type: ignore[call-arg, arg-type]


@dataclass(frozen=True)
class CounterNoise:
    """The noise of simulated clients: normal numbers of (key, counter + step) in each row."""

    key: torch.Tensor
    """(G,): 64-bit keys."""
    counter: torch.Tensor
    """(G,): counter of the first step."""

    def __call__(self, move: torch.Tensor, step: int, deviation: torch.Tensor) -> torch.Tensor:
        """Add a step's noise of the given deviation (G,) to move (G, d) in place."""
        return add_normals_(move, self.key, self.counter + step, deviation)

    def part(self, rows: slice) -> "CounterNoise":
        """Return the noise of some of the rows."""
        return CounterNoise(self.key[rows], self.counter[rows])

    def finish_step_(self, weights: torch.Tensor, move: torch.Tensor, step: int, deviation: torch.Tensor) -> None:
        """Add a step's move and noise to weights (G, d), in one pass where there is a kernel; set the move to 0."""
        if fused.usable(weights):
            from fedlane.learning.fused.noise import finish_step_

            finish_step_(weights, move, self.key, self.counter + step, deviation)
        elif HAS_KERNELS and weights.device.type == "cpu":
            _add_compiled(weights, move, self.key, self.counter, step, deviation)
        else:
            self(move, step, deviation)
            weights += move
            move.zero_()


def normals(key: torch.Tensor, counter: torch.Tensor, count: int) -> torch.Tensor:
    """Return standard normal numbers (R, count) for keys (R,) and one counter, float32.

    On a CPU they are `seeded_normals`, seeded by each (key, counter); on a GPU they come from Box-Muller on 64 hashed
    bits. Each kind of device reproduces its own numbers.
    """
    if key.device.type == "cpu":
        return add_normals_(torch.zeros(len(key), count), key, counter.expand(len(key)), torch.ones(len(key)))
    return box_muller(key, counter, count)


def seeded_normals(seed: int, count: int) -> torch.Tensor:
    """Return the standard normal numbers (count,) of a 64-bit seed on a CPU, as the compiled kernel draws them.

    Numbers j and half + j come from one pair of 32-bit numbers, by Box and Muller's method. The pair is a hash of j and
    the seed's two halves. The compiled kernel gives the same numbers up to rounding, much faster.
    """
    low, high = seed & _WORD, (seed >> 32) & _WORD
    half = (count + 1) // 2
    hashed = _mixed(torch.arange(half) * 0x9E3779B9 + low)
    radius_bits = _mixed(hashed ^ high)
    angle_bits = _mixed(hashed + high * 0x85EBCA6B + 0x27D4EB2F)
    radius = torch.log(((radius_bits >> 1).double() + 0.5) * 2.0**-31).mul_(-2.0).sqrt_()
    quarters, rest = angle_bits >> 30, angle_bits & 0x3FFFFFFF
    angle = torch.where(rest < 1 << 29, rest, rest - (1 << 30)).double() * (math.pi * 2.0**-31)
    odd, sign = quarters & 1 != 0, 1.0 - 2.0 * (quarters >> 1).double()
    sine, cosine = torch.sin(angle), torch.cos(angle)
    pairs = [torch.where(odd, sine, cosine), torch.where(odd, cosine, sine)]
    return torch.cat([radius * sign * part for part in pairs])[:count].float()


_WORD = 0xFFFFFFFF


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """Return 32-bit numbers, held in int64, with their bits mixed."""
    x = x & _WORD
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _WORD
    return x ^ (x >> 16)


def box_muller(key: torch.Tensor, counter: torch.Tensor, count: int) -> torch.Tensor:
    """Return standard normal numbers (R, count), two from every 64 hashed bits, for one counter or one per row."""
    half = (count + 1) // 2
    first_bits = (counter * half)[:, None] if counter.ndim else counter * half
    random = bits(key[:, None], first_bits + torch.arange(half, device=key.device))
    first = (_shifted(random, 32).to(torch.float32) + 0.5) * 2.0**-32
    angle = (random & 0xFFFFFFFF).to(torch.float32) * (2.0 * math.pi * 2.0**-32)
    radius = torch.log(first).mul_(-2.0).sqrt_()
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)[:, :count]
