"""The interface of every network: delays of each round, and their true distributions."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from fedlane.city_map import CityMap
from fedlane.network.compute import ComputeTimes
from fedlane.records import DelayDistributions, Delays, FloatArray, IntArray

_SAMPLE_BUDGET = 4e7
"""Delays drawn per replica to estimate the distributions of all pairs."""


class Network(ABC):
    """The networks of all replicas.

    `RadioNetwork` and `FixedLinks` implement it; `fedlane.simulation.setup.prepare` builds one from a scenario.

    Args:
        seeds: R seeds, one per replica.
        clients: Number of clients, U.
        channels: Number of channels, N.
        compute: Duration of local training.
        deadline_s: The deadline of a round in seconds.

    Examples:
        >>> import numpy as np
        >>> from fedlane import Scenario
        >>> from fedlane.simulation.setup import prepare
        >>> network = prepare(Scenario.load("quickstart"), seeds=[0, 1]).network
        >>> network.channel_state(round=0, clock_s=np.zeros(2)).shape == (2, network.clients, network.channels)
        True
    """

    max_samples: ClassVar[int] = 10_000
    """Largest number of draws per pair from which `distributions` estimates."""

    def __init__(
        self, seeds: Sequence[int], clients: int, channels: int, compute: ComputeTimes, deadline_s: float
    ) -> None:
        self.seeds = tuple(seeds)
        self.compute = compute
        self.clients, self.channels = clients, channels
        self.deadline_s = deadline_s

    @property
    def stationary(self) -> bool:
        """Whether the delays of every round have the same distribution; if not, `distributions` are time averages."""
        return True

    @property
    def remark(self) -> str | None:
        """One line that a user should know about the network's data; None if there is nothing to say."""
        return None

    @property
    def city(self) -> CityMap | None:
        """The map of the city that the network is in; None if it is in none."""
        return None

    def positions_m(self, clock_s: FloatArray) -> FloatArray | None:
        """Return where clients that move are; None if they never move, or have no positions.

        Args:
            clock_s: (R,) simulated time in seconds.

        Returns:
            (R, U, 2) positions in metres.
        """
        return None

    @abstractmethod
    def delays(self, round: int, clock_s: FloatArray, assignment: IntArray) -> Delays:
        """Return the delays of a round.

        Args:
            round: The round's number, from 0. What is drawn anew in each round follows from it.
            clock_s: (R,) simulated time at which the round begins, in seconds. Whatever changes slowly (positions,
                shadowing, fading, drift, measured rates) follows from the time alone, so that clocks may be asked for
                in any order. A download begins at the clock, and an upload after the download and the computation.
            assignment: (R, U) channel of each client, -1 for none.

        Returns:
            The three parts of each client's delay, (R, U): NaN where it has no channel, and infinite where a transfer
            never ends.
        """

    def channel_state(self, round: int, clock_s: FloatArray) -> FloatArray:
        """Return the total delay of every pair in a round, for policies that require it.

        Args:
            round: The round's number, from 0.
            clock_s: (R,) simulated time at which the round begins, in seconds.

        Returns:
            (R, U, N) delays in seconds.
        """
        shape = len(self.seeds), self.clients
        total_s = [self.delays(round, clock_s, np.full(shape, j)).total_s for j in range(self.channels)]
        return np.stack(total_s, axis=-1)

    @abstractmethod
    def _sampled(self, replica: int, purpose: str, samples: int) -> Iterator[FloatArray]:
        """Yield one replica's total delays in ``samples`` independent rounds, in pieces (B, U, N)."""

    def distributions(self, cells: int) -> DelayDistributions:
        """Estimate the distribution of every pair's delay, from `max_samples` draws or fewer on large networks.

        On a network that is not `stationary` these are averages over time, not what a given round will bring.

        Args:
            cells: Number of cells G into which the time up to the deadline is divided.

        Returns:
            The distribution functions (R, U, N, G), and the probabilities of meeting the deadline (R, U, N).
        """
        pairs = self.clients * self.channels
        samples = int(np.clip(_SAMPLE_BUDGET // pairs, 400, self.max_samples))
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
        return DelayDistributions(cdf, success, standard_error=0.5 / samples**0.5, stationary=self.stationary)

    def success_probability(self, samples: int) -> FloatArray:
        """Estimate the probability that a pair meets the deadline.

        Args:
            samples: Number of draws; the standard error is at most 0.5 / sqrt(samples).

        Returns:
            (R, U, N) probabilities.
        """
        success = np.zeros((len(self.seeds), self.clients, self.channels))
        for r in range(len(self.seeds)):
            for delay_s in self._sampled(r, "success", samples):
                success[r] += np.sum(delay_s <= self.deadline_s, axis=0)
        return success / samples
