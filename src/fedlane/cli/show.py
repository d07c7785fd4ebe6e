"""The command line's `fedlane show`, `list` and `bench`: what there is, and how fast it is here."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.syntax import Syntax
from rich.table import Table

from fedlane.cli.session import messages, screen

if TYPE_CHECKING:  # imported where they are used: `fedlane --help` answers at once
    from fedlane.scenario import Scenario


class Kind(StrEnum):
    policies = "policies"
    scenarios = "scenarios"
    datasets = "datasets"


class Benchmark(StrEnum):
    matching = "matching"
    schedule = "schedule"
    learning = "learning"
    peers = "peers"


SeedOption = Annotated[int, typer.Option("--seed", metavar="S", help="The seed of a single run.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a scenario value, as network.clients=20.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]


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
        print_notes(notes(loaded.summary))
        return
    resolved = resolved_scenario(scenario, set_, None)
    if picture is not None:
        from fedlane.report.figures import partition_figure
        from fedlane.simulation.setup import prepare

        partition_figure(prepare(resolved, [seed]).label_counts[0], picture)
        line = f"Drew the partition of seed {seed} to {picture}"
        messages.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    if as_json:
        print(json.dumps(resolved.model_dump()))
    elif screen.is_terminal:
        screen.print(Syntax(resolved.to_toml(), "toml", background_color="default"))
    else:
        print(resolved.to_toml(), end="")


def list_(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="policies, scenarios or datasets.")],
    as_json: JsonOption = False,
) -> None:
    """List the policies, scenarios or datasets that there are."""
    from fedlane.cli import catalogue

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


def bench(
    what: Annotated[Benchmark, typer.Argument(metavar="WHAT", help="matching, schedule, learning or peers.")],
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


def resolved_scenario(name: str, settings: list[str] | None, rounds: int | None) -> "Scenario":
    from fedlane.scenario import Scenario

    scenario = Scenario.load(name).with_settings(settings or [])
    return scenario if rounds is None else scenario.with_values({"rounds": rounds})


def print_notes(lines: list[str]) -> None:
    for line in lines:
        messages.print(f"Note: {line}.", style="yellow", highlight=False, markup=False)
