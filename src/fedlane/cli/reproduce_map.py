"""The part of `fedlane reproduce` that computes the map of readings."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress

from fedlane.cli.session import messages, screen
from fedlane.files import write_atomically
from fedlane.validate import InputError

if TYPE_CHECKING:  # imported inside functions, to keep `fedlane --help` fast
    from fedlane.experiments.engine.computing import Runner
    from fedlane.experiments.readings.mapping import MapPlan
    from fedlane.experiments.readings.shares import Map

QUICK_READINGS, QUICK_ROUNDS = 3, 60


def map_plan(quick: bool) -> "MapPlan":
    """Return the plan of the map, or of a rough one."""
    from fedlane.experiments.readings.design import stored_design
    from fedlane.experiments.readings.mapping import MapPlan, rough

    plan = MapPlan(stored_design())
    return rough(plan, QUICK_READINGS, QUICK_ROUNDS) if quick else plan


def judge_map(plan: "MapPlan", folder: Path, runner: "Runner", quiet: bool) -> "Map":
    """Judge all readings, with a progress bar."""
    from fedlane.experiments.engine.local_runners import InProcessRunner, ProcessRunner
    from fedlane.experiments.readings.mapping import judge_readings

    local = runner if isinstance(runner, ProcessRunner) else InProcessRunner()  # verdicts need this machine's files
    with Progress(console=messages, transient=True, disable=quiet or not messages.is_terminal) as progress:
        bar = progress.add_task("readings judged", total=len(plan.readings))
        return judge_readings(plan, folder, local, lambda: progress.advance(bar))


def write_map(verdicts: "Map", folder: Path, quiet: bool) -> None:
    """Write the map's picture and tables: figures/fig-readings.png, .pdf and .parquet, and readings.md."""
    import pyarrow.parquet as pq

    from fedlane.experiments.readings.map_page import map_page
    from fedlane.experiments.readings.shares import map_table, shares
    from fedlane.experiments.reproduce import MAP
    from fedlane.report.verdict_map import draw_verdict_map

    figures = folder / "figures"
    rows = shares(verdicts)
    cells = [[of_reading[row.number - 1].verdict for of_reading in verdicts.values()] for row in rows]
    try:
        figures.mkdir(parents=True, exist_ok=True)
        pq.write_table(map_table(verdicts), figures / f"{MAP}.parquet", compression="zstd")
        write_atomically(folder / "readings.md", map_page(verdicts, f"figures/{MAP}.png").encode())
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    labels = [f"{row.number}. {row.claim}" for row in rows]
    written = draw_verdict_map(labels, [reading.name for reading in verdicts], cells, figures / MAP)
    if not quiet:
        screen.print(f"Drew {written[0]}", highlight=False, markup=False, soft_wrap=True)
        screen.print(f"Wrote {folder / 'readings.md'}", highlight=False, markup=False, soft_wrap=True)
