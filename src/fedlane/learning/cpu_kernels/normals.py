"""Compiled kernel: the noise of simulated clients, added to weights together with a step's move."""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedlane.learning.cpu_kernels.rows import random_bits

Floats = NDArray[np.float32]

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@njit(cache=True, fastmath={"contract", "nsz"}, error_model="numpy")
def add_move_and_normals(
    weights: Floats,  # (G, d)
    move: Floats,  # (G, d)
    key: NDArray[np.int64],  # (G,)
    counter: NDArray[np.int64],  # (G,)
    step: int,  # added to every counter
    gamma: int,
    amount: Floats,  # (G,)
) -> None:
    """Add the move and ``amount`` times the normal numbers of (key, counter + step) to the weights; set the move to 0.

    The move and the noise are added before either reaches the weights. The numbers are those of
    `counter_rng.seeded_normals`: pairs made by Box and Muller's method from two 32-bit numbers. Everything is written
    in 32-bit arithmetic without branches or library calls, so that the compiler turns the loop into vector
    instructions.
    """
    half = (weights.shape[1] + 1) // 2
    for g in range(len(weights)):
        seed = random_bits(key[g] + (counter[g] + step) * gamma)
        low, high = np.uint32(seed & np.uint64(0xFFFFFFFF)), np.uint32(seed >> np.uint64(32))
        scale = amount[g]
        first, second = weights[g, :half], weights[g, half:]
        first_move, second_move = move[g, :half], move[g, half:]
        for j in range(len(second)):
            cosine, sine = _normal_pair(np.uint32(j), low, high)
            first[j] += first_move[j] + scale * cosine
            second[j] += second_move[j] + scale * sine
            first_move[j], second_move[j] = _ZERO, _ZERO
        if half > len(second):
            cosine, _ = _normal_pair(np.uint32(half - 1), low, high)
            first[half - 1] += first_move[half - 1] + scale * cosine
            first_move[half - 1] = _ZERO


# Numba computes with 64 bits where two 32-bit integers meet, which halves the speed of vector instructions. These
# functions emit 32-bit operations; they wrap around as in C.


def _build_mixed(context: Any, x: Any) -> tuple[Any, Callable[..., Any]]:
    """Build the function of x that mixes its bits: two multiplications and three shifts, a bijection."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        (value,) = arguments
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            value = builder.mul(builder.xor(value, builder.lshr(value, word(shift))), word(factor))
        return builder.xor(value, builder.lshr(value, word(16)))

    return types.uint32(types.uint32), build


def _build_plus_product(context: Any, a: Any, b: Any, c: Any) -> tuple[Any, Callable[..., Any]]:
    """Build the function a + b c."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first, second, third = arguments
        return builder.add(first, builder.mul(second, third))

    return types.uint32(types.uint32, types.uint32, types.uint32), build


_mixed: Any = intrinsic(_build_mixed)
_plus_product: Any = intrinsic(_build_plus_product)


@njit(inline="always")
def _normal_pair(j: np.uint32, low: np.uint32, high: np.uint32) -> tuple[np.float32, np.float32]:
    """Return the pair of standard normal numbers of position j under the 64-bit seed (high, low)."""
    hashed = _mixed(_plus_product(low, j, np.uint32(0x9E3779B9)))
    radius_bits = _mixed(np.uint32(hashed ^ high))
    other_half = _plus_product(np.uint32(0x27D4EB2F), high, np.uint32(0x85EBCA6B))
    angle_bits = _mixed(_plus_product(other_half, hashed, np.uint32(1)))
    uniform = (np.float32(np.int32(np.uint32(radius_bits >> np.uint32(1)))) + np.float32(0.5)) * np.float32(2.0**-31)
    radius = np.sqrt(np.float32(-2.0) * _logarithm(uniform))
    # An angle in [-pi/4, pi/4), turned by a number of quarters.
    within = np.int32(np.int32(np.uint32(angle_bits << np.uint32(2))) >> np.int32(2))
    t = np.float32(within) * np.float32(2.0**-31 * np.pi)
    square = t * t
    sine = np.float32(-1.9515295891e-4) * square + np.float32(8.3321608736e-3)
    sine = (sine * square + np.float32(-1.6666654611e-1)) * square * t + t
    cosine = np.float32(2.443315711809948e-5) * square + np.float32(-1.388731625493765e-3)
    cosine = (cosine * square + np.float32(4.166664568298827e-2)) * square * square
    cosine = cosine - np.float32(0.5) * square + _ONE
    odd = np.uint32(angle_bits & np.uint32(1 << 30)) != np.uint32(0)
    turned = -radius if np.uint32(angle_bits & np.uint32(1 << 31)) != np.uint32(0) else radius
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
