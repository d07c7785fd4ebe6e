"""Normal random numbers drawn in registers and added in the same pass, with the numbers of `counter_rng.box_muller`."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _hashed(key, counter):
    """Return 64 random bits for (key, counter): the finaliser of splitmix64, see `counter_rng.bits`."""
    x = (key + counter * -7046029254386353131).to(tl.uint64, bitcast=True)
    x = ((x ^ (x >> 30)).to(tl.int64, bitcast=True) * -4658895280553007687).to(tl.uint64, bitcast=True)
    x = ((x ^ (x >> 27)).to(tl.int64, bitcast=True) * -7723592293110705685).to(tl.uint64, bitcast=True)
    return x ^ (x >> 31)


@triton.jit
def _normal_pair(key, counter):
    """Return two independent standard normal numbers from (key, counter), by Box and Muller's method."""
    random = _hashed(key, counter)
    first = ((random >> 32).to(tl.uint32).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    angle = (random & 0xFFFFFFFF).to(tl.uint32).to(tl.float32) * 1.4629180792671596e-09
    radius = tl.sqrt(-2.0 * tl.log(first))
    return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit
def _finish_step(weights, move, key, counter, deviation, size, half, block: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    pair = tl.program_id(0) * block + tl.arange(0, block)
    scale = tl.load(deviation + row)
    first = tl.load(counter + row) * half
    cosine, sine = _normal_pair(tl.load(key + row), first + pair)
    for part in tl.static_range(2):
        place = pair + part * half
        inside = (pair < half) & (place < size)
        at = row * size + place
        step = tl.load(move + at, mask=inside) + scale * (cosine if part == 0 else sine)
        tl.store(weights + at, tl.load(weights + at, mask=inside) + step, mask=inside)
        tl.store(move + at, tl.zeros_like(step), mask=inside)


def finish_step_(weights: Tensor, move: Tensor, key: Tensor, counter: Tensor, deviation: Tensor) -> None:
    """Add a step's move and its noise to weights (G, d) in place, and set the move to 0.

    The noise of row g is deviation[g] times the standard normal numbers of (key[g], counter[g]). Move and noise are
    added to each other before they reach the weights.
    """
    rows, size = weights.shape
    half = (size + 1) // 2
    key, counter, deviation = key.contiguous(), counter.contiguous(), deviation.contiguous()  # read as plain arrays
    _finish_step[(triton.cdiv(half, BLOCK), rows)](weights, move, key, counter, deviation, size, half, block=BLOCK)


@triton.jit
def _average(
    weights, models, share, key, round, deviation, size, half, channels, noisy: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    pair = tl.program_id(0) * block + tl.arange(0, block)
    scale = tl.load(deviation + row)
    cosine = tl.zeros([block], tl.float32)
    sine = tl.zeros([block], tl.float32)
    if noisy:
        cosine, sine = _normal_pair(tl.load(key + row), tl.load(round) * half + pair)
    for part in tl.static_range(2):
        place = pair + part * half
        inside = (pair < half) & (place < size)
        total = tl.zeros([block], tl.float32)
        weight = 0.0
        for channel in range(channels):
            amount = tl.load(share + row * channels + channel)
            weight += amount
            if amount > 0:  # 0 times a late model's NaN would be NaN
                total += amount * tl.load(models + (row * channels + channel) * size + place, mask=inside)
        total += scale * (cosine if part == 0 else sine)
        if weight > 0:
            tl.store(weights + row * size + place, total, mask=inside)


def average_(
    weights: Tensor, models: Tensor, share: Tensor, key: Tensor, round: Tensor, deviation: Tensor, noisy: bool
) -> None:
    """Replace global models (R, d) by the average of uploads (R N, d) with shares (R, N), plus noise if ``noisy``.

    A replica whose shares are all 0 keeps its model. The noise has standard deviation ``deviation`` (R,) and the
    numbers of (key, round).
    """
    rows, size = weights.shape
    half = (size + 1) // 2
    key, share, deviation = key.contiguous(), share.contiguous(), deviation.contiguous()
    grid = (triton.cdiv(half, BLOCK), rows)
    _average[grid](weights, models, share, key, round, deviation, size, half, share.shape[-1], noisy=noisy, block=BLOCK)
