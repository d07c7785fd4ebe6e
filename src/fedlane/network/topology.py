"""Where clients and access points lie (paper, Section VI; reading 1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlane.records import FloatArray
from fedlane.rng import generator


@dataclass(frozen=True)
class Topology:
    """Positions in the square; a channel is an access point with a place of its own."""

    client_xy_m: FloatArray
    """(R, U, 2)"""
    channel_xy_m: FloatArray
    """(R, N, 2)"""

    def distance_km(self, min_distance_m: float) -> FloatArray:
        """Client-channel distances (R, U, N), never below ``min_distance_m``."""
        dx = self.client_xy_m[:, :, None, 0] - self.channel_xy_m[:, None, :, 0]
        dy = self.client_xy_m[:, :, None, 1] - self.channel_xy_m[:, None, :, 1]
        distance_m = np.hypot(dx, dy, out=dx)
        return np.maximum(distance_m, min_distance_m, out=distance_m) / 1000.0


def place(seeds: Sequence[int], clients: int, channels: int, area_m: float) -> Topology:
    """Clients and channels uniformly in a square of side ``area_m``."""
    points = np.stack([generator(seed, "positions").uniform(0.0, area_m, (clients + channels, 2)) for seed in seeds])
    return Topology(client_xy_m=points[:, :clients], channel_xy_m=points[:, clients:])
