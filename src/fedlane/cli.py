"""The command line: `fedlane run`, `compare`, `show`, `list`, `bench`; `privacy` and `reproduce` lie beside it."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer
from rich.syntax import Syntax
from rich.table import Table

from fedlane import __version__, cli_privacy
from fedlane.cli_reproduce import reproduce
from fedlane.session import (
    InterruptedRunError,
    check_writable,
    file_name,
    messages,
    new_folder,
    play,
    screen,
    with_target,
)
from fedlane.validate import InputError, at_least

if TYPE_CHECKING:  # imported where they are used: `fedlane --help` answers at once
    from fedlane.scenario import Scenario
    from fedlane.simulation import Run
    from fedlane.simulation.run import Simulation

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Federated learning over wireless channels, fast and private.",
    epilog="First steps: [bold]fedlane run[/bold], then "
    "[bold]fedlane compare paper-fmnist --policy lane --policy random --seeds 20[/bold].",
)

app.add_typer(cli_privacy.app, name="privacy")
app.command()(reproduce)


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


class Kind(StrEnum):
    policies = "policies"
    scenarios = "scenarios"
    datasets = "datasets"


class Benchmark(StrEnum):
    matching = "matching"
    schedule = "schedule"
    learning = "learning"
    peers = "peers"


RoundsOption = Annotated[
    int | None, typer.Option("--rounds", metavar="T", help="Rounds to play, instead of the scenario's.")
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="S", help="The seed of a single run.")]
SeedsOption = Annotated[int | None, typer.Option("--seeds", metavar="K", help="Run seeds 0 to K-1 at once.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a scenario value, as network.clients=20.")
]
DeviceOption = Annotated[Device, typer.Option("--device", help="Where models are trained.")]
NoLearningOption = Annotated[bool, typer.Option("--no-learning", help="Compute the schedule alone.")]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Output folder: new or empty.")]
TargetOption = Annotated[
    float | None, typer.Option("--target", metavar="A", help="Also report the time to reach this accuracy.")
]
CheckpointOption = Annotated[int, typer.Option("--checkpoint-every", metavar="K", help="Rounds between checkpoints.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
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


@app.command()
def run(
    scenario: Annotated[
        str | None, typer.Argument(metavar="[SCENARIO]", help="A preset's name or a TOML file (quickstart).")
    ] = None,
    policy: Annotated[str | None, typer.Option("--policy", metavar="P", help="As mamab-om:V=10 (lane).")] = None,
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
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one scenario under one policy and save the results."""
    from fedlane.scheduling import make_policy
    from fedlane.simulation.results import RunFolder
    from fedlane.simulation.run import Simulation

    at_least("--checkpoint-every", checkpoint_every, 1)
    quiet = quiet or as_json
    if resume is not None:
        changes = (scenario, out, set_, rounds, seeds, policy, save_schedule, seed or None, no_learning or None)
        if any(change is not None for change in changes):
            raise InputError("--resume DIR continues that run as it is: leave out the scenario and what changes it")
        folder = resume
        result = play("resuming", lambda: Simulation.resume(resume, device), RunFolder(resume), checkpoint_every, quiet)
    else:
        loaded = _scenario(scenario or "quickstart", set_, rounds)
        chosen = _seeds(seed, seeds)
        policy = policy or "lane"
        make_policy(policy, loaded.policies)  # a mistyped name is answered before anything is made
        if save_schedule is not None:
            check_writable(save_schedule)
        folder = out or new_folder(f"{file_name(loaded.name)}-{file_name(policy)}")
        made: list[Simulation] = []

        def make() -> Simulation:
            made.append(Simulation(loaded, policy, chosen, learning=not no_learning, device=device))
            return made[0]

        result = play(policy, make, RunFolder.create(folder), checkpoint_every, quiet)
        if save_schedule is not None:
            made[0].schedule().save(save_schedule)
    if as_json:
        print(json.dumps({**with_target(result, target), "folder": str(folder)}))
    elif not quiet:
        from fedlane.report.terminal import notes, summary_table

        summary = with_target(result, target)
        screen.print(summary_table(summary))
        _print_notes(notes(summary))
        screen.print(f"Saved to {folder}", highlight=False, soft_wrap=True)


@app.command()
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
    out: OutOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one scenario under several policies, on the same seeds, and set them side by side."""
    from fedlane.scheduling import make_policy
    from fedlane.simulation.results import RunFolder
    from fedlane.simulation.run import Simulation

    at_least("--checkpoint-every", checkpoint_every, 1)
    loaded = _scenario(scenario, set_, rounds)
    quiet = quiet or as_json
    chosen = _seeds(seed, seeds)
    names = [file_name(name) for name in policy]
    if len(set(names)) < len(names):
        raise InputError(f"--policy names the same policy twice: {', '.join(policy)}")
    for name in policy:
        make_policy(name, loaded.policies)  # a mistyped name must not cost the runs before it
    folder = out or new_folder(f"{file_name(loaded.name)}-compare")
    parent = RunFolder.create(folder)

    def played(text: str, name: str) -> "Run":
        def make() -> "Simulation":
            return Simulation(loaded, text, chosen, learning=not no_learning, device=device)

        return play(text, make, RunFolder.create(folder / name), checkpoint_every, quiet)

    try:
        runs = [played(text, name) for text, name in zip(policy, names, strict=True)]
    except BaseException:
        parent.abandon()  # only if nothing is in it
        raise
    summaries = [with_target(result, target) for result in runs]
    if not no_learning:
        from fedlane.report.figures import accuracy_figure

        accuracy_figure({result.summary["policy"]: result.rounds for result in runs}, folder / "accuracy.png")
    if as_json:
        print(json.dumps({"folder": str(folder), "runs": summaries}))
    elif not quiet:
        from fedlane.report.terminal import comparison_table, notes

        screen.print(comparison_table(summaries))
        _print_notes([note for summary in summaries for note in notes(summary)])
        screen.print(f"Saved to {folder}", highlight=False, soft_wrap=True)


@app.command()
def show(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A preset, a TOML file or a run folder.")],
    set_: SetOption = None,
    seed: SeedOption = 0,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw who holds which classes into a PNG or PDF.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a scenario with every value, or a run folder's summary."""
    from fedlane.scenario import presets

    if Path(scenario).is_dir() and scenario not in presets():
        from fedlane.report.terminal import notes, summary_table
        from fedlane.simulation import Run

        loaded = Run.load(scenario)
        if as_json:
            print(json.dumps(loaded.summary))
            return
        screen.print(summary_table(loaded.summary))
        _print_notes(notes(loaded.summary))
        return
    resolved = _scenario(scenario, set_, None)
    if picture is not None:
        from fedlane.report.figures import partition_figure
        from fedlane.simulation.setup import prepare

        partition_figure(prepare(resolved, [seed]).label_counts[0], picture)
        messages.print(f"Drew the partition of seed {seed} to {picture}", highlight=False, soft_wrap=True)
        return
    if as_json:
        print(json.dumps(resolved.model_dump()))
    elif screen.is_terminal:
        screen.print(Syntax(resolved.to_toml(), "toml", background_color="default"))
    else:
        print(resolved.to_toml(), end="")


@app.command("list")
def list_(kind: Annotated[Kind, typer.Argument(help="What to list.")], as_json: JsonOption = False) -> None:
    """List the policies, scenarios or datasets that there are."""
    from fedlane import catalogue

    rows, headings = getattr(catalogue, kind.value)()
    if as_json:
        print(json.dumps([dict(zip(headings, row, strict=True)) for row in rows]))
        return
    table = Table()
    for heading in headings:
        table.add_column(heading, no_wrap=heading == headings[0])
    for row in rows:
        table.add_row(*row)
    screen.print(table)


@app.command()
def bench(
    what: Annotated[Benchmark, typer.Argument(help="What to measure.")],
    as_json: JsonOption = False,
) -> None:
    """Measure speed on this machine, each figure beside its reference."""
    from fedlane.experiments import benchmarks

    with messages.status(f"Measuring {what.value}"):
        rows = getattr(benchmarks, what.value)()
    if as_json:
        print(json.dumps([row.__dict__ for row in rows]))
        return
    table = Table("what", "measured", "reference", "ratio", "asked for")
    for row in rows:
        table.add_row(row.what, row.measured, row.reference, row.ratio, row.bound)
    screen.print(table)


def _scenario(name: str, settings: list[str] | None, rounds: int | None) -> "Scenario":
    from fedlane.scenario import Scenario

    scenario = Scenario.load(name).with_settings(settings or [])
    return scenario if rounds is None else scenario.with_values({"rounds": rounds})


def _seeds(seed: int, seeds: int | None) -> list[int]:
    if seeds is None:
        at_least("seed", seed, 0)
        return [seed]
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {seeds}")
    if seed != 0:
        raise InputError("--seed and --seeds exclude each other")
    return list(range(seeds))


def _print_notes(lines: list[str]) -> None:
    for line in lines:
        messages.print(f"Note: {line}.", style="yellow", highlight=False)


def main() -> None:
    """Entry point: bad input is one line and exit 2, never a traceback."""
    from fedlane.scheduling.checks import PolicyError

    try:
        code = app(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = 2
    except click.ClickException as error:
        code = _fail(error.format_message())
    except (InputError, PolicyError) as error:
        code = _fail(str(error))
    except InterruptedRunError as error:
        messages.print(f"fedlane: {error}", soft_wrap=True, highlight=False)
        code = 130
    except MemoryError:
        code = _fail("not enough memory for this many clients, channels, rounds and seeds")
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> int:
    line = " ".join(message.split())
    messages.print(f"fedlane: {line}", style="red", markup=False, highlight=False, soft_wrap=True)
    return 2
