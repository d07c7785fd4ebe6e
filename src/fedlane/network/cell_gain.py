"""Average gains between moving clients and fixed stations, with shadowing: the paper's, 3GPP's, or a city map's.

Gains follow from positions alone, so a client that returns to a place finds the gain that it had there.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from fedlane.city_map import CityMap
from fedlane.network.channel import Radio, path_gain_db
from fedlane.network.shadowing import SpatialField
from fedlane.network.topology import distances_m
from fedlane.network.tr38901 import CLIENT_HEIGHT_M, UrbanScenario, check_link, los_probability, path_loss_db
from fedlane.records import BoolArray, FloatArray, IntArray


class PathGain(ABC):
    """The average gain of every pair as a function of the client's position."""

    @abstractmethod
    def gain_db(self, xy_m: FloatArray, channel: IntArray | None = None) -> FloatArray:
        """Return gains in dB, shadowing included.

        Args:
            xy_m: (R, U, 2) positions of the clients in metres.
            channel: (R, U) channel of each client (-1 counts as 0); None for all channels.

        Returns:
            (R, U), or (R, U, N) for all channels.
        """


class DistanceGain(PathGain):
    """The paper's path loss, which grows with the logarithm of the distance, and log-normal shadowing.

    Args:
        seeds: R seeds, one per replica.
        channel_xy_m: (R, N, 2) positions of the channels' stations in metres.
        radio: Path loss and smallest distance.
        shadowing_db: Standard deviation of the shadowing in dB; 0 for none.
        shadowing_distance_m: Distance in metres at which the shadowing's autocorrelation is 1 / e.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        channel_xy_m: FloatArray,
        radio: Radio,
        shadowing_db: float,
        shadowing_distance_m: float,
    ) -> None:
        self._channel_xy_m, self._radio, self._shadowing_db = channel_xy_m, radio, shadowing_db
        self._field = SpatialField(seeds, "shadowing", channel_xy_m.shape[1], shadowing_distance_m)

    def gain_db(self, xy_m: FloatArray, channel: IntArray | None = None) -> FloatArray:
        """Return gains in dB, see `PathGain.gain_db`."""
        distance_m = np.maximum(distances_m(xy_m, self._channel_xy_m, channel), self._radio.min_distance_m)
        gain_db = path_gain_db(distance_m / 1000.0, self._radio)
        return gain_db + self._shadowing_db * self._field.at(xy_m, channel) if self._shadowing_db else gain_db


class UrbanGain(PathGain):
    """3GPP's urban cells: line of sight that is consistent in space, path loss and shadow fading of TR 38.901.

    Args:
        seeds: R seeds, one per replica.
        channel_xy_m: (R, N, 2) positions of the channels' stations in metres.
        scenario: `UMI` or `UMA`.
        carrier_hz: Carrier frequency in Hz.
        shadowing_db: Standard deviation of the shadow fading in dB; None for the report's, with and without line of
            sight.
        shadowing_distance_m: Its correlation distance in metres; None for the report's.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        channel_xy_m: FloatArray,
        scenario: UrbanScenario,
        carrier_hz: float,
        shadowing_db: float | None = None,
        shadowing_distance_m: float | None = None,
    ) -> None:
        check_link(scenario, carrier_hz)
        stations = channel_xy_m.shape[1]
        self._channel_xy_m, self._scenario, self._carrier_hz = channel_xy_m, scenario, carrier_hz
        self._shadowing_db = scenario.shadowing_db if shadowing_db is None else (shadowing_db, shadowing_db)
        distance_m = scenario.shadowing_distance_m
        clear_m, blocked_m = distance_m if shadowing_distance_m is None else (shadowing_distance_m,) * 2
        self._sight = SpatialField(seeds, "line-of-sight", stations, scenario.los_distance_m)
        self._clear = SpatialField(seeds, "shadowing-with-sight", stations, clear_m)
        self._blocked = SpatialField(seeds, "shadowing-without-sight", stations, blocked_m)

    def line_of_sight(self, xy_m: FloatArray, channel: IntArray | None = None) -> BoolArray:
        """Return whether each client sees its station; the arguments are those of `gain_db`."""
        probability = los_probability(self._scenario, distances_m(xy_m, self._channel_xy_m, channel))
        return np.asarray(self._sight.uniform_at(xy_m, channel) < probability)

    def gain_db(self, xy_m: FloatArray, channel: IntArray | None = None) -> FloatArray:
        """Return gains in dB, see `PathGain.gain_db`."""
        distance_m = distances_m(xy_m, self._channel_xy_m, channel)
        clear = self.line_of_sight(xy_m, channel)
        loss_db = path_loss_db(self._scenario, distance_m, clear, self._carrier_hz, CLIENT_HEIGHT_M)
        with_sight, without_sight = self._shadowing_db
        shadow_db = np.where(
            clear, with_sight * self._clear.at(xy_m, channel), without_sight * self._blocked.at(xy_m, channel)
        )
        return shadow_db - loss_db


class CityGain(PathGain):
    """The gains of a city map, and log-normal shadowing; the channels of a station share both.

    Args:
        seeds: R seeds, one per replica.
        city: The map; channel j belongs to station j mod S.
        channels: Number of channels, N.
        shadowing_db: Standard deviation of the shadowing in dB; 0 for none.
        shadowing_distance_m: Distance in metres at which the shadowing's autocorrelation is 1 / e.
    """

    def __init__(
        self, seeds: Sequence[int], city: CityMap, channels: int, shadowing_db: float, shadowing_distance_m: float
    ) -> None:
        self._city, self._shadowing_db = city, shadowing_db
        self._station = np.arange(channels) % city.stations
        self._field = SpatialField(seeds, "shadowing", city.stations, shadowing_distance_m) if shadowing_db else None

    def gain_db(self, xy_m: FloatArray, channel: IntArray | None = None) -> FloatArray:
        """Return gains in dB, see `PathGain.gain_db`.

        Raises:
            InputError: A client is outside the map.
        """
        row, column = self._city.cell(xy_m)
        if channel is None:
            gain_db = np.moveaxis(self._city.gain_db[:, row, column], 0, -1)
            if self._field is not None:
                gain_db = gain_db + self._shadowing_db * self._field.at(xy_m)
            return gain_db[..., self._station]
        station = self._station[np.maximum(channel, 0)]
        gain_db = self._city.gain_db[station, row, column]
        return gain_db if self._field is None else gain_db + self._shadowing_db * self._field.at(xy_m, station)
