"""Sweeps: a grid of settings under several policies, computed once, kept in a folder, returned as one table."""

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedlane.experiments.engine.cell_store import CELLS, CellStore
from fedlane.experiments.engine.computing import EngineReport, Runner, compute
from fedlane.experiments.engine.local_runners import InProcessRunner, ProcessRunner
from fedlane.experiments.engine.measuring import MEASURES, RMSE, SCHEMA
from fedlane.experiments.engine.work_batches import FinishedBatch
from fedlane.experiments.sweep_folder import claimed, write_results
from fedlane.experiments.sweep_grid import grid_column, plain_grid
from fedlane.experiments.sweep_plan import SweepCell, SweepPlan
from fedlane.scenario import Scenario
from fedlane.simulation.run import seed_list
from fedlane.validate import InputError


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
        out: Folder that keeps the results, as `fedlane sweep` does: a sweep that was interrupted continues there, and
            may grow by policies, seeds and values of the grid.

    Returns:
        One row per cell and seed: every grid key, ``policy``, ``seed``, and the measures of ``summary.json``.

    Raises:
        InputError: The scenario, a policy, the grid or the seeds are invalid, or every cell failed.

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
        if count == len(plan.cells):
            raise InputError(f"all {count} cells failed; the first: {first}")
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
    if ray == "":
        raise InputError("the address of the Ray cluster is empty: give HOST:PORT")
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
        folder: The sweep's folder, new, or of the same or a smaller sweep; None to keep nothing.
        on_finished: Called after each batch.

    Raises:
        InputError: The plan is invalid, or the folder belongs to something else.
    """
    plan.cells  # noqa: B018 - refuses invalid input before the folder is made
    store = CellStore(None if folder is None else folder / CELLS, plan.batches)
    with contextlib.nullcontext() if folder is None else claimed(plan, folder):
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


def sweep_table(plan: SweepPlan, store: CellStore) -> pa.Table:
    """Return the table of the cells whose batches are all stored, in the order of the plan."""
    stored = store.keys()
    complete = [cell for cell in plan.cells if cell.batches and all(batch.key in stored for batch in cell.batches)]
    rows: list[pa.Table] = []
    owners: list[SweepCell] = []
    for cell in complete:
        for batch in cell.batches:
            rows.append(store.table(batch.key))
            owners += [cell] * rows[-1].num_rows
    measures = pa.concat_tables(rows, promote_options="default") if rows else SCHEMA.empty_table()
    columns: dict[str, Any] = {}
    for key, options in plan.grid.items():
        column, places = grid_column(options), {id(v): k for k, v in enumerate(options)}
        columns[key] = column.take(pa.array([places[id(cell.values[key])] for cell in owners], pa.int64()))
    columns["policy"] = pa.array([cell.policy for cell in owners], pa.string())
    columns["seed"] = measures["seed"]
    names = [name for name in (*MEASURES, RMSE) if name in measures.column_names]
    return pa.table({**columns, **{name: measures[name] for name in names}})


def _failures(plan: SweepPlan, failed: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the cells that failed, each with the line of its first failed batch."""
    failures = []
    for cell in plan.cells:
        lines = [failed[batch.key] for batch in cell.batches if batch.key in failed]
        error = cell.error or (lines[0] if lines else None)
        if error is not None:
            failures.append({"values": dict(cell.values), "policy": cell.policy, "error": error})
    return failures
