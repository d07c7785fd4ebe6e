"""Positions of clients and access points (paper, Section VII; reading 1 in docs/reading-the-paper.md)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlane.records import FloatArray, IntArray
from fedlane.rng import generator


@dataclass(frozen=True)
class Topology:
    """Positions in the area. Each channel is served by one access point at a fixed position.

    Attributes:
        client_xy_m: (R, U, 2) positions of the clients in metres.
        channel_xy_m: (R, N, 2) positions of the channels' access points in metres.

    Examples:
        >>> import numpy as np
        >>> topology = Topology(np.zeros((1, 1, 2)), np.array([[[300.0, 400.0]]]))
        >>> topology.distance_km(min_distance_m=10.0)
        array([[[0.5]]])
    """

    client_xy_m: FloatArray
    channel_xy_m: FloatArray

    def distance_km(self, min_distance_m: float) -> FloatArray:
        """Return the distance of every client from every channel.

        Args:
            min_distance_m: Smallest distance in metres; shorter ones are raised to it.

        Returns:
            (R, U, N) distances in km.
        """
        return _distance_km(self.client_xy_m[:, :, None], self.channel_xy_m[:, None], min_distance_m)

    def distance_of_km(
        self, replica: IntArray, client: IntArray, channel: IntArray, min_distance_m: float
    ) -> FloatArray:
        """Return the distances of some pairs.

        Args:
            replica: (K,) replica of each pair.
            client: (K,) client of each pair.
            channel: (K,) channel of each pair.
            min_distance_m: Smallest distance in metres; shorter ones are raised to it.

        Returns:
            (K,) distances in km.
        """
        return _distance_km(self.client_xy_m[replica, client], self.channel_xy_m[replica, channel], min_distance_m)


def distances_m(xy_m: FloatArray, channel_xy_m: FloatArray, channel: IntArray | None = None) -> FloatArray:
    """Return the distances of clients from channels.

    Args:
        xy_m: (R, U, 2) positions of the clients in metres.
        channel_xy_m: (R, N, 2) positions of the channels in metres.
        channel: (R, U) channel of each client (-1 counts as 0); None for all channels.

    Returns:
        Metres, (R, U), or (R, U, N) for all channels.
    """
    if channel is None:
        difference_m = xy_m[:, :, None] - channel_xy_m[:, None]
    else:
        difference_m = xy_m - channel_xy_m[np.arange(len(xy_m))[:, None], np.maximum(channel, 0)]
    return np.hypot(difference_m[..., 0], difference_m[..., 1])


def _distance_km(from_m: FloatArray, to_m: FloatArray, min_distance_m: float) -> FloatArray:
    """Return the distances in km between points (..., 2) in metres."""
    dx, dy = from_m[..., 0] - to_m[..., 0], from_m[..., 1] - to_m[..., 1]
    distance_m = np.hypot(dx, dy, out=dx)
    return np.maximum(distance_m, min_distance_m, out=distance_m) / 1000.0


def place(seeds: Sequence[int], clients: int, channels: int, area_m: float) -> Topology:
    """Place clients and channels uniformly in a square.

    Args:
        seeds: R seeds, one per replica.
        clients: Number of clients, U.
        channels: Number of channels, N.
        area_m: Side of the square in metres.

    Returns:
        Their positions.
    """
    points = np.stack([generator(seed, "positions").uniform(0.0, area_m, (clients + channels, 2)) for seed in seeds])
    return Topology(client_xy_m=points[:, :clients], channel_xy_m=points[:, clients:])
