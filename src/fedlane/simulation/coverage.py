"""The city that a run took place in: the table ``coverage``, with its buildings and the best gain of every cell.

A run keeps it, because the map may be a file that is not there when somebody looks at the run.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from fedlane.city_map import CityMap

COVERAGE_CELLS = 100_000
"""Largest number of cells in the table; neighbouring cells of a larger map are joined."""


def coverage_parts(city: CityMap) -> Iterator[pa.Table]:
    """Yield the table, which has one part."""
    yield coverage_table(city)


def coverage_table(city: CityMap) -> pa.Table:
    """Return the cells of a city, row by row from the smallest coordinates.

    Args:
        city: The map. Blocks of k x k cells become one, with the best gain of any, if there are too many; a block is a
            building if most of its cells are, and a rest at the upper edges is left out.

    Returns:
        ``x_m`` and ``y_m`` of each cell's centre, whether it is a ``building``, and ``gain_db``: the best gain of any
        station, null where nothing arrives.
    """
    joined = 1
    while (city.building.shape[0] // joined) * (city.building.shape[1] // joined) > COVERAGE_CELLS:
        joined += 1
    rows, columns = (max(1, size // joined) for size in city.building.shape)
    tall, wide = (min(joined, size) for size in city.building.shape)
    blocks = (rows, tall, columns, wide)
    cut = slice(0, rows * tall), slice(0, columns * wide)
    building = city.building[cut].reshape(blocks).mean(axis=(1, 3)) > 0.5
    best_db = city.gain_db.max(axis=0)[cut].reshape(blocks).max(axis=(1, 3))
    x_m, y_m = (
        city.origin_m[axis] + city.cell_m * size * (np.arange(count) + 0.5)
        for axis, (size, count) in enumerate(((wide, columns), (tall, rows)))
    )
    return pa.table(
        {
            "x_m": np.tile(x_m, rows),
            "y_m": np.repeat(y_m, columns),
            "building": building.ravel(),
            "gain_db": pa.array(best_db.ravel().astype(np.float32), mask=~np.isfinite(best_db.ravel())),
        }
    )
