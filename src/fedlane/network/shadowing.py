"""Log-normal shadowing over the plane, and line of sight that is consistent in space.

A field is a sum of K plane waves with random directions, wave numbers and phases:
sqrt(2 / K) sum cos(k_j . x + phi_j). Its autocorrelation at distance r is the mean of cos(k . r), so with wave numbers
from the spectrum of exp(-r / d), whose distribution function is 1 - 1 / sqrt(1 + (k d)^2), it is exp(-r / d) exactly,
on average over seeds (Gudmundson's model). The wave numbers are stratified, so that the autocorrelation of a single
realisation deviates from it by 0.02 to 0.05 only (root mean square, in one direction). The variance is 1 in each
realisation. The distribution at a point is normal up to a kurtosis of 3 - 1.5 / K: with 64 waves the distribution
function is within 0.001.
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from fedlane.records import FloatArray, IntArray
from fedlane.rng import hashed_uniform, keys
from fedlane.validate import positive

WAVES = 64
_GOLDEN = (5**0.5 - 1) / 2
_AT_ONCE = 16
"""Waves that are evaluated together, which bounds the memory."""


class SpatialField:
    """Standard normal fields over the plane with autocorrelation exp(-r / d), one per replica and station.

    A client sees the field of its station at its own position, so clients at one place see the same.

    Args:
        seeds: R seeds, one per replica.
        purpose: What the field is for; fields of different purposes are independent.
        stations: Number of stations, N; their fields are independent.
        distance_m: Correlation distance d in metres, at which the autocorrelation is 1 / e.

    Examples:
        >>> field = SpatialField([0, 7], "shadowing", stations=4, distance_m=50.0)
        >>> field.at(np.zeros((2, 10, 2))).shape
        (2, 10, 4)
    """

    def __init__(self, seeds: Sequence[int], purpose: str, stations: int, distance_m: float) -> None:
        positive("network.shadowing_distance_m", distance_m)
        self._stations = stations
        key, station, wave = keys(seeds, purpose)[:, None, None], np.arange(stations)[:, None], np.arange(WAVES)
        tail = (wave + hashed_uniform(key, station, wave, 0)) / WAVES
        number = np.sqrt((1.0 / tail) ** 2 - 1.0) / distance_m
        # Multiples of the golden ratio spread the directions of neighbouring wave numbers; each alone is uniform.
        angle = 2.0 * np.pi * (hashed_uniform(key, station, -1, 1) + wave * _GOLDEN)
        self._x, self._y = number * np.cos(angle), number * np.sin(angle)
        self._phase = 2.0 * np.pi * hashed_uniform(key, station, wave, 2)

    def at(self, xy_m: FloatArray, station: IntArray | None = None) -> FloatArray:
        """Return the field at positions.

        Args:
            xy_m: (R, U, 2) positions in metres.
            station: (R, U) station of each client (-1 counts as 0); None for all stations.

        Returns:
            Standard normal numbers, (R, U), or (R, U, N) for all stations.
        """
        if station is None:
            shape = xy_m.shape[:2]
            return np.stack([self.at(xy_m, np.full(shape, j)) for j in range(self._stations)], axis=-1)
        replica, chosen = np.arange(len(xy_m))[:, None], np.maximum(station, 0)
        total = np.zeros(chosen.shape)
        for first in range(0, WAVES, _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            angle = self._x[replica, chosen, some] * xy_m[..., 0, None]
            angle += self._y[replica, chosen, some] * xy_m[..., 1, None]
            angle += self._phase[replica, chosen, some]
            total += halved_sum(np.cos(angle))
        return total * (2.0 / WAVES) ** 0.5

    def uniform_at(self, xy_m: FloatArray, station: IntArray | None = None) -> FloatArray:
        """Return the field as uniform numbers: below the probability of line of sight there is line of sight.

        The arguments are those of `at`.
        """
        return ndtr(self.at(xy_m, station))


def halved_sum(values: FloatArray) -> FloatArray:
    """Return the sum over the last axis, whose length is a power of 2, in an order that no other axis can change."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values[..., 0]
