"""The command `fedlane arena`: policies in leagues, in the same worlds, on the same seeds."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from fedlane.cli.arena_study import Output, chosen_policies, chosen_worlds, play, show_plan
from fedlane.cli.arena_tune import tune
from fedlane.cli.cell_progress import cell_progress
from fedlane.cli.command_line import was_given
from fedlane.cli.help import examples
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
)
from fedlane.cli.session import new_folder
from fedlane.validate import InputError

if TYPE_CHECKING:  # imported inside functions, to keep `fedlane --help` fast
    from fedlane.experiments.arena.plan import ArenaPlan
    from fedlane.experiments.arena.playing import ArenaResult
    from fedlane.experiments.arena.tuned import TunedValues

SEEDS, QUICK_SEEDS, QUICK_ROUNDS = 20, 3, 100
"""Seeds of an arena, and seeds and rounds of a quick one."""

app = typer.Typer(
    invoke_without_command=True,
    epilog=examples(
        "fedlane arena --quick",
        "fedlane arena --world churn --world phones --policy lane --policy oort --seeds 5",
        "fedlane arena --quick --policy my_policy:Mine",
        "fedlane arena tune --workers 8 --out runs/tuning",
    ),
)
app.command("tune", epilog=examples("fedlane arena tune --policy lane --policy mamab-om --out runs/tuning"))(tune)


@app.callback()
def arena(
    context: typer.Context,
    world: Annotated[
        list[str] | None,
        typer.Option("--world", metavar="W", help="World: a preset or a TOML file (default: all nine)."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="P", help="Policy, or an import path module:Class (default: all)."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Few seeds and rounds, no large world; train only where losses are required."),
    ] = False,
    rounds: RoundsOption = None,
    seeds: SeedsOption = None,
    set_: SetOption = None,
    device: DeviceOption = Device.cpu,
    no_learning: NoLearningOption = False,
    tuned: Annotated[
        Path | None,
        typer.Option("--tuned", metavar="FILE", help="Tuned values from `arena tune` (default: the package's)."),
    ] = None,
    pages: Annotated[
        bool | None,
        typer.Option("--pages/--no-pages", help="Make a page of each cell's first run (default: unless --quick)."),
    ] = None,
    workers: WorkersOption = None,
    ray: RayOption = False,
    ray_address: RayAddressOption = None,
    dry_run: CellsDryRunOption = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder; one that holds an arena is continued.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare policies in leagues over several worlds: leaderboard.parquet and leaderboard.html.

    Each policy stands there with its published defaults and, where there are tuned values, a second time. Finished
    cells are stored: the same command with --out continues.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    from fedlane.experiments.arena.arena_worlds import LARGE_WORLDS, TARGETS
    from fedlane.experiments.arena.entrants import entrants
    from fedlane.experiments.arena.plan import ArenaPlan
    from fedlane.experiments.arena.tuned import read_tuned, shipped_values
    from fedlane.experiments.sweep import make_runner
    from fedlane.learning.federation import torch_device

    output = Output(as_json, quiet)
    runner = make_runner(workers, chosen_ray(ray, ray_address))
    chosen_seeds = tuple(parsed_seeds("--seeds", seeds or str(QUICK_SEEDS if quick else SEEDS)))
    values = shipped_values() if tuned is None else read_tuned(tuned)
    members = tuple(entrants(chosen_policies(policy, output, no_learning=no_learning), values))
    learning = not no_learning and (not quick or was_given("no_learning"))
    names = world or [name for name in TARGETS if not (quick and name in LARGE_WORLDS)]
    trains = learning or any(member.needs_losses for member in members)
    limit = QUICK_ROUNDS if quick and rounds is None else rounds
    worlds = chosen_worlds(names, set_, limit, output, learning=trains)
    plan = ArenaPlan(worlds, members, chosen_seeds, learning, device.value)
    if learning and not (ray or ray_address):
        torch_device(device.value)  # a missing GPU would make every cell fail
    if dry_run:
        show_plan(plan, out, workers or 1, output)
        return
    plan.cells  # noqa: B018 - refuses invalid input before a folder is named
    folder = out or new_folder("arena")
    result = play(plan, runner, folder, output)
    if pages if pages is not None else not quick:
        _make_pages(plan, workers, chosen_ray(ray, ray_address), folder, output)
    _finish(plan, result, values, folder, output)
    if result.failures:
        raise typer.Exit(1)


def _refuse_options(context: typer.Context) -> None:
    """Raise `InputError` if options of `arena` stand before its subcommand, where they would have no effect."""
    for name in context.params:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise InputError(f"options of fedlane arena {context.invoked_subcommand} come after its name")


def _make_pages(plan: "ArenaPlan", workers: int | None, ray: bool | str, folder: Path, output: Output) -> None:
    from fedlane.experiments.arena.run_pages import make_pages, page_batches, page_keeper
    from fedlane.experiments.sweep import make_runner

    keys = [{batch.key} for _, batch in page_batches(plan)]
    with cell_progress(keys, page_keeper(plan, folder).keys(), quiet=output.silent) as on_finished:
        make_pages(plan, make_runner(workers, ray), folder, on_finished)


def _finish(plan: "ArenaPlan", result: "ArenaResult", tuned: "TunedValues", folder: Path, output: Output) -> None:
    """Write the page, and print the leaderboard."""
    from fedlane.experiments.arena.leaderboard_page import leaderboard_page
    from fedlane.experiments.arena.playing import PAGE, TABLE
    from fedlane.experiments.arena.run_pages import page_links
    from fedlane.experiments.arena.standings import standings
    from fedlane.experiments.arena.terminal_table import leaderboard_json, league_tables
    from fedlane.experiments.engine.study_folder import write_files

    judged = standings(result.table)
    if judged:
        page = leaderboard_page(result.table, result.curves, tuned.content, page_links(plan, folder))
        write_files(folder, {PAGE: page.encode()})
    if output.as_json:
        print(json.dumps(leaderboard_json(judged) | {"folder": str(folder), "failures": result.failures}))
        return
    if not output.silent:
        from fedlane.cli.session import screen

        for table in league_tables(judged):
            screen.print(table)
    reused = f"; {result.report.reused} batches were stored before" if result.report.reused else ""
    output.line(f"Wrote {folder / TABLE}{reused}")
    if judged:
        output.line(f"Look at it in a browser: {folder / PAGE}")
