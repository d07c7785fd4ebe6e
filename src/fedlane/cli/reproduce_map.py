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


def fresh_plan(plan: "MapPlan", verdicts: "Map", folder: Path) -> "MapPlan | None":
    """Return the plan that confirms the most favourable reading on fresh seeds; None unless all has been learned."""
    from fedlane.experiments.readings.favourable import confirmation_plan, most_favourable

    learned = plan.learning_seeds > 0 and not any(part.to_learn(store) for part, store in plan.groups(folder))
    return confirmation_plan(plan, most_favourable(verdicts)) if learned else None


def write_map(plan: "MapPlan", verdicts: "Map", fresh: "Map | None", folder: Path, quiet: bool) -> None:
    """Write the map's picture and tables: figures/fig-readings.png, .pdf and .parquet, and readings.md."""
    import pyarrow.parquet as pq

    from fedlane.experiments.readings.favourable import FAVOURABLE, favourable_table
    from fedlane.experiments.readings.map_page import map_page
    from fedlane.experiments.readings.shares import map_table, shares, shown_verdict
    from fedlane.experiments.reproduce import MAP
    from fedlane.report.verdict_map import draw_verdict_map

    figures = folder / "figures"
    rows = shares(verdicts)
    cells = [[shown_verdict(of_reading[row.number - 1]) for of_reading in verdicts.values()] for row in rows]
    try:
        figures.mkdir(parents=True, exist_ok=True)
        pq.write_table(map_table(verdicts), figures / f"{MAP}.parquet", compression="zstd")
        favourable = None if fresh is None else favourable_table(verdicts, fresh)
        if favourable is not None:
            pq.write_table(favourable, figures / f"{FAVOURABLE}.parquet")
        page = map_page(verdicts, f"figures/{MAP}.png", plan.schedule_seeds, plan.learning_seeds, favourable)
        write_atomically(folder / "readings.md", page.encode())
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    labels = [f"{row.number}. {row.claim}" for row in rows]
    written = draw_verdict_map(labels, [reading.name for reading in verdicts], cells, figures / MAP)
    if not quiet:
        screen.print(f"Drew {written[0]}", highlight=False, markup=False, soft_wrap=True)
        screen.print(f"Wrote {folder / 'readings.md'}", highlight=False, markup=False, soft_wrap=True)
