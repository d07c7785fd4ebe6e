"""The commands `fedlane run` and `fedlane compare`."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from rich.console import RenderableType

from fedlane.cli.command_line import was_given
from fedlane.cli.comparing import extra_run, save_comparison
from fedlane.cli.display import finished_run
from fedlane.cli.options import (
    CheckpointOption,
    Device,
    DeviceOption,
    JsonOption,
    NoLearningOption,
    OutOption,
    QuietOption,
    RoundsOption,
    SeedOption,
    SeedsOption,
    SetOption,
    TargetOption,
    TrackOption,
    chosen_seeds,
    resolved_scenario,
)
from fedlane.cli.run_plan import RunPlan
from fedlane.cli.session import Session, check_writable, new_folder, print_notes, screen
from fedlane.files import file_name
from fedlane.trackers import check_tracker
from fedlane.validate import InputError, at_least

if TYPE_CHECKING:  # imported inside functions, to keep `fedlane --help` fast
    from fedlane.scenario.run_settings import RunSettings
    from fedlane.simulation import Run


def run(
    scenario: Annotated[
        str | None, typer.Argument(metavar="[SCENARIO]", help="A preset or a TOML file (default: quickstart).")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="P", help="Policy, for example mamab-om:V=10 (default: lane)."),
    ] = None,
    rounds: RoundsOption = None,
    seed: SeedOption = 0,
    seeds: SeedsOption = None,
    set_: SetOption = None,
    device: DeviceOption = Device.cpu,
    no_learning: NoLearningOption = False,
    target: TargetOption = None,
    checkpoint_every: CheckpointOption = 50,
    save_schedule: Annotated[
        Path | None,
        typer.Option("--save-schedule", metavar="FILE", help="Also save the schedule, to train from it later."),
    ] = None,
    out: OutOption = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Continue the interrupted run in this folder.")
    ] = None,
    track: TrackOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one scenario under one policy and save the results."""
    from fedlane.simulation.results import RunFolder

    session = _session(quiet or as_json, checkpoint_every, track)
    if resume is not None:
        changes = (scenario, out, set_, rounds, seeds, policy, save_schedule, target, seed or None, no_learning or None)
        if any(change is not None for change in changes):
            raise InputError("--resume cannot be combined with a scenario or with options that change the run")
        folder, result = resume, _resumed(session, resume, device if was_given("device") else None)
    else:
        loaded, stored = resolved_scenario(scenario or "quickstart", set_, rounds), _stored_settings(scenario)
        plan = RunPlan(loaded, chosen_seeds(seed, seeds), not no_learning, device).with_stored(stored)
        plan = plan.with_target(target, set_)
        policy = policy or (stored.policy if stored else "lane")
        checked = plan.check_policies([policy], save_schedule=save_schedule is not None)
        session.compile_early(checked, plan.scenario)
        plan.check_size([policy], quiet=session.quiet)
        if save_schedule is not None:
            check_writable(save_schedule)
        folder = out or new_folder(f"{file_name(loaded.name)}-{file_name(policy)}")
        make = partial(plan.simulation, policy)
        result = session.play(policy, make, RunFolder.create(folder), schedule=save_schedule)
    summary = dict(result.summary)
    if as_json:
        print(json.dumps({**summary, "folder": str(folder)}))
    elif not quiet:
        from fedlane.report.terminal import summary_table

        _print_results(summary_table(summary), [summary], folder)


def compare(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A preset or a TOML file.")],
    policy: Annotated[
        list[str],
        typer.Option("--policy", metavar="P", help="Policy, for example mamab-om:V=10; repeat it for each policy."),
    ],
    rounds: RoundsOption = None,
    seed: SeedOption = 0,
    seeds: SeedsOption = None,
    set_: SetOption = None,
    device: DeviceOption = Device.cpu,
    no_learning: NoLearningOption = False,
    target: TargetOption = None,
    checkpoint_every: CheckpointOption = 50,
    extra_runs: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="DIR", help="Also show the run in this folder, for example a testbed's."),
    ] = None,
    out: OutOption = None,
    track: TrackOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one scenario under several policies on the same seeds and compare the results."""
    session = _session(quiet or as_json, checkpoint_every, track)
    loaded = resolved_scenario(scenario, set_, rounds)
    plan = RunPlan(loaded, chosen_seeds(seed, seeds), not no_learning, device)
    plan = plan.with_stored(_stored_settings(scenario)).with_target(target, set_)
    extra = [extra_run(path, plan.target) for path in extra_runs or []]
    if len({file_name(text) for text in policy}) < len(policy):
        raise InputError(f"--policy names the same policy twice: {', '.join(policy)}")
    session.compile_early(plan.check_policies(policy), plan.scenario)
    plan.check_size(policy, quiet=session.quiet)
    folder = out or new_folder(f"{file_name(loaded.name)}-compare")
    runs = _played(session, plan, policy, folder)
    content = save_comparison([*zip(policy, runs, strict=True)], extra, folder, plan.target)
    if plan.learning:
        from fedlane.report.figures import accuracy_figure

        accuracy_figure({result.summary["policy"]: result.rounds for result in runs}, folder / "accuracy.png")
    if as_json:
        print(json.dumps({"folder": str(folder), **content}))
    elif not quiet:
        from fedlane.report.comparison_tables import comparison_tables

        _print_results(comparison_tables(content), content["runs"], folder)


def _session(quiet: bool, checkpoint_every: int, track: list[str] | None) -> Session:
    """Check the options of a session before any work is done; what it starts ends with the command."""
    at_least("--checkpoint-every", checkpoint_every, 1)
    for text in track or []:
        check_tracker(text)
    session = Session(quiet, checkpoint_every, track or [])
    click.get_current_context().with_resource(session.compiling)
    return session


def _stored_settings(scenario: str | None) -> "RunSettings | None":
    """Return the table ``[run]`` of a scenario file, if it is a file and has one."""
    from fedlane.scenario import presets
    from fedlane.scenario.run_settings import RunSettings

    return None if scenario is None or scenario in presets() else RunSettings.load(scenario)


def _resumed(session: Session, folder: Path, device: str | None) -> "Run":
    """Play the rest of an interrupted run."""
    from fedlane.simulation.results import RunFolder
    from fedlane.simulation.run import Simulation

    return session.play("resuming", partial(Simulation.resume, folder, device), RunFolder(folder))


def _played(session: Session, plan: RunPlan, policies: Sequence[str], folder: Path) -> "list[Run]":
    """Play one run per policy, each in its own folder below ``folder``."""
    from fedlane.simulation.results import RunFolder

    parent = RunFolder.create(folder)
    runs: list[Run] = []
    try:
        for policy in policies:
            name = file_name(policy)
            target, make = RunFolder.create(folder / name), partial(plan.simulation, policy)
            tracked_as, finished = f"{folder.resolve().name}/{name}", [finished_run(run.summary) for run in runs]
            runs.append(session.play(policy, make, target, tracked_as=tracked_as, finished=finished))
    except BaseException:
        parent.abandon()  # removes the folder only if it is empty
        raise
    return runs


def _print_results(table: RenderableType, summaries: Sequence[dict[str, Any]], folder: Path) -> None:
    """Print a table of results, the notes on them, and the folder that holds them."""
    from fedlane.report.terminal import notes

    screen.print(table)
    print_notes([note for summary in summaries for note in notes(summary)])
    screen.print(f"Saved to {folder}", highlight=False, markup=False, soft_wrap=True)
