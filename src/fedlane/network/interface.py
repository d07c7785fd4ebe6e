"""What every network is to a run, whatever lies under it: delays round by round, and their true distributions."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from fedlane.records import DelayDistributions, Delays, FloatArray, IntArray

_SAMPLE_BUDGET = 4e7


class Network(ABC):
    """Every replica's network."""

    def __init__(self, seeds: Sequence[int], clients: int, channels: int, deadline_s: float) -> None:
        self.seeds = tuple(seeds)
        self.clients, self.channels = clients, channels
        self.deadline_s = deadline_s

    @abstractmethod
    def delays(self, round: int, assignment: IntArray) -> Delays:
        """Round ``round``'s delays of each client on its channel; ``assignment`` (R, U)."""

    @abstractmethod
    def channel_state(self, round: int) -> FloatArray:
        """Round ``round``'s total delay of every pair, (R, U, N), for policies that are allowed to see it."""

    @abstractmethod
    def _sampled(self, replica: int, purpose: str, samples: int) -> Iterator[FloatArray]:
        """``samples`` independent rounds of one replica's delays, in pieces (B, U, N)."""

    def distributions(self, cells: int) -> DelayDistributions:
        """The true distribution of every pair, sampled: 10,000 draws a pair, fewer on very large networks."""
        pairs = self.clients * self.channels
        samples = int(np.clip(_SAMPLE_BUDGET // pairs, 400, 10_000))
        shape = (len(self.seeds), self.clients, self.channels)
        cdf, success = np.empty((*shape, cells)), np.empty(shape)
        for r in range(len(self.seeds)):
            below, within = np.zeros(pairs * (cells + 1)), np.zeros(pairs * (cells + 1))
            for delay_s in self._sampled(r, "truth", samples):
                position = np.minimum(delay_s.reshape(len(delay_s), pairs) * (cells / self.deadline_s), cells)
                cell = position.astype(np.int64)
                index = (cell + np.arange(pairs) * (cells + 1)).ravel()
                below += np.bincount(index, minlength=len(below))
                within += np.bincount(index, (1.0 - (position - cell)).ravel(), minlength=len(below))
            counts = below.reshape(pairs, cells + 1)
            earlier = np.cumsum(counts, axis=1) - counts
            cdf[r] = ((earlier + within.reshape(counts.shape))[:, :cells] / samples).reshape(*shape[1:], cells)
            success[r] = (1.0 - counts[:, cells] / samples).reshape(shape[1:])
        return DelayDistributions(cdf=cdf, success=success, standard_error=0.5 / samples**0.5)

    def success_probability(self, samples: int) -> FloatArray:
        """P(delay <= deadline) of every pair, (R, U, N), to a standard error of at most 0.5 / sqrt(samples)."""
        success = np.zeros((len(self.seeds), self.clients, self.channels))
        for r in range(len(self.seeds)):
            for delay_s in self._sampled(r, "success", samples):
                success[r] += np.sum(delay_s <= self.deadline_s, axis=0)
        return success / samples
