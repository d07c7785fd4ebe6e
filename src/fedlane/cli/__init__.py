"""The command line: `fedlane run` and `compare`; the other commands lie beside it in files named cli_*."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from fedlane import __version__
from fedlane.cli import privacy as cli_privacy
from fedlane.cli.display import Display, finished_run
from fedlane.cli.help import dedupe_suggestion, examples, explain_arguments
from fedlane.cli.report import report, watch
from fedlane.cli.reproduce import reproduce
from fedlane.cli.session import (
    InterruptedRunError,
    check_writable,
    messages,
    new_folder,
    play,
    screen,
    with_target,
)
from fedlane.cli.show import JsonOption, SeedOption, SetOption, bench, list_, print_notes, resolved_scenario, show
from fedlane.cli.testbed import run_testbed
from fedlane.files import file_name
from fedlane.trackers import check_tracker, make_tracker
from fedlane.validate import InputError, at_least

if TYPE_CHECKING:  # imported where they are used: `fedlane --help` answers at once
    from fedlane.simulation import Run
    from fedlane.simulation.run import Simulation
    from fedlane.trackers import Tracker

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Federated learning over wireless channels, fast and private.",
    epilog=examples(
        "fedlane run",
        "fedlane compare paper-fmnist --policy lane --policy random --seeds 20",
        "fedlane run --help",
    ),
)


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


RoundsOption = Annotated[
    int | None, typer.Option("--rounds", metavar="T", help="Rounds to play, instead of the scenario's.")
]
SeedsOption = Annotated[int | None, typer.Option("--seeds", metavar="K", help="Run seeds 0 to K-1 at once.")]
DeviceOption = Annotated[Device, typer.Option("--device", help="Where models are trained.")]
NoLearningOption = Annotated[bool, typer.Option("--no-learning", help="Compute the schedule alone.")]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Output folder: new or empty.")]
TargetOption = Annotated[
    float | None, typer.Option("--target", metavar="A", help="Also report the time to reach this accuracy.")
]
CheckpointOption = Annotated[int, typer.Option("--checkpoint-every", metavar="K", help="Rounds between checkpoints.")]
TrackOption = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="TRACKER", help="Also write to tensorboard[:DIR] or mlflow[:URI]."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print only errors.")]


def _version(value: bool) -> None:
    if value:
        screen.print(f"fedlane {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog=examples(
        "fedlane run",
        "fedlane run paper-fmnist --policy mamab-om:V=10 --seeds 5 --no-learning",
        "fedlane run --set network.clients=20 --set privacy.epsilon=4 --out runs/mine",
        "fedlane run --resume runs/mine",
    )
)
def run(
    scenario: Annotated[
        str | None, typer.Argument(metavar="[SCENARIO]", help="A preset's name or a TOML file; else quickstart.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="P", help="As random or mamab-om:V=10; else lane.")
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
        typer.Option("--save-schedule", metavar="FILE", help="Also save the schedule to learn from elsewhere."),
    ] = None,
    out: OutOption = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Go on with a run that was interrupted.")
    ] = None,
    track: TrackOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one scenario under one policy and save the results."""
    from fedlane.scheduling import make_policy
    from fedlane.simulation.results import RunFolder
    from fedlane.simulation.run import Simulation

    at_least("--checkpoint-every", checkpoint_every, 1)
    _check_trackers(track)
    display = Display(messages, quiet=quiet or as_json)
    if resume is not None:
        changes = (scenario, out, set_, rounds, seeds, policy, save_schedule, seed or None, no_learning or None)
        if any(change is not None for change in changes):
            raise InputError("--resume DIR continues that run as it is: leave out the scenario and what changes it")
        folder = resume
        trackers = _trackers(track, folder.resolve().name, folder)

        def make() -> Simulation:
            return Simulation.resume(resume, device)

        result = play("resuming", make, RunFolder(resume), checkpoint_every, display, trackers)
    else:
        loaded = resolved_scenario(scenario or "quickstart", set_, rounds)
        chosen = _seeds(seed, seeds)
        policy = policy or "lane"
        make_policy(policy, loaded.policies)  # a mistyped name is answered before anything is made
        if save_schedule is not None:
            check_writable(save_schedule)
        folder = out or new_folder(f"{file_name(loaded.name)}-{file_name(policy)}")
        trackers = _trackers(track, folder.resolve().name, folder)
        made: list[Simulation] = []

        def make_new() -> Simulation:
            made.append(Simulation(loaded, policy, chosen, learning=not no_learning, device=device))
            return made[0]

        result = play(policy, make_new, RunFolder.create(folder), checkpoint_every, display, trackers)
        if save_schedule is not None:
            made[0].schedule().save(save_schedule)
    if as_json:
        print(json.dumps({**with_target(result, target), "folder": str(folder)}))
    elif not quiet:
        from fedlane.report.terminal import notes, summary_table

        summary = with_target(result, target)
        screen.print(summary_table(summary))
        print_notes(notes(summary))
        screen.print(f"Saved to {folder}", highlight=False, markup=False, soft_wrap=True)


@app.command(
    epilog=examples(
        "fedlane compare paper-fmnist --policy lane --policy random --seeds 20",
        "fedlane compare quickstart --policy lane --policy mamab-om --target 0.7",
    )
)
def compare(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A preset's name or a TOML file.")],
    policy: Annotated[
        list[str], typer.Option("--policy", metavar="P", help="As lane or mamab-om:V=10; once for each.")
    ],
    rounds: RoundsOption = None,
    seed: SeedOption = 0,
    seeds: SeedsOption = None,
    set_: SetOption = None,
    device: DeviceOption = Device.cpu,
    no_learning: NoLearningOption = False,
    target: TargetOption = None,
    checkpoint_every: CheckpointOption = 50,
    beside: Annotated[
        list[Path] | None, typer.Option("--with", metavar="DIR", help="Also show this run folder, such as a testbed's.")
    ] = None,
    out: OutOption = None,
    track: TrackOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one scenario under several policies, on the same seeds, and set them side by side."""
    from fedlane.scheduling import make_policy
    from fedlane.simulation import Run
    from fedlane.simulation.results import RunFolder
    from fedlane.simulation.run import Simulation

    at_least("--checkpoint-every", checkpoint_every, 1)
    loaded = resolved_scenario(scenario, set_, rounds)
    _check_trackers(track)
    chosen = _seeds(seed, seeds)
    others = {path: Run.load(path) for path in beside or []}
    names = [file_name(name) for name in policy]
    if len(set(names)) < len(names):
        raise InputError(f"--policy names the same policy twice: {', '.join(policy)}")
    for name in policy:
        make_policy(name, loaded.policies)  # a mistyped name must not cost the runs before it
    folder = out or new_folder(f"{file_name(loaded.name)}-compare")
    parent = RunFolder.create(folder)

    runs: list[Run] = []

    def played(text: str, name: str) -> "Run":
        def make() -> "Simulation":
            return Simulation(loaded, text, chosen, learning=not no_learning, device=device)

        display = Display(messages, quiet=quiet or as_json, finished=[finished_run(run.summary) for run in runs])
        trackers = _trackers(track, f"{folder.resolve().name}/{name}", folder / name)
        return play(text, make, RunFolder.create(folder / name), checkpoint_every, display, trackers)

    try:
        for text, name in zip(policy, names, strict=True):
            runs.append(played(text, name))
    except BaseException:
        parent.abandon()  # only if nothing is in it
        raise
    summaries = [with_target(result, target) for result in runs]
    for path, other in others.items():
        summaries.append({**with_target(other, target), "policy": f"{other.summary['policy']} ({path.name})"})
    if not no_learning:
        from fedlane.report.figures import accuracy_figure

        accuracy_figure({result.summary["policy"]: result.rounds for result in runs}, folder / "accuracy.png")
    if as_json:
        print(json.dumps({"folder": str(folder), "runs": summaries}))
    elif not quiet:
        from fedlane.report.terminal import comparison_table, notes

        screen.print(comparison_table(summaries))
        print_notes([note for summary in summaries for note in notes(summary)])
        screen.print(f"Saved to {folder}", highlight=False, markup=False, soft_wrap=True)


def _seeds(seed: int, seeds: int | None) -> list[int]:
    if seeds is None:
        at_least("seed", seed, 0)
        return [seed]
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {seeds}")
    if seed != 0:
        raise InputError("--seed and --seeds exclude each other")
    return list(range(seeds))


def _check_trackers(texts: list[str] | None) -> None:
    """Refuse, before the work, a tracker that is unknown or not installed."""
    for text in texts or []:
        check_tracker(text)


def _trackers(texts: list[str] | None, name: str, folder: Path) -> "list[Tracker]":
    return [make_tracker(text, name, folder) for text in texts or []]


# In the order in which `fedlane --help` names them.
app.command(epilog=examples("fedlane show quickstart", "fedlane show runs/mine"))(show)
app.command("list", epilog=examples("fedlane list policies", "fedlane list scenarios --json"))(list_)
app.command(epilog=examples("fedlane reproduce --quick", "fedlane reproduce fig-v fig-delay --seeds 5"))(reproduce)
app.command(epilog=examples("fedlane report runs/mine", "fedlane report runs/a runs/b --out page.html"))(report)
app.command(epilog=examples("fedlane watch runs/mine"))(watch)
app.command(epilog=examples("fedlane bench matching"))(bench)
app.command("testbed", epilog=examples("fedlane testbed --calibrate --policy lane --policy random"))(run_testbed)
app.add_typer(cli_privacy.app, name="privacy")


def main() -> None:
    """Entry point: bad input is one line and exit 2, never a traceback."""
    from fedlane.scheduling.checks import PolicyError

    try:
        command = typer.main.get_command(app)
        explain_arguments(command)
        code = command(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = 2
    except click.ClickException as error:
        code = _fail(dedupe_suggestion(error.format_message()))
    except (InputError, PolicyError) as error:
        code = _fail(str(error))
    except InterruptedRunError as error:
        messages.print(f"fedlane: {error}", highlight=False, markup=False, soft_wrap=True)
        code = 130
    except MemoryError:
        code = _fail("not enough memory for this many clients, channels, rounds and seeds")
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> int:
    line = " ".join(message.split())
    messages.print(f"fedlane: {line}", style="red", markup=False, highlight=False, soft_wrap=True)
    return 2
