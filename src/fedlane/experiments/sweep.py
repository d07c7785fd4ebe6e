"""Sweeps: a grid of settings under several policies, computed once, kept in a folder, returned as one table."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedlane.experiments.engine.batch_store import BatchStore
from fedlane.experiments.engine.computing import EngineReport, Runner, compute
from fedlane.experiments.engine.local_runners import InProcessRunner, ProcessRunner
from fedlane.experiments.engine.measuring import MEASURES, SCHEMA
from fedlane.experiments.engine.work_batches import FinishedBatch, parquet
from fedlane.experiments.sweep_grid import grid_column, plain_grid
from fedlane.experiments.sweep_plan import FORMAT, SweepCell, SweepPlan
from fedlane.files import read_regular, write_atomically
from fedlane.report.sweep_cells import FAILURES, PLAN, SCENARIO, TABLE
from fedlane.scenario import Scenario
from fedlane.simulation.run import seed_list
from fedlane.validate import InputError

CELLS = "cells"
"""Folder of the stored batches in a sweep's folder."""
MAX_PLAN_BYTES = 50_000_000


@dataclass(frozen=True)
class SweepResult:
    """A sweep that was played.

    Attributes:
        table: One row per cell and seed: every grid key, ``policy``, ``seed``, and the measures.
        failures: For each cell that failed: its values, its policy and its line.
        report: What the engine did.
    """

    table: pa.Table
    failures: list[dict[str, Any]]
    report: EngineReport


def sweep(
    scenario: Scenario | str,
    policies: Sequence[str] | str = "lane",
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int | Sequence[int] = (0,),
    rounds: int | None = None,
    learning: bool = True,
    device: str = "cpu",
    workers: int | None = None,
    ray: bool | str = False,
    out: str | Path | None = None,
) -> pa.Table:
    """Simulate a scenario under several policies for every combination of a grid's values.

    A cell that fails is left out, and a `RuntimeWarning` gives the first reason. With ``workers``, start the program
    under ``if __name__ == "__main__":``, as `multiprocessing` requires.

    Args:
        scenario: A scenario, a preset's name or the path of a TOML file.
        policies: Names of policies, with or without parameters.
        grid: Values by key: scenario keys (``network.clients``) or policy parameters (``policies.lane.V``).
        seeds: The seeds; a number K stands for the seeds 0 to K-1.
        rounds: Number of rounds, instead of the scenario's.
        learning: Whether to train models; if False, only schedules are computed.
        device: Where models are trained: ``cpu`` or ``cuda``.
        workers: Number of processes; by default everything is computed in this process.
        ray: True for the local Ray, which is started if none is running, or a cluster's address.
        out: Folder that keeps the results, as `fedlane sweep` does: a sweep that was interrupted continues there.

    Returns:
        One row per cell and seed: every grid key, ``policy``, ``seed``, and the measures of ``summary.json``.

    Raises:
        InputError: The scenario, a policy, the grid or the seeds are invalid.

    Examples:
        >>> from fedlane import sweep
        >>> grid = {"network.channels": [2, 4]}
        >>> table = sweep("quickstart", ["lane", "random"], grid, seeds=3, rounds=20, learning=False)
        >>> table.num_rows, table.column_names[:4]
        (12, ['network.channels', 'policy', 'seed', 'cumulative_delay_s'])
    """
    base = Scenario.load(scenario) if isinstance(scenario, str) else scenario
    if rounds is not None:
        base = base.with_values({"rounds": rounds})
    if device not in ("cpu", "cuda"):
        raise InputError(f"device must be cpu or cuda, got '{device}'")
    names = (policies,) if isinstance(policies, str) else tuple(policies)
    plan = SweepPlan(base, names, plain_grid(grid or {}), tuple(int(s) for s in seed_list(seeds)), learning, device)
    result = play_sweep(plan, make_runner(workers, ray), None if out is None else Path(out))
    if result.failures:
        count, first = len(result.failures), result.failures[0]["error"]
        warnings.warn(f"{count} of {len(plan.cells)} cells failed; the first: {first}", RuntimeWarning, stacklevel=2)
    return result.table


def make_runner(workers: int | None = None, ray: bool | str = False) -> Runner:
    """Return the runner for a number of workers, on this machine or on Ray.

    Args:
        workers: Number of processes or of Ray tasks at a time.
        ray: True for the local Ray, or a cluster's address.

    Raises:
        InputError: The number of workers is less than 1.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}")
    if ray:
        from fedlane.experiments.engine.ray_runner import RayRunner

        return RayRunner(None if ray is True else ray, workers)
    return InProcessRunner() if workers in (None, 1) else ProcessRunner(int(workers or 1))


def play_sweep(
    plan: SweepPlan,
    runner: Runner,
    folder: Path | None = None,
    on_finished: Callable[[FinishedBatch], None] | None = None,
) -> SweepResult:
    """Compute what a sweep lacks and write its table. After an interruption, the table has the finished cells.

    Args:
        plan: The sweep.
        runner: What computes its batches.
        folder: The sweep's folder, new or of the same sweep; None to keep nothing.
        on_finished: Called after each batch.

    Raises:
        InputError: The plan is invalid, or the folder belongs to something else.
    """
    plan.cells  # noqa: B018 - refuses invalid input before the folder is made
    store = BatchStore(None if folder is None else folder / CELLS)
    if folder is not None:
        claim_folder(plan, folder)
    report: EngineReport | None = None
    try:
        report = compute(plan.batches, store, runner, on_finished)
    finally:
        if report is None and folder is not None:
            write_results(folder, sweep_table(plan, store), [])
    failures = _failures(plan, report.failures)
    table = sweep_table(plan, store)
    if folder is not None:
        write_results(folder, table, failures)
    return SweepResult(table, failures, report)


def sweep_table(plan: SweepPlan, store: BatchStore) -> pa.Table:
    """Return the table of the cells whose batches are all stored, in the order of the plan."""
    stored, contents = store.keys(), dict[str, pa.Table]()
    complete = [cell for cell in plan.cells if cell.batches and all(batch.key in stored for batch in cell.batches)]
    rows: list[pa.Table] = []
    owners: list[SweepCell] = []
    for cell in complete:
        for batch in cell.batches:
            if batch.key not in contents:
                contents[batch.key] = store.read(batch.key, SCHEMA.names).select(SCHEMA.names)
            rows.append(contents[batch.key])
            owners += [cell] * contents[batch.key].num_rows
    measures = pa.concat_tables(rows) if rows else SCHEMA.empty_table()
    columns: dict[str, Any] = {}
    for key, options in plan.grid.items():
        column, places = grid_column(options), {id(v): k for k, v in enumerate(options)}
        columns[key] = column.take(pa.array([places[id(cell.values[key])] for cell in owners], pa.int64()))
    columns["policy"] = pa.array([cell.policy for cell in owners], pa.string())
    columns["seed"] = measures["seed"]
    return pa.table({**columns, **{name: measures[name] for name in MEASURES}})


def _failures(plan: SweepPlan, failed: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the cells that failed, each with the line of its first failed batch."""
    failures = []
    for cell in plan.cells:
        lines = [failed[batch.key] for batch in cell.batches if batch.key in failed]
        error = cell.error or (lines[0] if lines else None)
        if error is not None:
            failures.append({"values": dict(cell.values), "policy": cell.policy, "error": error})
    return failures


def check_folder(plan: SweepPlan, folder: Path) -> None:
    """Raise `InputError` if a folder holds another sweep or something else."""
    path = folder / PLAN
    if path.exists():
        difference = _difference(json.loads(json.dumps(plan.description())), _read_plan(path))
        if difference:
            raise InputError(f"{folder} holds another sweep, which differs in {difference}: choose another --out")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty and does not hold a sweep: choose another --out")


def claim_folder(plan: SweepPlan, folder: Path) -> None:
    """Make a sweep's folder, or accept the folder of the same sweep.

    Raises:
        InputError: The folder holds another sweep or something else, or cannot be written.
    """
    check_folder(plan, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / PLAN).exists():
            write_atomically(folder / SCENARIO, plan.scenario.to_toml().encode())
            write_atomically(folder / PLAN, (json.dumps(plan.description(), indent=2) + "\n").encode())
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_regular(path, MAX_PLAN_BYTES))
        if values["format"] != FORMAT:
            raise InputError(f"{path} has format {values['format']}, this version reads {FORMAT}")
        return dict(values)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}") from error


def _difference(new: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    """Name the first part in which two plans differ; empty if they are equal."""
    for name in new:
        if new[name] == old.get(name):
            continue
        if name == "scenario" and isinstance(old.get(name), dict):
            return "scenario value " + next(
                (key for key in new[name] if new[name][key] != old[name].get(key)), "of another version"
            )
        return {"result_version": "the version of its results", "learning": "--no-learning"}.get(name, name)
    return ""


def write_results(folder: Path, table: pa.Table, failures: Sequence[Mapping[str, Any]]) -> None:
    """Write a sweep's table and its failures.

    Raises:
        InputError: The folder cannot be written.
    """
    try:
        write_atomically(folder / TABLE, parquet(table))
        if failures:
            write_atomically(folder / FAILURES, (json.dumps(list(failures), indent=2) + "\n").encode())
        else:
            (folder / FAILURES).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
