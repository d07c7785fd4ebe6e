"""The air interface as rounds go by: download, compute and upload time of every pair (paper, Section II-D).

Rounds are drawn in blocks. A block's numbers follow from (seed, purpose, block) alone and its length from the
numbers of clients and channels alone, so a replica's weather never depends on what runs beside it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedlane.network.channel import Radio, from_db, interference_scales, path_gain_db, rate_bps
from fedlane.network.compute import Compute
from fedlane.network.interface import Network
from fedlane.network.topology import Topology
from fedlane.records import Delays, FloatArray, IntArray
from fedlane.rng import generator

_BLOCK_ENTRIES = 2**16
_BLOCK_ROUNDS = 64


@dataclass(frozen=True)
class _Draws:
    """The raw randomness of B rounds of every replica."""

    down: FloatArray
    """(R, B, U, N): |N(0, 1)|, the downlink interference over its scale."""
    up: FloatArray
    fading: FloatArray | None
    """(R, B, U, N): unit-mean exponential power, the same up and down."""
    frequency: FloatArray
    """(R, B, U): uniform numbers."""


class RadioNetwork(Network):
    """Every replica's network: static gains and scales, and the delays of each round."""

    def __init__(
        self, seeds: Sequence[int], topology: Topology, radio: Radio, compute: Compute, deadline_s: float
    ) -> None:
        super().__init__(seeds, topology.client_xy_m.shape[1], topology.channel_xy_m.shape[1], deadline_s)
        self.radio = radio
        self.compute = compute
        gain_db = path_gain_db(topology.distance_km(radio.min_distance_m), radio)
        self.snr_up = from_db(gain_db + (radio.power_up_dbm - radio.noise_dbm))
        self._down_over_up = float(10 ** ((radio.power_down_dbm - radio.power_up_dbm) / 10))
        self.scale_down, self.scale_up = interference_scales(seeds, self.clients, self.channels, radio)
        self.block_rounds = int(np.clip(_BLOCK_ENTRIES // (self.clients * self.channels), 1, _BLOCK_ROUNDS))
        self._block = -1
        self._draws: _Draws | None = None

    def delays(self, round: int, assignment: IntArray) -> Delays:
        """Round ``round``'s delays of each client on its channel; ``assignment`` (R, U)."""
        draws, k = self._block_of(round)
        assigned = assignment >= 0
        channel = np.maximum(assignment, 0)[..., None]

        def chosen(pairs: FloatArray) -> FloatArray:
            picked: FloatArray = np.take_along_axis(pairs, channel, axis=2)[..., 0]
            return picked

        download_s, upload_s = self._transmission_s(
            chosen(self.snr_up) * (1.0 if draws.fading is None else chosen(draws.fading[:, k])),
            chosen(self.scale_down) * chosen(draws.down[:, k]),
            chosen(self.scale_up) * chosen(draws.up[:, k]),
        )
        compute_s = self.compute.time_s(draws.frequency[:, k])
        return Delays(*(np.where(assigned, part, np.nan) for part in (download_s, compute_s, upload_s)))

    def channel_state(self, round: int) -> FloatArray:
        """Round ``round``'s total delay of every pair, (R, U, N), for policies that are allowed to see it."""
        draws, k = self._block_of(round)
        one = _Draws(
            draws.down[:, k : k + 1],
            draws.up[:, k : k + 1],
            None if draws.fading is None else draws.fading[:, k : k + 1],
            draws.frequency[:, k : k + 1],
        )
        return np.stack([self._all_delays(one, r)[0] for r in range(len(self.seeds))])

    def _sampled(self, replica: int, purpose: str, samples: int) -> Iterator[FloatArray]:
        """``samples`` independent rounds of one replica's delays, in pieces (B, U, N)."""
        rng = generator(self.seeds[replica], purpose)
        piece = max(1, 2**18 // (self.clients * self.channels))
        for start in range(0, samples, piece):
            yield self._all_delays(self._draw([rng], min(piece, samples - start)), replica, 0)

    def _all_delays(self, draws: _Draws, replica: int, row: int | None = None) -> FloatArray:
        """Total delays (B, U, N) of one replica; ``row`` is its place in ``draws``."""
        row = replica if row is None else row
        snr_up = self.snr_up[replica] * (1.0 if draws.fading is None else draws.fading[row])
        download_s, upload_s = self._transmission_s(
            snr_up, self.scale_down[replica] * draws.down[row], self.scale_up[replica] * draws.up[row]
        )
        compute_s = self.compute.time_s(draws.frequency[row], replica)
        return download_s + compute_s[..., None] + upload_s

    def _transmission_s(self, snr_up: FloatArray, down: FloatArray, up: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Equation (5): payload over rate, down and up, from the uplink's snr and both interferences."""
        radio = self.radio
        download_s = radio.payload_bits / rate_bps(radio.bandwidth_down_hz, snr_up * self._down_over_up, down)
        upload_s = radio.payload_bits / rate_bps(radio.bandwidth_up_hz, snr_up, up)
        return download_s, upload_s

    def _block_of(self, round: int) -> tuple[_Draws, int]:
        block, within = divmod(round, self.block_rounds)
        if self._draws is None or block != self._block:
            self._draws = self._draw([generator(seed, "network", block) for seed in self.seeds], self.block_rounds)
            self._block = block
        return self._draws, within

    def _draw(self, generators: Sequence[np.random.Generator], rounds: int) -> _Draws:
        shape = (len(generators), rounds, self.clients, self.channels)
        down, up, frequency = np.empty(shape), np.empty(shape), np.empty(shape[:3])
        fading = np.empty(shape) if self.radio.rayleigh else None
        for r, rng in enumerate(generators):
            rng.standard_normal(out=down[r])
            rng.standard_normal(out=up[r])
            rng.random(out=frequency[r])
            if fading is not None:
                rng.standard_exponential(out=fading[r])
        return _Draws(np.abs(down, out=down), np.abs(up, out=up), fading, frequency)
