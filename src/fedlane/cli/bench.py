"""The command `fedlane bench`."""

import json
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table

from fedlane.cli.compiling import announce_compilation
from fedlane.cli.options import JsonOption
from fedlane.cli.session import messages, screen


class Benchmark(StrEnum):
    """The available benchmarks."""

    matching = "matching"
    schedule = "schedule"
    learning = "learning"
    peers = "peers"


def bench(
    what: Annotated[Benchmark, typer.Argument(metavar="WHAT", help="matching, schedule, learning or peers.")],
    as_json: JsonOption = False,
) -> None:
    """Measure speed on this machine and compare it with a reference."""
    from fedlane.experiments import benchmarks

    with messages.status(f"Measuring {what.value}"), announce_compilation(messages, quiet=as_json):
        rows = getattr(benchmarks, what.value)()
    if as_json:
        print(json.dumps([row.__dict__ for row in rows]))
        return
    table = Table("benchmark", "measured", "reference", "ratio", "required")
    for row in rows:
        table.add_row(row.what, row.measured, row.reference, row.ratio, row.bound)
    screen.print(table)
