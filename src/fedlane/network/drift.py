"""Interference that drifts: every pair's scale is redrawn at fixed intervals, a piecewise-stationary world."""

from collections.abc import Sequence

import numpy as np

from fedlane.network.channel import Radio, from_db, interference_scales
from fedlane.records import FloatArray, IntArray
from fedlane.rng import hashed_uniform, keys
from fedlane.validate import at_least


class InterferenceDrift:
    """The interference scales s_ij / sigma^2 of all pairs at any instant.

    Interval k covers [k, k + 1) times ``drift_s``. The scales of interval 0 are those of `interference_scales`, so
    that a network without drift is the paper's; in later intervals they are drawn anew, uniform in dB.

    Args:
        seeds: R seeds, one per replica.
        clients: Number of clients, U.
        channels: Number of channels, N.
        radio: Constants of the radio links; the range of the scales is ``radio.interference_db``.
        drift_s: Length of an interval in seconds; 0 for no drift.
    """

    def __init__(self, seeds: Sequence[int], clients: int, channels: int, radio: Radio, drift_s: float) -> None:
        at_least("network.drift_s", drift_s, 0.0)
        self._first_down, self._first_up = interference_scales(seeds, clients, channels, radio)
        self._key_down, self._key_up = keys(seeds, "drift-down"), keys(seeds, "drift-up")
        self._range_db = radio.interference_db
        self._drift_s = drift_s

    def down(self, clock_s: FloatArray, channel: IntArray | None = None) -> FloatArray:
        """Return the scales of the downlinks, relative to the noise power.

        Args:
            clock_s: (R,) or (R, U) instants in seconds.
            channel: (R, U) channel of each client (-1 counts as 0); None for all channels.

        Returns:
            (R, U), or (R, U, N) for all channels.
        """
        return self._scales(self._first_down, self._key_down[:, None, None], clock_s, channel)

    def up(self, clock_s: FloatArray, channel: IntArray | None = None) -> FloatArray:
        """Return the scales of the uplinks; the arguments are those of `down`."""
        return self._scales(self._first_up, self._key_up[:, None, None], clock_s, channel)

    def interval(self, clock_s: FloatArray) -> IntArray:
        """Return the number of the interval at instants of any shape, in seconds."""
        if not self._drift_s:
            return np.zeros(clock_s.shape, np.int64)
        return np.floor(clock_s / self._drift_s).astype(np.int64)

    def _scales(
        self,
        first: FloatArray,
        key: np.ndarray[tuple[int, ...], np.dtype[np.uint64]],
        clock_s: FloatArray,
        channel: IntArray | None,
    ) -> FloatArray:
        replicas, clients, channels = first.shape
        interval = self.interval(clock_s).reshape(replicas, -1, 1)
        if channel is None:
            chosen, initial = np.arange(channels), first
        else:
            chosen = np.maximum(channel, 0)[..., None]
            initial = np.take_along_axis(first, chosen, axis=2)
        low, high = self._range_db
        uniform = hashed_uniform(key, interval, np.arange(clients)[:, None], chosen)
        scales = np.where(interval == 0, initial, from_db(low + (high - low) * uniform))
        return scales if channel is None else scales[..., 0]
