"""People in the streets of a city map: they walk from place to place on the shortest ways around the buildings.

The map has `PLACES` places, drawn once from its walkable cells; they are the same for every seed. A person's tour
visits some of them in random order and then begins again, each leg at a speed of its own. A way leads through the
centres of cells, to the four neighbours or diagonally where both cells at the corner are free, so nobody crosses a
building.

Every tour starts at a uniform phase of its duration. A shift in time maps a uniform phase to a uniform phase, so where
people are and how fast they walk has the same distribution at every instant.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from fedlane.city_map import CityMap
from fedlane.network.mobility import LEGS, ClosedTours, checked_speeds
from fedlane.network.topology import Topology
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.rng import generator, hashed_uniform, keys
from fedlane.validate import InputError, printable

PLACES = 64
"""Destinations in a map: 4,032 ways."""


class StreetWays(NamedTuple):
    """The shortest way between every two of K places, as one long list of cells.

    Attributes:
        xy_m: (P, 2) centres of the cells of all ways, one way after the other.
        along_m: (P,) length of the list up to each cell, in metres; a jump to the next way counts nothing.
        first: (K, K) position in the list at which the way from one place to another begins.
        last: (K, K) position at which it ends.
    """

    xy_m: FloatArray
    along_m: FloatArray
    first: IntArray
    last: IntArray


@lru_cache(maxsize=4)
def street_ways(city: CityMap) -> StreetWays:
    """Return the ways between the places of a map, which follow from the map alone.

    Raises:
        InputError: The streets of the map are a single cell.
    """
    row, column = np.nonzero(city.streets)
    if len(row) < 2:
        raise InputError(f"cannot use the city map {printable(city.name)}: its streets are a single cell")
    place = generator(0, "street-places").permutation(len(row))[:PLACES]
    steps_between, cells = _steps(city.streets), []
    lengths = np.empty((len(place), len(place)), np.int64)
    for k, target in enumerate(place):
        _, before = dijkstra(steps_between, directed=False, indices=target, return_predecessors=True)
        current, ways = place, [place]
        while (open_ways := current != target).any():
            current = np.where(open_ways, before[current], target)
            ways.append(current)
        steps = np.stack(ways, axis=1)
        lengths[:, k] = (steps != target).sum(axis=1) + 1
        cells += [steps[m, : lengths[m, k]] for m in range(len(place))]
    order = lengths.T.ravel()  # by target, then by start
    last = np.cumsum(order) - 1
    listed = np.concatenate(cells)
    step_m = city.cell_m * np.hypot(np.diff(row[listed]), np.diff(column[listed]))
    step_m[last[:-1]] = 0.0
    shape = lengths.shape
    return StreetWays(
        xy_m=city.centre_m(row[listed], column[listed]),
        along_m=np.concatenate([[0.0], np.cumsum(step_m)]),
        first=(last - order + 1).reshape(shape).T,
        last=last.reshape(shape).T,
    )


def _steps(streets: BoolArray) -> csr_array:
    """Return the graph of steps between neighbouring cells, with their lengths in cells."""
    number = np.cumsum(streets).reshape(streets.shape) - 1
    ends = []
    for turned in (False, True):  # steps to the right and up, or diagonally to both sides
        free, cell = (streets[:, ::-1], number[:, ::-1]) if turned else (streets, number)
        straight = (free[:-1] & free[1:]) if turned else (free[:, :-1] & free[:, 1:])
        pair = (cell[:-1], cell[1:]) if turned else (cell[:, :-1], cell[:, 1:])
        ends.append((pair[0][straight], pair[1][straight], 1.0))
        square = free[:-1, :-1] & free[:-1, 1:] & free[1:, :-1] & free[1:, 1:]
        ends.append((cell[:-1, :-1][square], cell[1:, 1:][square], 2**0.5))
    start, end = (np.concatenate([part[k] for part in ends]) for k in (0, 1))
    length = np.concatenate([np.full(len(part[0]), part[2]) for part in ends])
    return csr_array((length, (start, end)), shape=(int(number[-1, -1]) + 1,) * 2)


class StreetWalk(ClosedTours):
    """People who walk through the streets of a map.

    Args:
        seeds: R seeds, one per replica.
        clients: Number of clients, U.
        city: The map.
        speed_m_s: Range of the speed in metres per second; the lower end is greater than 0.
        legs: Legs of a tour, at least 2.

    Raises:
        InputError: The range of speeds is empty or includes 0, or the map has no streets.

    Examples:
        >>> walk = StreetWalk([0, 7], clients=10, city=CityMap.load("munich"), speed_m_s=(0.5, 1.5))
        >>> walk.position_m(np.array([3600.0, 0.0])).shape
        (2, 10, 2)
    """

    def __init__(
        self, seeds: Sequence[int], clients: int, city: CityMap, speed_m_s: tuple[float, float], legs: int = LEGS
    ) -> None:
        low, high = checked_speeds(speed_m_s)
        self._ways = street_ways(city)
        client, leg = np.arange(clients)[:, None], np.arange(legs)
        places = len(self._ways.first)
        visited = (places * hashed_uniform(keys(seeds, "street-tour")[:, None, None], client, leg)).astype(np.int64)
        # The second place differs from the first, so that the tour is longer than 0.
        visited[..., 1] += visited[..., 1] == visited[..., 0]
        visited %= places
        following = np.roll(visited, -1, axis=2)
        self._first, self._last = self._ways.first[visited, following], self._ways.last[visited, following]
        length_m = self._ways.along_m[self._last] - self._ways.along_m[self._first]
        share = hashed_uniform(keys(seeds, "street-speed")[:, None, None], client, leg)
        super().__init__(length_m, low + (high - low) * share)
        phase = hashed_uniform(keys(seeds, "street-phase")[:, None], np.arange(clients))
        self._start(self._begin_s[..., -1] * phase)

    def position_m(self, clock_s: FloatArray) -> FloatArray:
        """Return the positions (R, U, 2) in metres at clocks (R,) or (R, U) in seconds."""
        leg, since_s, _ = self._leg(clock_s)
        first, last = self._of(self._first, leg), self._of(self._last, leg)
        xy_m, along_m = self._ways.xy_m, self._ways.along_m
        target_m = along_m[first] + since_s * self._of(self._speed_m_s, leg)
        before = np.clip(np.searchsorted(along_m, target_m, side="right") - 1, first, last - 1)
        share = np.clip((target_m - along_m[before]) / (along_m[before + 1] - along_m[before]), 0.0, 1.0)
        return xy_m[before] + (xy_m[before + 1] - xy_m[before]) * share[..., None]


def place_in_city(seeds: Sequence[int], clients: int, channels: int, city: CityMap) -> Topology:
    """Place clients uniformly on the streets of a map, and channel j at station j mod S.

    Args:
        seeds: R seeds, one per replica.
        clients: Number of clients, U.
        channels: Number of channels, N.
        city: The map.

    Returns:
        Their positions.
    """
    row, column = np.nonzero(city.streets)
    key, client = keys(seeds, "street-position")[:, None], np.arange(clients)
    cell = (len(row) * hashed_uniform(key, client, 0)).astype(np.int64)
    inside = np.stack([hashed_uniform(key, client, axis) for axis in (1, 2)], axis=-1)
    client_xy_m = city.centre_m(row[cell], column[cell]) + city.cell_m * (inside - 0.5)
    station = np.arange(channels) % city.stations
    channel_xy_m = np.broadcast_to(city.station_xyz_m[station, :2], (len(seeds), channels, 2))
    return Topology(client_xy_m, channel_xy_m.copy())
