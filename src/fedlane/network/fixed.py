"""Links of known rates, as a testbed has them: payload over rate, a floor that the software adds, and computing."""

from collections.abc import Iterator, Sequence

import numpy as np

from fedlane.network.compute import Compute
from fedlane.network.interface import Network
from fedlane.records import Delays, FloatArray, IntArray
from fedlane.rng import generator


class FixedLinks(Network):
    """Every pair's rate is given; what varies is the floor, uniform over its range, and the time to compute."""

    def __init__(
        self,
        seeds: Sequence[int],
        rates_bps: FloatArray,
        payload_bits: float,
        floor_s: tuple[float, float],
        compute: Compute,
        deadline_s: float,
    ) -> None:
        """``rates_bps`` (K, U, N), up and down alike: round t has the rates of row t mod K."""
        super().__init__(seeds, rates_bps.shape[1], rates_bps.shape[2], deadline_s)
        self.compute = compute
        self.floor_s = floor_s
        self.one_way_s: FloatArray = payload_bits / rates_bps
        """(K, U, N): payload over rate, in either direction."""

    def delays(self, round: int, assignment: IntArray) -> Delays:
        """The floor counts half as download and half as upload: what a server measures cannot tell them apart."""
        one_way_s = self.one_way_s[round % len(self.one_way_s)]
        moving_s = np.take_along_axis(one_way_s[None], np.maximum(assignment, 0)[..., None], axis=2)[..., 0]
        floor_s, compute_s = self._weather(round)
        way_s = moving_s + floor_s / 2.0
        return Delays(*(np.where(assignment >= 0, part, np.nan) for part in (way_s, compute_s, way_s)))

    def channel_state(self, round: int) -> FloatArray:
        floor_s, compute_s = self._weather(round)
        return 2.0 * self.one_way_s[round % len(self.one_way_s)] + (floor_s + compute_s)[..., None]

    def _weather(self, round: int) -> tuple[FloatArray, FloatArray]:
        """A round's floors and computing times, each (R, U)."""
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
