"""Links with given rates, as in a testbed. A delay is payload / rate, a floor that the software adds, and computing."""

from collections.abc import Iterator, Sequence

import numpy as np

from fedlane.network.compute import ComputeTimes
from fedlane.network.interface import Network
from fedlane.records import Delays, FloatArray, IntArray
from fedlane.rng import generator


class FixedLinks(Network):
    """A network with given rates. Only the floor, uniform over its range, and the computing time are random.

    Args:
        seeds: R seeds, one per replica.
        rates_bps: (K, U, N) rates in bits per second, the same up and down; round t uses row t mod K.
        payload_bits: Size of a transmitted model in bits.
        floor_s: Range of the time that the software adds to a client's round, in seconds.
        compute: Duration of local training.
        deadline_s: The deadline of a round in seconds.

    Attributes:
        one_way_s: (K, U, N) payload over rate in seconds.

    Examples:
        >>> import numpy as np
        >>> from fedlane.network import Compute
        >>> rates_bps = np.array([[[1e6, 4e6], [2e6, 8e6]]])  # two clients on two channels, the same in every round
        >>> compute = Compute.fixed(np.full((1, 2), 0.5))
        >>> links = FixedLinks([0], rates_bps, 8e6, (2.0, 2.0), compute, deadline_s=20.0)
        >>> links.delays(0, np.zeros(1), np.array([[1, 0]])).total_s
        array([[ 6.5, 10.5]])
    """

    def __init__(
        self,
        seeds: Sequence[int],
        rates_bps: FloatArray,
        payload_bits: float,
        floor_s: tuple[float, float],
        compute: ComputeTimes,
        deadline_s: float,
    ) -> None:
        super().__init__(seeds, rates_bps.shape[1], rates_bps.shape[2], compute, deadline_s)
        self.floor_s = floor_s
        self.one_way_s: FloatArray = payload_bits / rates_bps

    @property
    def stationary(self) -> bool:
        """Whether all rounds have the same rates."""
        return bool((self.one_way_s == self.one_way_s[:1]).all())

    def delays(self, round: int, clock_s: FloatArray, assignment: IntArray) -> Delays:
        """Return the delays of a round.

        Half of the floor counts as download and half as upload, because a server cannot measure the two separately.

        Args:
            round: The round's number, from 0.
            clock_s: (R,) simulated time in seconds, on which nothing depends here.
            assignment: (R, U) channel of each client, -1 for none.

        Returns:
            The three parts of each client's delay, (R, U), NaN where it has no channel.
        """
        one_way_s = self.one_way_s[round % len(self.one_way_s)]
        transfer_s = np.take_along_axis(one_way_s[None], np.maximum(assignment, 0)[..., None], axis=2)[..., 0]
        floor_s, compute_s = self._random_parts(round)
        part_s = transfer_s + floor_s / 2.0
        return Delays(*(np.where(assignment >= 0, part, np.nan) for part in (part_s, compute_s, part_s)))

    def channel_state(self, round: int, clock_s: FloatArray) -> FloatArray:
        """Return the total delay of every pair in a round, (R, U, N) in seconds."""
        floor_s, compute_s = self._random_parts(round)
        return 2.0 * self.one_way_s[round % len(self.one_way_s)] + (floor_s + compute_s)[..., None]

    def _random_parts(self, round: int) -> tuple[FloatArray, FloatArray]:
        """Return a round's floors and computing times, each (R, U)."""
        uniform = np.stack([generator(seed, "links", round).random((2, self.clients)) for seed in self.seeds], axis=1)
        return self._floor(uniform[0]), self.compute.time_s(uniform[1])

    def _floor(self, uniform: FloatArray) -> FloatArray:
        low, high = self.floor_s
        return low + (high - low) * uniform

    def _sampled(self, replica: int, purpose: str, samples: int) -> Iterator[FloatArray]:
        rng = generator(self.seeds[replica], purpose)
        piece = max(1, 2**18 // (self.clients * self.channels))
        for start in range(0, samples, piece):
            count = min(piece, samples - start)
            row = (start + np.arange(count)) % len(self.one_way_s)
            uniform = rng.random((2, count, self.clients))
            extra_s = self._floor(uniform[0]) + self.compute.time_s(uniform[1], replica)
            yield 2.0 * self.one_way_s[row] + extra_s[..., None]
