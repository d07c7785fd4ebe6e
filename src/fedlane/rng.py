"""Random numbers that depend only on a replica's seed.

There are two kinds of streams. A *block* stream depends on (seed, purpose, block of rounds): the network draws many
rounds at once. A *round* stream depends on (seed, purpose, round): a policy draws in every round, and a run can resume
at any round. Neither depends on the draws of other replicas, purposes or rounds.
"""

import zlib
from collections.abc import Sequence

import numpy as np

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
