"""The command `fedlane sweep`: a grid of settings under several policies."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedlane.cli.cell_progress import cell_progress
from fedlane.cli.options import (
    CellsDryRunOption,
    Device,
    DeviceOption,
    JsonOption,
    NoLearningOption,
    QuietOption,
    RayAddressOption,
    RayOption,
    RoundsOption,
    SeedsOption,
    SetOption,
    WorkersOption,
    chosen_ray,
    parsed_seeds,
    resolved_scenario,
)
from fedlane.cli.run_plan import duration
from fedlane.cli.session import InterruptedRunError, messages, new_folder, print_notes, screen
from fedlane.files import file_name
from fedlane.validate import printable

if TYPE_CHECKING:  # imported inside functions, to keep `fedlane --help` fast
    from fedlane.experiments.sweep import SweepResult
    from fedlane.experiments.sweep_plan import SweepCell, SweepPlan

SHOWN_FAILURES = 5
"""Largest number of failures that are printed; failures.json has all."""


def sweep(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A preset or a TOML file.")],
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="KEY=V,...", help="A key and its values; repeat it for a product of grids."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="P", help="Policy (default: lane); repeat it for each policy."),
    ] = None,
    rounds: RoundsOption = None,
    seeds: SeedsOption = None,
    set_: SetOption = None,
    device: DeviceOption = Device.cpu,
    no_learning: NoLearningOption = False,
    workers: WorkersOption = None,
    ray: RayOption = False,
    ray_address: RayAddressOption = None,
    dry_run: CellsDryRunOption = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder; one that holds the same sweep is continued."),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a scenario for every combination of values in grids, under one or several policies.

    KEY is a scenario value such as network.clients, or a policy's parameter such as policies.lane.V. Finished cells are
    stored: the same command continues an interrupted sweep. One row per cell and seed goes to sweep.parquet.
    """
    from fedlane.experiments.sweep import make_runner, play_sweep
    from fedlane.experiments.sweep_grid import parse_grids
    from fedlane.experiments.sweep_plan import SweepPlan
    from fedlane.learning.federation import torch_device

    plan = SweepPlan(
        resolved_scenario(scenario, set_, rounds),
        tuple(policy or ["lane"]),
        parse_grids(grid or []),
        tuple(parsed_seeds("--seeds", seeds or "1")),
        not no_learning,
        device.value,
    )
    runner = make_runner(workers, chosen_ray(ray, ray_address))
    if plan.learning and not (ray or ray_address):
        torch_device(device.value)  # a missing GPU would make every cell fail
    if dry_run:
        _show_plan(plan, out, workers or 1, as_json=as_json, quiet=quiet)
        return
    plan.cells  # noqa: B018 - refuses invalid input before a folder is named
    folder = out or new_folder(f"{file_name(plan.scenario.name)}-sweep")
    started = time.monotonic()
    try:
        cells = [{batch.key for batch in cell.batches} for cell in plan.cells]
        with cell_progress(cells, _stored_keys(plan, folder), quiet=quiet or as_json) as on_finished:
            result = play_sweep(plan, runner, folder, on_finished)
    except KeyboardInterrupt:
        stored = _count_stored(plan, folder)
        raise InterruptedRunError(
            f"interrupted: {stored} of {len(plan.cells)} cells are stored in {folder}; "
            "the same command with --out continues"
        ) from None
    if as_json:
        print(json.dumps(_content(result, plan, folder, time.monotonic() - started)))
    else:
        _print_result(result, plan, folder, quiet=quiet)
    if result.failures:
        raise typer.Exit(1)


def _content(result: "SweepResult", plan: "SweepPlan", folder: Path, elapsed_s: float) -> dict[str, Any]:
    report = result.report
    return {
        "folder": str(folder),
        "cells": len(plan.cells),
        "rows": result.table.num_rows,
        "batches": {"computed": report.computed, "reused": report.reused, "retried": report.retried},
        "failures": result.failures,
        "elapsed_s": elapsed_s,
    }


def _stored_keys(plan: "SweepPlan", folder: Path | None) -> set[str]:
    from fedlane.experiments.engine.cell_store import CELLS, CellStore

    return set() if folder is None else CellStore(folder / CELLS, plan.batches).keys()


def _is_stored(cell: "SweepCell", stored: set[str]) -> bool:
    return bool(cell.batches) and all(batch.key in stored for batch in cell.batches)


def _count_stored(plan: "SweepPlan", folder: Path) -> int:
    stored = _stored_keys(plan, folder)
    return sum(_is_stored(cell, stored) for cell in plan.cells)


def _show_plan(plan: "SweepPlan", folder: Path | None, workers: int, *, as_json: bool, quiet: bool) -> None:
    """Print the cells of a sweep, which of them are stored, and about how long the others take."""
    from fedlane.experiments.sweep_estimate import estimated_sweep_seconds
    from fedlane.experiments.sweep_folder import check_folder

    if folder is not None:
        check_folder(plan, folder)
    stored = _stored_keys(plan, folder)
    missing = [cell for cell in plan.cells if not _is_stored(cell, stored) and cell.error is None]
    with messages.status("measuring cells"):
        seconds = estimated_sweep_seconds(plan, missing, workers)
    cells = [
        {"values": dict(c.values), "policy": c.policy, "stored": _is_stored(c, stored), "error": c.error}
        for c in plan.cells
    ]
    if as_json:
        print(json.dumps({"cells": cells, "seeds": list(plan.seeds), "missing": len(missing), "seconds": seconds}))
        return
    if quiet:
        return
    for cell in plan.cells:
        remark = f"  fails: {cell.error}" if cell.error else "  stored" if _is_stored(cell, stored) else ""
        screen.print(f"{printable(cell.label)}{printable(remark)}", highlight=False, markup=False, soft_wrap=True)
    cells_text, seeds_text, missing_text = (
        f"{number} {name}{'s' * (number != 1)}"
        for number, name in ((len(plan.cells), "cell"), (len(plan.seeds), "seed"), (len(missing), "cell"))
    )
    count = f"{cells_text} x {seeds_text}, {missing_text} to compute"
    time_left = f": about {duration(seconds)} with {workers} worker{'s' * (workers != 1)}" if missing else ""
    screen.print(f"{count}{time_left}", highlight=False, soft_wrap=True)


def _print_result(result: "SweepResult", plan: "SweepPlan", folder: Path, *, quiet: bool) -> None:
    """Print means over seeds, what failed, and where the results are."""
    from fedlane.report.sweep_cells import FAILURES, SHOWN_CELLS, TABLE, cells_table, sweep_cells

    for failure in result.failures[:SHOWN_FAILURES]:
        values = " ".join(f"{key}={value}" for key, value in failure["values"].items())
        line = f"fedlane: {failure['policy']} {values} failed: {failure['error']}"
        messages.print(printable(line), style="red", highlight=False, markup=False, soft_wrap=True)
    if result.failures:
        line = f"fedlane: {len(result.failures)} of {len(plan.cells)} cells failed; see {folder / FAILURES}"
        messages.print(printable(line), style="red", highlight=False, markup=False, soft_wrap=True)
    if quiet:
        return
    if result.table.num_rows > 0 and len(plan.cells) <= SHOWN_CELLS:
        screen.print(cells_table(sweep_cells(result.table)))
    report = result.report
    if report.retried:
        print_notes([f"{report.retried} batches were started again, because their worker had died"])
    batches = report.reused + report.computed
    reused = f"; {report.reused} of its {batches} batches were stored before" if report.reused else ""
    screen.print(f"Wrote {folder / TABLE}{reused}", highlight=False, markup=False, soft_wrap=True)
    if result.table.num_rows == 0:
        return
    measure = "final_accuracy" if plan.learning else "cumulative_delay_s"
    if "final_rmse" in result.table.column_names:
        measure = "final_rmse"
    x, *others = plan.grid
    if len(others) < 2:
        facet = f" --facet {others[0]}" if others else ""
        hint = f"fedlane plot {folder} --x {x} --y {measure}{facet} --out sweep.pdf"
        screen.print(f"Draw it with: {hint}", highlight=False, markup=False, soft_wrap=True)
    screen.print(f"Look at it with: fedlane report {folder}", highlight=False, markup=False, soft_wrap=True)
