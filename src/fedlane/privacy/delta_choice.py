"""Whether a delta is small enough for the number of records that it protects."""

import math

import numpy as np
from numpy.typing import ArrayLike


def delta_remark(delta: ArrayLike, sizes: ArrayLike, name: str = "privacy.delta") -> str | None:
    """Return one line if a delta is not below 1/|D|, with a value to choose instead; None if all are.

    A mechanism that publishes each record with probability delta is (0, delta)-DP, and of |D| records it publishes
    |D| delta on average. With a delta of 1/|D| or more, a budget therefore does not exclude that records are revealed.

    Args:
        delta: Delta of each client, or one for all.
        sizes: Number of each client's records; the last axis is that of the clients.
        name: The key or option to which the value belongs.
    """
    deltas, records = np.broadcast_arrays(np.asarray(delta, np.float64), np.asarray(sizes, np.float64))
    worst = int(np.argmax(deltas * records))
    value, size = float(deltas.flat[worst]), float(records.flat[worst])
    if value * size < 1:
        return None
    suggested = 10.0 ** math.floor(-math.log10(10 * size))
    return (
        f"{name} should be below 1/|D|, which is {1 / size:.2g} for a client with {size:,.0f} records, got {value:g}; "
        f"choose for example {suggested:g}"
    )
