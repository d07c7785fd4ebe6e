"""Where clients are at any instant: at fixed positions, or on closed tours such as a random waypoint walk.

A walk is a closed tour of M legs: from waypoint to waypoint, all uniform in the square, at a speed drawn uniformly for
each leg, and back to the first after the last. The state at an instant follows from the tour alone, so any instant is
found by one lookup and nothing is simulated up to it.

The walk is in its steady state at every instant. Proof: weigh tours by their duration T and start at a uniform phase
of the tour; such a process is stationary, because a shift in time maps a uniform phase to a uniform phase. T is the sum
of its legs' durations, and the legs are exchangeable, so this is the same as choosing the starting leg with a density
proportional to its own duration, d / v, all other waypoints and speeds independently, and a uniform phase of that leg.
That is the known steady state of the random waypoint model (Navidi and Camp, IEEE Trans. Mobile Computing 3(1), 2004):
the endpoints of the current leg have a density proportional to their distance, and its speed one proportional to 1 / v.
It holds exactly for any M; M only decides after how long the walk repeats.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedlane.records import FloatArray, IntArray
from fedlane.rng import hashed_uniform, keys
from fedlane.validate import InputError, positive

Entry = TypeVar("Entry", bound=np.generic)
"""Type of a table's entries."""
LEGS = 64
"""Legs of a tour: at walking pace in a square of 2 km it repeats after about 13 hours."""
_ATTEMPTS = 128
"""Attempts to draw the first leg. Each is accepted with probability 0.37, so that all fail with probability 1e-25."""


class Mobility(ABC):
    """Positions of all clients of all replicas. Clocks may be asked for in any order."""

    @abstractmethod
    def position_m(self, clock_s: FloatArray) -> FloatArray:
        """Return the positions (R, U, 2) in metres at clocks (R,) or (R, U) in seconds."""

    @abstractmethod
    def speed_m_s(self, clock_s: FloatArray) -> FloatArray:
        """Return the speeds (R, U) in metres per second at clocks (R,) or (R, U) in seconds."""

    @abstractmethod
    def travelled_m(self, clock_s: FloatArray) -> FloatArray:
        """Return the lengths (R, U) of the paths since time 0, in metres, at clocks (R,) or (R, U) in seconds."""


class StaticPlaces(Mobility):
    """Clients that never move.

    Args:
        client_xy_m: (R, U, 2) their positions in metres.
    """

    def __init__(self, client_xy_m: FloatArray) -> None:
        self._client_xy_m = client_xy_m

    def position_m(self, clock_s: FloatArray) -> FloatArray:
        """Return the fixed positions (R, U, 2) in metres."""
        return self._client_xy_m

    def speed_m_s(self, clock_s: FloatArray) -> FloatArray:
        """Return zeros (R, U)."""
        return np.zeros(self._client_xy_m.shape[:2])

    def travelled_m(self, clock_s: FloatArray) -> FloatArray:
        """Return zeros (R, U)."""
        return np.zeros(self._client_xy_m.shape[:2])


class ClosedTours(Mobility):
    """Clients that walk the legs of a closed tour again and again, each leg at a speed of its own.

    Args:
        length_m: (R, U, M) lengths of the legs in metres.
        leg_speed_m_s: (R, U, M) speeds in metres per second.
    """

    def __init__(self, length_m: FloatArray, leg_speed_m_s: FloatArray) -> None:
        self._speed_m_s = leg_speed_m_s
        self._begin_s = _sums(length_m / leg_speed_m_s)  # (R, U, M + 1)
        self._begin_m = _sums(length_m)
        self._start(np.zeros(length_m.shape[:2]))

    def _start(self, phase_s: FloatArray) -> None:
        """Begin at a phase (R, U) of the tour, in seconds."""
        self._phase_s, self._start_m = phase_s, np.zeros(phase_s.shape)
        self._start_m = self.travelled_m(np.zeros(len(phase_s)))

    def speed_m_s(self, clock_s: FloatArray) -> FloatArray:
        """Return the speeds (R, U) in metres per second at clocks (R,) or (R, U) in seconds."""
        return self._of(self._speed_m_s, self._leg(clock_s)[0])

    def travelled_m(self, clock_s: FloatArray) -> FloatArray:
        """Return the lengths (R, U) of the paths since time 0, in metres, at clocks (R,) or (R, U) in seconds."""
        leg, since_s, tours = self._leg(clock_s)
        along_m = self._of(self._begin_m, leg) + since_s * self._of(self._speed_m_s, leg)
        return tours * self._begin_m[..., -1] + (along_m - self._start_m)

    def _leg(self, clock_s: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return the leg (R, U), the time since its beginning in seconds, and the number of whole tours before it."""
        elapsed_s = self._phase_s + (clock_s if clock_s.ndim == 2 else clock_s[:, None])
        tours, phase_s = np.divmod(elapsed_s, self._begin_s[..., -1])
        leg: IntArray = (self._begin_s[..., 1:-1] <= phase_s[..., None]).sum(axis=-1, dtype=np.int64)
        return leg, phase_s - self._of(self._begin_s, leg), tours

    @staticmethod
    def _of(table: NDArray[Entry], leg: IntArray) -> NDArray[Entry]:
        """Return the entries of a table (R, U, M, ...) that belong to legs (R, U)."""
        return table[np.arange(leg.shape[0])[:, None], np.arange(leg.shape[1]), leg]


class WaypointWalk(ClosedTours):
    """Clients on random waypoint walks in a square, without pauses.

    Args:
        seeds: R seeds, one per replica.
        clients: Number of clients, U.
        area_m: Side of the square in metres.
        speed_m_s: Range of the speed in metres per second; the lower end is greater than 0, because with a speed near
            0 a leg would never end and there would be no steady state.
        legs: Legs of a tour, M, at least 2.

    Raises:
        InputError: The range of speeds is empty or includes 0.

    Examples:
        >>> walk = WaypointWalk([0, 7], clients=10, area_m=500.0, speed_m_s=(0.5, 2.0))
        >>> walk.position_m(np.array([3600.0, 0.0])).shape
        (2, 10, 2)
    """

    def __init__(
        self, seeds: Sequence[int], clients: int, area_m: float, speed_m_s: tuple[float, float], legs: int = LEGS
    ) -> None:
        low, high = checked_speeds(speed_m_s)
        positive("network.area_m", area_m)
        key, client, leg = keys(seeds, "waypoints")[:, None], np.arange(clients), np.arange(legs)
        points = hashed_uniform(key[..., None, None], client[:, None, None], leg[:, None], np.arange(2))
        points[:, :, 0], points[:, :, 1] = _first_leg(keys(seeds, "first-leg")[:, None], client)
        self._points_m = area_m * points  # (R, U, M, 2)
        ends_m = np.roll(self._points_m, -1, axis=2)
        length_m = np.hypot(*np.moveaxis(ends_m - self._points_m, -1, 0))
        share = hashed_uniform(keys(seeds, "waypoint-speed")[:, None, None], client[:, None], leg)
        drawn_m_s = low + (high - low) * share
        drawn_m_s[..., 0] = low * (high / low) ** share[..., 0]
        super().__init__(length_m, drawn_m_s)
        self._start(self._begin_s[..., 1] * hashed_uniform(keys(seeds, "waypoint-phase")[:, None], client))

    def position_m(self, clock_s: FloatArray) -> FloatArray:
        """Return the positions (R, U, 2) in metres at clocks (R,) or (R, U) in seconds."""
        leg, since_s, _ = self._leg(clock_s)
        start_m, end_m = self._of(self._points_m, leg), self._of(self._points_m, (leg + 1) % self._points_m.shape[2])
        lasts_s = self._of(self._begin_s, leg + 1) - self._of(self._begin_s, leg)
        return start_m + (end_m - start_m) * (since_s / lasts_s)[..., None]


def checked_speeds(speed_m_s: tuple[float, float]) -> tuple[float, float]:
    """Return a range of speeds in metres per second.

    Raises:
        InputError: The range is empty or includes 0.
    """
    low, high = speed_m_s
    if not 0 < low <= high < np.inf:
        raise InputError(f"network.speed_m_s must be two numbers with 0 < low <= high, got [{low:g}, {high:g}]")
    return low, high


def _first_leg(key: NDArray[np.uint64], client: IntArray) -> tuple[FloatArray, FloatArray]:
    """Draw endpoints (R, U, 2) in the unit square with a density proportional to their distance, by rejection."""
    shape = (len(key), len(client), 5)
    accepted, open_pairs = np.empty(shape), np.ones(shape[:2], bool)
    for attempt in range(_ATTEMPTS):
        r, i = np.nonzero(open_pairs)
        if not len(r):
            break
        draw = hashed_uniform(key[r], client[i][:, None], attempt, np.arange(5))
        accepted[r, i] = draw
        open_pairs[r, i] = draw[:, 4] * 2**0.5 > np.hypot(draw[:, 2] - draw[:, 0], draw[:, 3] - draw[:, 1])
    return accepted[..., 0:2], accepted[..., 2:4]


def _sums(values: FloatArray) -> FloatArray:
    """Return the sums of the first 0, 1, ..., M values of the last axis."""
    return np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
