"""Which part of a run its trace holds in memory, and the sums that stand for the rest."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.records import BoolArray, FloatArray, IntArray

CLIENT_ROWS = 10_000_000
"""Largest number of seeds x rounds x clients of which every round is kept; beyond, every k-th round is."""
CHANNEL_ROWS = 2_000_000
"""Largest number of seeds x rounds x channels that is held in memory; beyond, rounds are moved to files."""
SEGMENT_ROWS = 500_000
"""Number of seeds x rounds x channels in a file."""


@dataclass
class Totals:
    """Sums over all rounds so far, which a bounded trace cannot compute from its arrays.

    Attributes:
        assigned: (R, U): number of rounds in which each client was assigned.
        punctual: (R, U): number of rounds in which it was assigned and punctual.
        queue: (R, U): queues after the last round.
    """

    assigned: IntArray
    punctual: IntArray
    queue: FloatArray

    @classmethod
    def zero(cls, replicas: int, clients: int) -> "Totals":
        """Return the totals before the first round."""
        shape = replicas, clients
        return cls(np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.float32))

    def add(self, client: IntArray, punctual: BoolArray) -> None:
        """Add a round: the client on each channel, -1 for none, and whether it met the deadline, both (R, N)."""
        for total, counted in ((self.assigned, client >= 0), (self.punctual, punctual)):
            replica, channel = np.nonzero(counted)
            total[replica, client[replica, channel]] += 1


@dataclass(frozen=True)
class TraceShape:
    """Number of rounds that a trace holds.

    Attributes:
        window: S, rounds of the channels' arrays.
        every: k, rounds from one row of the clients' arrays to the next.
        bounded: Whether the trace is bounded.
    """

    window: int
    every: int
    bounded: bool

    @classmethod
    def of(cls, replicas: int, rounds: int, clients: int, channels: int) -> "TraceShape":
        """Return the shape that `Trace.fitting` chooses."""
        client_rows, channel_rows = replicas * rounds * clients, replicas * rounds * channels
        if client_rows <= CLIENT_ROWS and channel_rows <= CHANNEL_ROWS:
            return cls(rounds, 1, bounded=False)
        window = max(1, min(rounds, SEGMENT_ROWS // (replicas * channels)))
        return cls(window, max(1, -(-client_rows // CLIENT_ROWS)), bounded=True)


def channel_arrays(replicas: int, rounds: int, channels: int) -> dict[str, NDArray[Any]]:
    """Return the arrays with a channel axis, unset."""
    shape = replicas, rounds, channels
    return {
        "client": np.full(shape, -1, np.int32),
        **{name: np.full(shape, np.nan) for name in ("download_s", "compute_s", "upload_s")},
        "punctual": np.zeros(shape, np.bool_),
    }
