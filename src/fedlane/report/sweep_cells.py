"""The folder of a sweep: its files, and its table by cells, with 95% intervals over seeds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from fedlane.files import read_regular
from fedlane.intervals import interval, measure_bounds
from fedlane.number_text import number_text
from fedlane.parquet_tables import read_table
from fedlane.report.plot_data import Value, table_data
from fedlane.validate import InputError, printable

PLAN, TABLE, FAILURES, SCENARIO = "sweep.json", "sweep.parquet", "failures.json", "scenario.toml"
"""Files of a sweep's folder."""
LARGEST_BYTES = 50_000_000
"""Largest sweep.json or failures.json that is read."""
SHOWN_MEASURES = (
    ("cumulative_delay_s", "delay (s)", 1.0, 1),
    ("late_share", "late (%)", 100.0, 1),
    ("min_participation", "min. part.", 1.0, 3),
    ("final_accuracy", "accuracy (%)", 100.0, 1),
    ("final_rmse", "RMSE", 1.0, 4),
)
"""Measures in the terminal: name, heading, factor and decimals."""
SHOWN_CELLS = 40
"""Largest number of cells in the terminal."""


@dataclass(frozen=True)
class SweepCells:
    """The measures of every cell of a sweep, in the order of its table.

    Attributes:
        keys: For each key, the grid's and ``policy``, its value in each cell; None where it is missing.
        seeds: Number of seeds of each cell.
        measures: For each measure, the mean and the 95% interval of each cell, as `intervals.interval` gives them.
    """

    keys: Mapping[str, Sequence[Value | None]]
    seeds: Sequence[int]
    measures: Mapping[str, Sequence[Mapping[str, float | None]]]


@dataclass(frozen=True)
class SweepFiles:
    """What a sweep's folder holds.

    Attributes:
        folder: Name of the folder, without its path.
        plan: Content of sweep.json: scenario, policies, grid, seeds.
        toml: The scenario without the grid; empty if the folder has none.
        cells: The finished cells.
        failures: Content of failures.json: the cells that failed.
    """

    folder: str
    plan: Mapping[str, Any]
    toml: str
    cells: SweepCells
    failures: Sequence[Mapping[str, Any]]


def is_sweep(folder: Path) -> bool:
    """Whether a folder was written by `fedlane sweep`."""
    return (folder / PLAN).is_file() or (folder / TABLE).is_file()


def read_sweep(folder: Path) -> SweepFiles:
    """Read a sweep's folder.

    Raises:
        InputError: A file is damaged, or no cell is finished.
    """
    if not (folder / TABLE).is_file():
        raise InputError(f"{folder} has no {TABLE} yet: the sweep writes it when it ends or is interrupted")
    cells = sweep_cells(read_table(folder / TABLE, ("policy", "seed"), texts=True))
    if not cells.seeds:
        raise InputError(f"{folder / TABLE} has no rows: no cell of the sweep is finished")
    plan = _read(folder / PLAN, dict)
    failures = _read(folder / FAILURES, list)
    try:
        toml = read_regular(folder / SCENARIO, LARGEST_BYTES).decode(errors="replace")
    except OSError:
        toml = ""  # only the page shows it
    lines = [str(printable(line)) for line in toml.splitlines()]
    return SweepFiles(folder.resolve().name, plan, "\n".join(lines), cells, failures)


def _read(path: Path, kind: type[Any]) -> Any:
    """Read a JSON file, whose content must be of a kind; a missing file is empty."""
    if not path.exists():
        return kind()
    try:
        content: Any = printable(json.loads(read_regular(path, LARGEST_BYTES)))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    if not isinstance(content, kind) or (kind is list and not all(isinstance(item, dict) for item in content)):
        raise InputError(f"{path} was not written by FedLane")
    return content


def sweep_cells(table: pa.Table) -> SweepCells:
    """Group a sweep's table by cells.

    Args:
        table: One row per cell and seed, as in sweep.parquet.
    """
    data = table_data(table)
    names = [name for name in data.keys if name in table.column_names and name != "seed"]
    members: dict[tuple[Value | None, ...], list[int]] = {}
    for row in range(data.rows):
        members.setdefault(tuple(data.keys[name][row] for name in names), []).append(row)
    measures = {}
    for name, values in data.measures.items():
        if np.isfinite(values).any():
            per_cell = [values[rows] for rows in members.values()]
            bounds = measure_bounds(name)
            measures[name] = [interval(cell[np.isfinite(cell)], bounds) for cell in per_cell]
    keys = {name: [cell[k] for cell in members] for k, name in enumerate(names)}
    return SweepCells(keys, [len(rows) for rows in members.values()], measures)


def cells_json(cells: SweepCells) -> list[dict[str, Any]]:
    """Return the cells as plain values: their keys, the number of seeds, and every measure with its interval."""
    return [
        {
            **{name: values[k] for name, values in cells.keys.items()},
            "seeds": seeds,
            **{name: dict(values[k]) for name, values in cells.measures.items()},
        }
        for k, seeds in enumerate(cells.seeds)
    ]


def cells_table(cells: SweepCells, limit: int = SHOWN_CELLS) -> Table:
    """Return a terminal's table of the first cells: means and 95% intervals over seeds."""
    measures = [shown for shown in SHOWN_MEASURES if shown[0] in cells.measures]
    short = [name.rpartition(".")[2] for name in cells.keys]
    table = Table(*map(escape, short if len({*short}) == len(short) else cells.keys), box=SIMPLE_HEAD)
    for _, heading, _, _ in measures:
        table.add_column(heading, justify="right", no_wrap=True)
    for k in range(min(limit, len(cells.seeds))):
        keys = ["-" if values[k] is None else _text(values[k]) for values in cells.keys.values()]
        numbers = (_measure(cells.measures[name][k], scale, decimals) for name, _, scale, decimals in measures)
        table.add_row(*map(escape, keys), *numbers)
    omitted = len(cells.seeds) - limit
    several = "mean ± half of the 95% interval over seeds" if max(cells.seeds) > 1 else "one seed: no interval"
    table.caption = f"{several}; {omitted} more cells are in {TABLE}" if omitted > 0 else several
    return table


def _text(value: Value | None) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _measure(measure: Mapping[str, float | None], scale: float, decimals: int) -> str:
    mean, low, high = (measure[part] for part in ("mean", "low", "high"))
    if mean is None:
        return "-"
    digits = 0 if abs(scale * mean) >= 1000 else decimals
    form = f"{{:,.{digits}f}}"
    text = number_text(scale * mean, form)
    return text if low is None or high is None else f"{text} ± {number_text(scale * (high - low) / 2, form)}"
