"""Cells that change with time: moving clients, shadowing, fading with a coherence time, and drifting interference.

Two kinds of numbers decide a delay. Interference and processor frequencies are drawn for each round, as in
`RadioNetwork`. Positions, shadowing, fading and the scales of the interference follow from the time alone, on which no
order is imposed: any instant can be asked for. A download sees the cell at the round's beginning, an upload at the
instant at which it begins; the rate then holds for the whole transfer (block fading).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from fedlane.city_map import CityMap
from fedlane.network.cell_gain import CityGain, DistanceGain, PathGain, UrbanGain
from fedlane.network.channel import Radio, from_db
from fedlane.network.compute import ComputeTimes
from fedlane.network.drift import InterferenceDrift
from fedlane.network.fading import ClarkeFading
from fedlane.network.interface import Network
from fedlane.network.link_rate import LTE_DOWNLINK, LTE_UPLINK, UploadFailures
from fedlane.network.mobility import Mobility, StaticPlaces, WaypointWalk
from fedlane.network.radio import RadioNetwork, RoundDraws
from fedlane.network.streets import StreetWalk
from fedlane.network.topology import Topology
from fedlane.network.tr38901 import LIGHT_M_S, urban_scenario
from fedlane.records import Delays, FloatArray, IntArray
from fedlane.rng import generator

SURROUNDINGS_M_S = 1.0
"""Speed of what moves around a client that stands still, which makes its fading change: people who walk."""
_INSTANTS = 256
"""Instants that are sampled together for the true distributions."""


@dataclass(frozen=True)
class CellSettings:
    """What makes a cell change with time, and how signals travel in it.

    Attributes:
        area_m: Side of the square in metres.
        horizon_s: Time over which the true distributions are averaged, in seconds.
        speed_m_s: Range of the speeds of clients in metres per second, who walk through the streets of a city, or else
            on random waypoint walks; None if they stand.
        urban: Scenario of TR 38.901, "umi" or "uma"; without it and a city, the paper's path loss and Shannon's rate.
        city: Map of a city; None for none.
        carrier_hz: Carrier frequency in Hz, for the path loss of TR 38.901 and for the fading.
        shadowing_db: Standard deviation of the shadowing in dB; None for that of the scenario, or none.
        shadowing_distance_m: Correlation distance of the shadowing in metres; None for that of the scenario, or 50 m.
        fading: Whether links have Rayleigh fading.
        drift_s: Time after which the scales of the interference are drawn anew, in seconds; 0 for never.
        upload_failure: Probability that an upload fails altogether.
    """

    area_m: float
    horizon_s: float
    speed_m_s: tuple[float, float] | None = None
    urban: str | None = None
    city: CityMap | None = None
    carrier_hz: float = 3.5e9
    shadowing_db: float | None = None
    shadowing_distance_m: float | None = None
    fading: bool = False
    drift_s: float = 0.0
    upload_failure: float = 0.0

    def mobility(self, seeds: Sequence[int], client_xy_m: FloatArray) -> Mobility:
        """Return the clients' movement; clients that stand are at ``client_xy_m`` (R, U, 2)."""
        if self.speed_m_s is None:
            return StaticPlaces(client_xy_m)
        if self.city is not None:
            return StreetWalk(seeds, client_xy_m.shape[1], self.city, self.speed_m_s)
        return WaypointWalk(seeds, client_xy_m.shape[1], self.area_m, self.speed_m_s)

    def gain(self, seeds: Sequence[int], channel_xy_m: FloatArray, radio: Radio) -> PathGain:
        """Return the average gains towards stations at ``channel_xy_m`` (R, N, 2)."""
        deviation_db, distance_m = self.shadowing_db, self.shadowing_distance_m
        if self.city is not None:
            return CityGain(seeds, self.city, channel_xy_m.shape[1], deviation_db or 0.0, distance_m or 50.0)
        if self.urban is None:
            return DistanceGain(seeds, channel_xy_m, radio, deviation_db or 0.0, distance_m or 50.0)
        scenario = urban_scenario(self.urban)
        return UrbanGain(seeds, channel_xy_m, scenario, self.carrier_hz, deviation_db, distance_m)


class CellNetwork(RadioNetwork):
    """The radio cells of all replicas, which change with time.

    Args:
        seeds: R seeds, one per replica.
        topology: Positions of channels, and of clients that stand.
        radio: Constants of the radio links; ``rayleigh`` is not used.
        compute: Duration of local training.
        deadline_s: The deadline of a round in seconds.
        cell: What changes with time.

    Attributes:
        cell: What changes with time.
        mobility: Where the clients are.
    """

    max_samples: ClassVar[int] = 1000

    def __init__(
        self,
        seeds: Sequence[int],
        topology: Topology,
        radio: Radio,
        compute: ComputeTimes,
        deadline_s: float,
        cell: CellSettings,
    ) -> None:
        super().__init__(seeds, topology, radio, compute, deadline_s)
        self.cell = cell
        self.mobility = cell.mobility(seeds, topology.client_xy_m)
        self._gain = cell.gain(seeds, topology.channel_xy_m, radio)
        self._drift = InterferenceDrift(seeds, self.clients, self.channels, radio, cell.drift_s)
        self._failures = UploadFailures(seeds, self.clients, cell.upload_failure)
        self._fading = ClarkeFading(seeds, self.channels) if cell.fading else None
        self._coding = None if cell.urban is None and cell.city is None else (LTE_DOWNLINK, LTE_UPLINK)

    @property
    def stationary(self) -> bool:
        """Whether the delays of every round have the same distribution: nobody moves and nothing drifts."""
        return self.cell.speed_m_s is None and not self.cell.drift_s

    @property
    def city(self) -> CityMap | None:
        """The map of the city that the cell is in; None if it is in none."""
        return self.cell.city

    def positions_m(self, clock_s: FloatArray) -> FloatArray | None:
        """Return the positions (R, U, 2) in metres at clocks (R,); None if the clients stand."""
        return None if isinstance(self.mobility, StaticPlaces) else self.mobility.position_m(clock_s)

    def delays(self, round: int, clock_s: FloatArray, assignment: IntArray) -> Delays:
        """Return the delays of a round, see `Network.delays`; an upload that fails lasts for ever."""
        draws = self._draws_on(round, np.maximum(assignment, 0))
        parts = self._parts(clock_s, assignment, draws, self.compute.time_s(draws.frequency), None)
        parts = parts[0], parts[1], np.where(self._failures.at(round), np.inf, parts[2])
        return Delays(*(np.where(assignment >= 0, part, np.nan) for part in parts))

    def channel_state(self, round: int, clock_s: FloatArray) -> FloatArray:
        """Return the total delay of every pair in a round, see `Network.channel_state`."""
        self._block_of(round)  # drawn once for all channels
        return Network.channel_state(self, round, clock_s)

    def _draws_on(self, round: int, channel: IntArray) -> RoundDraws:
        """Return the random numbers of each client on its channel, each (R, U)."""
        if self.block_rounds == 1 and self._block != round:
            return self._draw_chosen(round, channel)
        draws, k = self._block_of(round)
        down, up = (
            np.take_along_axis(pairs[:, k], channel[..., None], axis=2)[..., 0] for pairs in (draws.down, draws.up)
        )
        return RoundDraws(down, up, None, draws.frequency[:, k])

    def _parts(
        self,
        clock_s: FloatArray,
        channel: IntArray,
        draws: RoundDraws,
        compute_s: FloatArray,
        power: FloatArray | None,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return download, compute and upload times (R, U) of rounds that begin at clocks (R,).

        Clients whose ``channel`` is -1 get numbers without meaning. ``power`` (2, R, U) is the fading of down- and
        uplink; None to compute it.
        """
        radio = self.radio
        snr = self._snr_at(clock_s, channel, None if power is None else power[0]) * self._down_over_up
        sinr = snr / (1.0 + self._drift.down(clock_s, channel) * draws.down)
        download_s = self._transfer_s(0, radio.bandwidth_down_hz, sinr)
        ready_s = clock_s[:, None] + np.where(np.isfinite(download_s), download_s, 0.0) + compute_s
        snr = self._snr_at(ready_s, channel, None if power is None else power[1])
        sinr = snr / (1.0 + self._drift.up(ready_s, channel) * draws.up)
        return download_s, compute_s, self._transfer_s(1, radio.bandwidth_up_hz, sinr)

    def _transfer_s(self, direction: int, bandwidth_hz: float, sinr: FloatArray) -> FloatArray:
        """Return the payload over the rate; infinite where nothing gets through."""
        coding = self._coding and self._coding[direction]
        rate_bps = coding.goodput_bps(bandwidth_hz, sinr) if coding else bandwidth_hz * np.log2(1.0 + sinr)
        with np.errstate(divide="ignore"):
            return np.asarray(self.radio.payload_bits / rate_bps)

    def _snr_at(self, when_s: FloatArray, channel: IntArray, power: FloatArray | None) -> FloatArray:
        """Return the signal-to-noise ratio of uplinks (R, U) at instants (R,) or (R, U), given the fading or not."""
        if self.cell.speed_m_s is None:
            gain_db = np.take_along_axis(self._standing_gain_db, np.maximum(channel, 0)[..., None], axis=2)[..., 0]
        else:
            gain_db = self._gain.gain_db(self.mobility.position_m(when_s), channel)
        snr = from_db(gain_db + (self.radio.power_up_dbm - self.radio.noise_dbm))
        if power is None and self._fading is not None:
            power = self._fading.power_of_assigned(self._wavelengths(when_s), channel)
        return snr if power is None else snr * power

    @cached_property
    def _standing_gain_db(self) -> FloatArray:
        """(R, U, N) gains of clients that stand, in dB."""
        return self._gain.gain_db(self.topology.client_xy_m)

    def _wavelengths(self, when_s: FloatArray) -> FloatArray:
        """Return the paths (R, U) that decide the fading, in wavelengths."""
        if self.cell.speed_m_s is None:
            when_s = when_s if when_s.ndim == 2 else when_s[:, None]
            path_m = np.broadcast_to(SURROUNDINGS_M_S * when_s, (len(self.seeds), self.clients))
        else:
            path_m = self.mobility.travelled_m(when_s)
        return path_m * (self.cell.carrier_hz / LIGHT_M_S)

    def _sampled(self, replica: int, purpose: str, samples: int) -> Iterator[FloatArray]:
        """Yield one replica's total delays at ``samples`` independent instants, in pieces (B, U, N)."""
        rng = generator(self.seeds[replica], purpose)
        piece = min(_INSTANTS, max(1, 2**18 // (self.clients * self.channels)))
        copies = self._copies(replica, piece)
        for start in range(0, samples, piece):
            clock_s = self.cell.horizon_s * rng.random(piece)
            draws = self._draw([rng], piece)
            compute_s = self.compute.time_s(draws.frequency[0], replica)
            failed = rng.random((piece, self.clients)) < self.cell.upload_failure
            total_s = np.empty((piece, self.clients, self.channels))
            # At instants that are far from each other the fading is independent and exponential.
            power = rng.standard_exponential((2, *total_s.shape)) if self._fading else None
            for j in range(self.channels):
                on_channel = RoundDraws(draws.down[0, :, :, j], draws.up[0, :, :, j], None, draws.frequency[0])
                faded = None if power is None else power[..., j]
                parts = copies._parts(clock_s, np.full((piece, self.clients), j), on_channel, compute_s, faded)
                total_s[..., j] = np.where(failed, np.inf, parts[0] + parts[1] + parts[2])
            yield total_s[: samples - start]

    def _copies(self, replica: int, count: int) -> "CellNetwork":
        """Return a network whose replicas are copies of one, so that many of its instants are computed together."""
        places = (
            np.repeat(xy_m[replica : replica + 1], count, axis=0)
            for xy_m in (self.topology.client_xy_m, self.topology.channel_xy_m)
        )
        seeds = [self.seeds[replica]] * count
        copies = CellNetwork(seeds, Topology(*places), self.radio, self.compute, self.deadline_s, self.cell)
        if self.cell.speed_m_s is None:  # computed once, instead of once for each copy
            gain_db = self._standing_gain_db[replica]
            copies.__dict__["_standing_gain_db"] = np.broadcast_to(gain_db, (count, *gain_db.shape))
        return copies
