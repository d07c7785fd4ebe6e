"""Which part of a run its trace holds in memory, and the sums that stand for the rest."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.records import BoolArray, FloatArray, IntArray

HELD_CLIENT_ROWS, HELD_CHANNEL_ROWS = 500_000, 250_000
"""Largest numbers of seeds x rounds x clients, and x channels, whose trace is whole; beyond, rounds are moved to files.
A row of a client needs about 250 bytes of memory while its table is made, a row of a channel 180."""
LISTED_CLIENT_ROWS = 2_000_000
"""With more seeds x rounds x clients, the table ``rounds`` has the largest queue: reports do not read every row."""
CLIENT_ROWS = 10_000_000
"""Largest number of seeds x rounds x clients of which every round is kept; beyond, every k-th round is."""
SEGMENT_ROWS = 250_000
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
        largest: Whether the trace has the largest queue of every round.
    """

    window: int
    every: int
    bounded: bool
    largest: bool

    @classmethod
    def of(cls, replicas: int, rounds: int, clients: int, channels: int) -> "TraceShape":
        """Return the shape that `Trace.fitting` chooses."""
        client_rows, channel_rows = replicas * rounds * clients, replicas * rounds * channels
        every = max(1, -(-client_rows // CLIENT_ROWS))
        if every == 1 and client_rows <= HELD_CLIENT_ROWS and channel_rows <= HELD_CHANNEL_ROWS:
            return cls(rounds, 1, bounded=False, largest=False)
        window = max(1, min(rounds, SEGMENT_ROWS // (replicas * channels)))
        return cls(window, every, bounded=True, largest=every > 1 or client_rows > LISTED_CLIENT_ROWS)


def channel_arrays(replicas: int, rounds: int, channels: int) -> dict[str, NDArray[Any]]:
    """Return the arrays with a channel axis, unset."""
    shape = replicas, rounds, channels
    return {
        "client": np.full(shape, -1, np.int32),
        **{name: np.full(shape, np.nan) for name in ("download_s", "compute_s", "upload_s")},
        "punctual": np.zeros(shape, np.bool_),
    }
