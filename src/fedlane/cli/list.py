"""The command `fedlane list`."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from fedlane.cli.options import JsonOption
from fedlane.cli.session import screen

Rows = tuple[list[tuple[str, ...]], tuple[str, ...]]
"""The rows of a table and its headings, which are also the keys of the JSON output."""


class Kind(StrEnum):
    """The kinds of items that can be listed."""

    policies = "policies"
    scenarios = "scenarios"
    datasets = "datasets"


def list_(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="policies, scenarios or datasets.")],
    as_json: JsonOption = False,
) -> None:
    """List the available policies, scenarios or datasets."""
    rows, headings = {Kind.policies: _policies, Kind.scenarios: _scenarios, Kind.datasets: _datasets}[kind]()
    if as_json:
        print(json.dumps([dict(zip(headings, row, strict=True)) for row in rows]))
        return
    table = Table()
    for heading in headings:
        table.add_column(heading, no_wrap=heading == headings[0])
    for row in rows:
        table.add_row(*row)
    screen.print(table)


def _policies() -> Rows:
    from fedlane.scheduling import registry

    rows = [
        (name, _parameters(registry.parameters(policy)), policy.summary) for name, policy in registry.policies().items()
    ]
    return [tuple(row) for row in rows], ("policy", "parameters", "what it is")


def _scenarios() -> Rows:
    from fedlane.scenario import Scenario, presets

    rows = []
    for s in map(Scenario.load, presets()):
        size = f"{s.network.clients} x {s.network.channels}"
        rows.append((s.name, size, str(s.rounds), s.data.dataset, s.learning.model, s.privacy.mechanism))
    return [tuple(row) for row in rows], ("scenario", "clients x channels", "rounds", "dataset", "model", "privacy")


def _datasets() -> Rows:
    from fedlane.learning.datasets import DATASETS

    rows = []
    for d in DATASETS.values():
        counts = f"{d.classes * d.train_per_class:,} + {d.classes * d.test_per_class:,}"
        rows.append((d.name, d.title, counts, str(d.classes), d.licence))
    return [tuple(row) for row in rows], ("dataset", "what it is", "train + test", "classes", "licence")


def _parameters(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
