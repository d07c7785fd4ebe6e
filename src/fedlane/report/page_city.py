"""The city of a run as a page embeds it: buildings, and the best gain of every cell as shades."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from fedlane.city_map import shipped_maps
from fedlane.parquet_tables import column_floats
from fedlane.records import FloatArray
from fedlane.report.packing import packed_bits, packed_indices
from fedlane.report.run_files import RunFiles
from fedlane.validate import InputError

PAGE_CELLS = 80_000
"""Largest number of cells on a page; of a larger city, every k-th row and column is shown."""
SHADES = 254
"""Shade of the largest gain; that of the smallest is 0."""
FAINT = 2.0
"""Per cent of the cells whose gains are below the range of shades, so that a few deep shadows do not stretch it."""

CREDIT = "buildings \u00a9 OpenStreetMap contributors, ODbL 1.0"
"""Notice under the maps that come with FedLane."""


def cities(runs: Iterable[RunFiles]) -> tuple[list[dict[str, Any]], list[int | None]]:
    """The cities of some runs, each once, and for every run the number of its city; None without one."""
    known: dict[str, int] = {}
    listed: list[dict[str, Any]] = []
    numbers: list[int | None] = []
    for files in runs:
        table = files.tables.get("coverage")
        if table is None or not table.num_rows:
            numbers.append(None)
            continue
        network = files.scenario.get("network", {})
        shipped = isinstance(network, dict) and network.get("map") in shipped_maps()
        city = {**_city(table), "credit": CREDIT if shipped else ""}
        digest = hashlib.sha256(json.dumps(city).encode()).hexdigest()
        if digest not in known:
            known[digest] = len(listed)
            listed.append(city)
        numbers.append(known[digest])
    return listed, numbers


def _city(table: pa.Table) -> dict[str, Any]:
    """Buildings (H, W), shades of the gains (H, W), their range in dB, and where the grid lies in metres."""
    x_m, y_m = (np.unique(column_floats(table, name)) for name in ("x_m", "y_m"))
    if len(x_m) * len(y_m) != table.num_rows or not np.isfinite([*x_m, *y_m]).all():
        raise InputError(f"table coverage has {table.num_rows:,} rows, which are not those of a grid of cells")
    shape = len(y_m), len(x_m)
    every = 1
    while -(-shape[0] // every) * -(-shape[1] // every) > PAGE_CELLS:
        every += 1
    cell_m = _spacing_m(x_m, y_m)
    building = (column_floats(table, "building").reshape(shape) == 1.0)[::every, ::every]
    gain_db = column_floats(table, "gain_db").reshape(shape)[::every, ::every]
    audible = gain_db[np.isfinite(gain_db) & ~building]
    low_db, high_db = (np.percentile(audible, FAINT), audible.max()) if len(audible) else (-100.0, 0.0)
    share = np.clip((gain_db - low_db) / max(high_db - low_db, 1e-9), 0.0, 1.0)
    shades = np.where(np.isfinite(gain_db), np.rint(SHADES * np.nan_to_num(share)), -1).astype(np.int64)
    return {
        "origin_m": [float(x_m[0]) - cell_m / 2, float(y_m[0]) - cell_m / 2],
        "cell_m": cell_m * every,
        "building": packed_bits(building),
        "shade": packed_indices(shades),
        "gain_db": [float(low_db), float(high_db)],
    }


def _spacing_m(x_m: FloatArray, y_m: FloatArray) -> float:
    """The distance of neighbouring cells in metres; 1 if there is only one cell."""
    steps = np.concatenate([np.diff(x_m), np.diff(y_m)])
    return float(np.median(steps)) if len(steps) else 1.0
