"""Where the clients were in the rounds of a run: the table ``positions``, in worlds whose clients move.

Positions follow from the seed and the simulated time, so nothing is kept during a run: the table is made from the
network and the rounds' clocks when it is written.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from fedlane.network import Network
from fedlane.records import FloatArray, IntArray

SEED_ROWS = 50_000
"""Largest number of rounds x clients of one seed; if there are more, every k-th round is stored."""
POSITION_ROWS = 500_000
"""Largest number of seeds x rounds x clients; if there are more, only the first seeds are stored."""


def stored_rounds(played: int, planned: int, clients: int) -> IntArray:
    """Return the rounds whose positions are stored: every k-th, and the last one.

    Args:
        played: Rounds so far.
        planned: Rounds of the whole run, on which k depends, so that k is the same while the run continues.
        clients: Number of clients.
    """
    every = max(1, -(-planned * clients // SEED_ROWS))
    return np.unique(np.append(np.arange(0, played, every), played - 1)) if played else np.zeros(0, np.int64)


def position_parts(network: Network, delay_s: FloatArray, planned: int) -> Iterator[pa.Table]:
    """Yield the table of positions, one part per seed.

    Args:
        network: The network, whose clients move.
        delay_s: (R, T) durations of the rounds so far, in seconds.
        planned: Rounds of the whole run.
    """
    replicas, played = delay_s.shape
    rounds = stored_rounds(played, planned, network.clients)
    start_s = (np.cumsum(delay_s, axis=1) - delay_s)[:, rounds]
    kept = max(1, min(replicas, POSITION_ROWS // max(1, len(rounds) * network.clients)))
    xy_m = np.zeros((kept, len(rounds), network.clients, 2), np.float32)
    for row in range(len(rounds)):
        positions_m = network.positions_m(start_s[:, row])
        assert positions_m is not None
        xy_m[:, row] = positions_m[:kept]
    for replica in range(kept):
        yield pa.table(
            {
                "replica": np.full(xy_m[replica, ..., 0].size, replica, np.int32),
                "round": np.repeat(rounds, network.clients).astype(np.int32),
                "client": np.tile(np.arange(network.clients, dtype=np.int32), len(rounds)),
                "x_m": xy_m[replica, ..., 0].ravel(),
                "y_m": xy_m[replica, ..., 1].ravel(),
            }
        )


def has_movement(network: Network) -> bool:
    """Whether the clients of a network move."""
    return network.positions_m(np.zeros(len(network.seeds))) is not None
