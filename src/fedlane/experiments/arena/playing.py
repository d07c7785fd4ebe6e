"""Playing the arena: compute what is missing, and return one table of results and one of curves."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedlane.experiments.arena.arena_measures import CELL_SCHEMA, CURVES, MEASURES, POINTS, curve_rounds
from fedlane.experiments.arena.plan import ArenaCell, ArenaPlan
from fedlane.experiments.engine.cell_store import CELLS, CellStore
from fedlane.experiments.engine.computing import EngineReport, Runner, compute
from fedlane.experiments.engine.study_folder import LOCK, locked, write_files
from fedlane.experiments.engine.work_batches import FinishedBatch, parquet
from fedlane.validate import InputError

PLAN, TABLE, CURVES_TABLE, PAGE, FAILURES = (
    *("arena.json", "leaderboard.parquet", "curves.parquet", "leaderboard.html", "failures.json"),
)
"""Files of an arena's folder."""
CURVE_COLUMNS = ("world", "policy", "tuned", "league", "round", *CURVES)


@dataclass(frozen=True)
class ArenaResult:
    """An arena that was played.

    Attributes:
        table: The leaderboard's numbers, one row per world, entrant and seed.
        curves: Means over seeds at the points of every curve.
        failures: For each cell that failed, its world, its entrant and its one-line error.
        report: What the engine did.
    """

    table: pa.Table
    curves: pa.Table
    failures: list[dict[str, str]]
    report: EngineReport


def stored_keys(plan: ArenaPlan, folder: Path | None) -> set[str]:
    """Return the keys of a plan's batches that are stored in a folder."""
    return set() if folder is None else _store(plan, folder).keys()


def is_stored(cell: ArenaCell, stored: set[str]) -> bool:
    """Return whether all batches of a cell are stored."""
    return bool(cell.batches) and all(batch.key in stored for batch in cell.batches)


def check_arena_folder(folder: Path) -> None:
    """Raise `InputError` if a folder has files but is not an arena's.

    Cells have keys, so any arena may continue in the folder of another.
    """
    if (folder / PLAN).exists():
        return
    if folder.exists() and (not folder.is_dir() or any(item.name not in (LOCK, CELLS) for item in folder.iterdir())):
        raise InputError(f"{folder} is not empty and does not hold an arena: choose another --out")


def play_arena(
    plan: ArenaPlan, runner: Runner, folder: Path, on_finished: Callable[[FinishedBatch], None] | None = None
) -> ArenaResult:
    """Compute the cells that a folder lacks, and write the tables. After an interruption, the finished cells remain.

    Args:
        plan: The arena.
        runner: What computes its batches.
        folder: The folder, new or of any arena.
        on_finished: Called after each batch.

    Raises:
        InputError: The plan is invalid, or the folder belongs to something else.
    """
    plan.cells  # noqa: B018 - refuses invalid input before the folder is made
    with claimed_arena(plan, folder):
        store = _store(plan, folder)
        report = compute(plan.batches, store, runner, on_finished)
        table, curves = leaderboard_table(plan, store), curve_table(plan, store)
        failures = _failures(plan.cells, report)
        write_files(folder, {TABLE: parquet(table), CURVES_TABLE: parquet(curves)})
        if failures:
            write_files(folder, {FAILURES: (json.dumps(failures, indent=2) + "\n").encode()})
        else:
            (folder / FAILURES).unlink(missing_ok=True)
    return ArenaResult(table, curves, failures, report)


@contextlib.contextmanager
def claimed_arena(plan: ArenaPlan, folder: Path) -> Iterator[None]:
    """Create an arena's folder, or accept that of any arena, and keep other processes out meanwhile.

    Raises:
        InputError: The folder holds something else, is in use, or cannot be written.
    """
    check_arena_folder(folder)
    with locked(folder, "this arena"):
        write_files(folder, {PLAN: (json.dumps(plan.description(), indent=2) + "\n").encode()})
        yield


def leaderboard_table(plan: ArenaPlan, store: CellStore) -> pa.Table:
    """Return the results of all finished cells, one row per world, entrant and seed.

    The optimum has rows only for seeds on which it exists.
    """
    rows: list[dict[str, Any]] = []
    for cell, table in _finished(plan.cells, store):
        head = {
            "world": cell.world.name,
            "policy": cell.entrant.name,
            "tuned": cell.entrant.tuned,
            "league": cell.entrant.league,
        }
        tail = {
            "rounds": cell.world.scenario.rounds,
            "target_accuracy": cell.world.target_accuracy if cell.learning else None,
            "parameters": cell.entrant.policy,
        }
        for row in table.select(["seed", *MEASURES]).to_pylist():
            if row["simulated_time_s"] is not None:
                rows.append({**head, **row, **tail})
    return pa.Table.from_pylist(rows, leaderboard_schema())


def leaderboard_schema() -> "pa.Schema":
    """Return the columns of ``leaderboard.parquet``."""
    return _schema("world", "policy", "tuned", "league", "seed", *MEASURES, "rounds", "target_accuracy", "parameters")


def _schema(*names: str) -> "pa.Schema":
    """Return columns by name: texts, truth values and whole numbers for the names listed here, otherwise floats."""
    types: dict[str, pa.DataType] = dict.fromkeys(("world", "policy", "league", "parameters"), pa.string())
    types |= {"tuned": pa.bool_(), **dict.fromkeys(("seed", "round", "rounds"), pa.int64())}
    return pa.schema([(name, types.get(name, pa.float64())) for name in names])


def curve_table(plan: ArenaPlan, store: CellStore) -> pa.Table:
    """Return the means over seeds of clock and accuracy at the points of every finished cell's curve."""
    rows: list[dict[str, Any]] = []
    for cell, table in _finished(plan.cells, store):
        if table["simulated_time_s"].null_count == table.num_rows:
            continue
        means = {name: _mean(table, name) for name in CELL_SCHEMA.names if name[:-3] in CURVES}
        for k, end in zip(range(POINTS), curve_rounds(cell.world.scenario.rounds), strict=True):
            head = (cell.world.name, cell.entrant.name, cell.entrant.tuned, cell.entrant.league, end)
            rows.append(dict(zip(CURVE_COLUMNS, (*head, *(means[f"{name}_{k:02d}"] for name in CURVES)), strict=True)))
    return pa.Table.from_pylist(rows, _schema(*CURVE_COLUMNS))


def _mean(table: pa.Table, name: str) -> float | None:
    values = np.array([value for value in table[name].to_pylist() if value is not None])
    return float(values.mean()) if len(values) else None


def _store(plan: ArenaPlan, folder: Path) -> CellStore:
    return CellStore(folder / CELLS, [batch for cell in plan.cells for batch in cell.batches], CELL_SCHEMA)


def _finished(cells: Sequence[ArenaCell], store: CellStore) -> Iterator[tuple[ArenaCell, pa.Table]]:
    """Yield the cells whose batches are all stored, each with its table."""
    stored = store.keys()
    for cell in cells:
        if is_stored(cell, stored):
            yield cell, pa.concat_tables([store.table(batch.key) for batch in cell.batches])


def _failures(cells: Sequence[ArenaCell], report: EngineReport) -> list[dict[str, str]]:
    failures = []
    for cell in cells:
        lines = [report.failures[batch.key] for batch in cell.batches if batch.key in report.failures]
        error = cell.error or (lines[0] if lines else None)
        if error is not None:
            failures.append({"world": cell.world.name, "policy": cell.entrant.label, "error": error})
    return failures
