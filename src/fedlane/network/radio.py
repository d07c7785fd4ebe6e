"""Radio links: download, compute and upload time of every pair in every round (paper, Section II-D).

Rounds are drawn in blocks. A block's numbers depend only on the seed, the purpose and the block, and its length only on
the numbers of clients and channels. So a replica's random draws depend on its own seed only. Networks with more than
32,768 pairs keep nothing for each pair: gains and interference scales are computed again for the assigned pairs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedlane.network.channel import (
    Radio,
    from_db,
    interference_scales,
    interference_scales_of,
    path_gain_db,
    rate_bps,
)
from fedlane.network.compute import ComputeTimes
from fedlane.network.interface import Network
from fedlane.network.topology import Topology
from fedlane.records import Delays, FloatArray, IntArray
from fedlane.rng import generator

_BLOCK_ENTRIES = 2**16
_BLOCK_ROUNDS = 64
_PIECE_ENTRIES = 2**18
"""Pairs of a large network whose random numbers are drawn together."""


@dataclass(frozen=True)
class RoundDraws:
    """The random numbers of B rounds of every replica."""

    down: FloatArray
    """(R, B, U, N): |N(0, 1)|, the downlink interference over its scale."""
    up: FloatArray
    """(R, B, U, N): the same for the uplink."""
    fading: FloatArray | None
    """(R, B, U, N): exponential power with mean 1, the same up and down; None without fading."""
    frequency: FloatArray
    """(R, B, U): uniform numbers that select the processor frequency."""


def block_rounds(clients: int, channels: int) -> int:
    """Return the number of rounds that a network of this size draws together."""
    return int(np.clip(_BLOCK_ENTRIES // (clients * channels), 1, _BLOCK_ROUNDS))


class RadioNetwork(Network):
    """A network of radio links: gains and interference scales are fixed, interference and fading vary by round.

    Args:
        seeds: R seeds, one per replica.
        topology: Positions of clients and channels.
        radio: Constants of the radio links.
        compute: Duration of local training.
        deadline_s: The deadline of a round in seconds.

    Attributes:
        topology: Positions of clients and channels.
        block_rounds: Number of rounds that are drawn together.

    Examples:
        >>> import numpy as np
        >>> from fedlane.network import Compute, Radio, place
        >>> radio = Radio(15e3, 15e3, 23.0, 23.0, -107.0, 128.1, 37.6, 10.0, False, (-5.0, 10.0), 5000.0)
        >>> compute = Compute.fixed(np.full((1, 3), 0.5))
        >>> network = RadioNetwork([7], place([7], 3, 2, 2000.0), radio, compute, deadline_s=5.0)
        >>> delays = network.delays(0, np.zeros(1), np.array([[1, -1, 0]]))  # client 1 has no channel
        >>> np.isnan(delays.total_s)
        array([[False,  True, False]])
    """

    def __init__(
        self, seeds: Sequence[int], topology: Topology, radio: Radio, compute: ComputeTimes, deadline_s: float
    ) -> None:
        super().__init__(seeds, topology.client_xy_m.shape[1], topology.channel_xy_m.shape[1], compute, deadline_s)
        self.radio = radio
        self.topology = topology
        self._down_over_up = float(10 ** ((radio.power_down_dbm - radio.power_up_dbm) / 10))
        self.block_rounds = block_rounds(self.clients, self.channels)
        self._block = -1
        self._draws: RoundDraws | None = None

    @cached_property
    def snr_up(self) -> FloatArray:
        """(R, U, N) average signal-to-noise ratio of every uplink; computed at first use."""
        return self._snr_up(self.topology.distance_km(self.radio.min_distance_m))

    @cached_property
    def _scales(self) -> tuple[FloatArray, FloatArray]:
        """(R, U, N) each: interference scales of down- and uplink; drawn at first use."""
        return interference_scales(self.seeds, self.clients, self.channels, self.radio)

    @property
    def scale_down(self) -> FloatArray:
        """(R, U, N) interference scale of every downlink, relative to the noise power."""
        return self._scales[0]

    @property
    def scale_up(self) -> FloatArray:
        """(R, U, N) interference scale of every uplink, relative to the noise power."""
        return self._scales[1]

    def _snr_up(self, distance_km: FloatArray) -> FloatArray:
        """Return the average signal-to-noise ratio of an uplink over a distance."""
        return from_db(path_gain_db(distance_km, self.radio) + (self.radio.power_up_dbm - self.radio.noise_dbm))

    def delays(self, round: int, clock_s: FloatArray, assignment: IntArray) -> Delays:
        """Return the delays of a round, see `Network.delays`; they do not depend on the clock."""
        if self.block_rounds == 1 and self._block != round:
            return self._delays_of_chosen(round, assignment)
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

    def _delays_of_chosen(self, round: int, assignment: IntArray) -> Delays:
        """Return the delays of a round on a large network, whose values are computed for the assigned pairs only."""
        replica, client = pair = np.nonzero(assignment >= 0)
        channel = assignment[pair]
        draws = self._draw_chosen(round, np.maximum(assignment, 0))
        snr_up = self._snr_up(self.topology.distance_of_km(replica, client, channel, self.radio.min_distance_m))
        index = client * self.channels + channel
        scale_down, scale_up = interference_scales_of(
            self.seeds, self.clients * self.channels, self.radio, replica, index
        )
        download_s, upload_s = self._transmission_s(
            snr_up * (1.0 if draws.fading is None else draws.fading[pair]),
            scale_down * draws.down[pair],
            scale_up * draws.up[pair],
        )
        parts = np.full((3, *assignment.shape), np.nan)
        parts[0][pair], parts[2][pair] = download_s, upload_s
        parts[1][pair] = self.compute.time_s(draws.frequency)[pair]
        return Delays(*parts)

    def _draw_chosen(self, round: int, channel: IntArray) -> RoundDraws:
        """Return the random numbers of each client on its channel, each (R, U), as `_draw` would draw them.

        All pairs are drawn, piece by piece, because random streams cannot skip normal numbers.
        """
        shape = channel.shape
        down, up, frequency = np.empty(shape), np.empty(shape), np.empty(shape)
        fading = np.empty(shape) if self.radio.rayleigh else None
        step = max(1, _PIECE_ENTRIES // self.channels)
        piece = np.empty((step, self.channels))

        def draw(fill: Callable[..., object], chosen: FloatArray, channels: IntArray) -> None:
            for start in range(0, self.clients, step):
                stop = min(start + step, self.clients)
                fill(out=piece[: stop - start])
                chosen[start:stop] = piece[np.arange(stop - start), channels[start:stop]]

        for r, seed in enumerate(self.seeds):
            rng = generator(seed, "network", round)
            draw(rng.standard_normal, down[r], channel[r])
            draw(rng.standard_normal, up[r], channel[r])
            rng.random(out=frequency[r])
            if fading is not None:
                draw(rng.standard_exponential, fading[r], channel[r])
        return RoundDraws(np.abs(down, out=down), np.abs(up, out=up), fading, frequency)

    def channel_state(self, round: int, clock_s: FloatArray) -> FloatArray:
        """Return the total delay of every pair in a round, see `Network.channel_state`."""
        draws, k = self._block_of(round)
        draws_of_round = RoundDraws(
            draws.down[:, k : k + 1],
            draws.up[:, k : k + 1],
            None if draws.fading is None else draws.fading[:, k : k + 1],
            draws.frequency[:, k : k + 1],
        )
        return np.stack([self._all_delays(draws_of_round, r)[0] for r in range(len(self.seeds))])

    def _sampled(self, replica: int, purpose: str, samples: int) -> Iterator[FloatArray]:
        """Yield one replica's total delays in ``samples`` independent rounds, in pieces (B, U, N)."""
        rng = generator(self.seeds[replica], purpose)
        piece = max(1, 2**18 // (self.clients * self.channels))
        for start in range(0, samples, piece):
            yield self._all_delays(self._draw([rng], min(piece, samples - start)), replica, 0)

    def _all_delays(self, draws: RoundDraws, replica: int, row: int | None = None) -> FloatArray:
        """Return one replica's total delays (B, U, N); ``row`` is its position in ``draws``."""
        row = replica if row is None else row
        snr_up = self.snr_up[replica] * (1.0 if draws.fading is None else draws.fading[row])
        download_s, upload_s = self._transmission_s(
            snr_up, self.scale_down[replica] * draws.down[row], self.scale_up[replica] * draws.up[row]
        )
        compute_s = self.compute.time_s(draws.frequency[row], replica)
        return download_s + compute_s[..., None] + upload_s

    def _transmission_s(self, snr_up: FloatArray, down: FloatArray, up: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the payload over the rate, down and up, equation (5)."""
        radio = self.radio
        download_s = radio.payload_bits / rate_bps(radio.bandwidth_down_hz, snr_up * self._down_over_up, down)
        upload_s = radio.payload_bits / rate_bps(radio.bandwidth_up_hz, snr_up, up)
        return download_s, upload_s

    def _block_of(self, round: int) -> tuple[RoundDraws, int]:
        block, position = divmod(round, self.block_rounds)
        if self._draws is None or block != self._block:
            self._draws = self._draw([generator(seed, "network", block) for seed in self.seeds], self.block_rounds)
            self._block = block
        return self._draws, position

    def _draw(self, generators: Sequence[np.random.Generator], rounds: int) -> RoundDraws:
        shape = (len(generators), rounds, self.clients, self.channels)
        down, up, frequency = np.empty(shape), np.empty(shape), np.empty(shape[:3])
        fading = np.empty(shape) if self.radio.rayleigh else None
        for r, rng in enumerate(generators):
            rng.standard_normal(out=down[r])
            rng.standard_normal(out=up[r])
            rng.random(out=frequency[r])
            if fading is not None:
                rng.standard_exponential(out=fading[r])
        return RoundDraws(np.abs(down, out=down), np.abs(up, out=up), fading, frequency)
