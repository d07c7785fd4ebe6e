"""Random numbers that depend only on a replica's seed.

There are two kinds of streams. A *block* stream depends on (seed, purpose, block of rounds): the network draws many
rounds at once. A *round* stream depends on (seed, purpose, round): a policy draws in every round, and a run can resume
at any round. Neither depends on the draws of other replicas, purposes or rounds.

Slow state needs numbers at any instant and in any order. `keys` and `hashed_uniform` compute each number from a key
and counters (an interval of time, a client, a channel), for whole arrays and without any stream.
"""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlane.records import FloatArray, IntArray


def generator(seed: int, purpose: str, block: int = 0) -> np.random.Generator:
    """Return the generator of (seed, purpose, block)."""
    return np.random.Generator(np.random.PCG64(_entropy(seed, purpose, block)))


def _entropy(seed: int, purpose: str, block: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), block])


class RoundRng:
    """The random numbers of one round; every replica draws from its own stream."""

    def __init__(self, generators: Sequence[np.random.Generator]) -> None:
        self.generators = generators
        """One `numpy.random.Generator` per replica."""

    def uniform(self, *shape: int) -> FloatArray:
        """Return uniform numbers in [0, 1), (R, *shape)."""
        return np.stack([g.random(shape) for g in self.generators])

    def permutation(self, count: int) -> IntArray:
        """Return a random order of ``range(count)`` for each replica, (R, count)."""
        return np.argsort(self.uniform(count), axis=1, kind="stable").astype(np.int64, copy=False)


class RoundStreams:
    """The round streams of many replicas for one purpose: ``streams.at(t)`` is round t's `RoundRng`."""

    def __init__(self, seeds: Sequence[int], purpose: str) -> None:
        self._bits = [np.random.Philox(_entropy(seed, purpose, 0)) for seed in seeds]
        self._states = [bits.state for bits in self._bits]
        self._generators = [np.random.Generator(bits) for bits in self._bits]

    def at(self, round: int) -> RoundRng:
        """Return a round's random numbers; Philox needs only a key and a counter, so any round can be drawn."""
        for bits, state in zip(self._bits, self._states, strict=True):
            state["state"]["counter"][:] = (0, 0, round, 0)
            bits.state = state
        return RoundRng(self._generators)


def key(seed: int, purpose: str) -> int:
    """Return a signed 64-bit key of (seed, purpose), for counter-based random numbers on any device."""
    return int(_entropy(seed, purpose, 0).generate_state(1, np.uint64).view(np.int64)[0])


def keys(seeds: Sequence[int], purpose: str) -> NDArray[np.uint64]:
    """Return one 64-bit key per replica for a purpose, (R,), for `hashed_bits` and `hashed_uniform`."""
    return np.array([key(seed, purpose) for seed in seeds], np.int64).view(np.uint64)


def dealt(seed: int, purpose: str, receivers: int, count: int) -> IntArray:
    """Return one of ``count`` things for each receiver, (receivers,): all in random order, again and again."""
    rng = generator(seed, purpose)
    orders = [rng.permutation(count) for _ in range(-(-receivers // count))]
    return np.concatenate(orders)[:receivers].astype(np.int64, copy=False)


def hashed_bits(key: NDArray[np.uint64], *counters: ArrayLike) -> NDArray[np.uint64]:
    """Return 64 random bits for every (key, counters), all broadcast together.

    Each counter is absorbed by one step of splitmix64: the state moves by the counter times an odd constant and is
    then mixed by the generator's finaliser.

    Args:
        key: Keys, for example those of `keys`.
        counters: Integers, at least one array; negative numbers are allowed.
    """
    x = key
    with np.errstate(over="ignore"):  # of single numbers; arrays wrap around silently
        for counter in counters:
            x = x + np.asarray(counter).astype(np.uint64) * _GAMMA
            x = (x ^ (x >> _SHIFTS[0])) * _FACTORS[0]
            x = (x ^ (x >> _SHIFTS[1])) * _FACTORS[1]
            x = x ^ (x >> _SHIFTS[2])
    return x


def hashed_uniform(key: NDArray[np.uint64], *counters: ArrayLike) -> FloatArray:
    """Return uniform numbers for every (key, counters): the middles of 2^52 equal cells of (0, 1), never 0 or 1."""
    return ((hashed_bits(key, *counters) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
