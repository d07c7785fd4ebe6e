"""The command `fedlane list`."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape
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
    keys = "keys"


def list_(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="policies, scenarios, datasets or keys.")],
    as_json: JsonOption = False,
) -> None:
    """List the available policies, scenarios or datasets, or the keys of a scenario."""
    rows, headings = {
        Kind.policies: _policies,
        Kind.scenarios: _scenarios,
        Kind.datasets: _datasets,
        Kind.keys: _keys,
    }[kind]()
    if as_json:
        print(json.dumps([dict(zip(headings, row, strict=True)) for row in rows]))
        return
    table = Table(show_lines=kind is Kind.keys)
    if kind is Kind.keys:
        rows, headings = _narrow(rows), ("key", "meaning")
    for heading in headings:
        table.add_column(heading, no_wrap=heading == headings[0])
    for row in rows:
        table.add_row(*map(escape, row))
    screen.print(table)


def _policies() -> Rows:
    from fedlane.scheduling import registry

    rows = [
        (name, _parameters(registry.parameters(policy)), _summary(name, policy.summary))
        for name, policy in registry.policies().items()
    ]
    return [tuple(row) for row in rows], ("policy", "parameters", "what it is")


def _summary(name: str, summary: str) -> str:
    """Return a policy's summary; for a second name, what it stands for."""
    from fedlane.scheduling.registry import ALIASES

    return f"another name of {ALIASES[name]}" if name in ALIASES else summary


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
        if d.tokens is not None:  # its samples are counted when its file is read
            counts = f"windows of {d.input_shape[0]} characters"
        rows.append((d.name, d.title, counts, str(d.classes), d.licence))
    return [tuple(row) for row in rows], ("dataset", "what it is", "train + test", "classes", "licence")


def _keys() -> Rows:
    from fedlane.scenario.reference import scenario_keys

    rows = [(key.key, key.type, key.bounds, key.unit, key.default, key.meaning) for key in scenario_keys()]
    return [tuple(row) for row in rows], ("key", "type", "bounds", "unit", "default", "meaning")


def _narrow(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the rows of scenario keys with type, bounds and default below the meaning, so that they fit a terminal."""
    return [
        (key, f"{meaning}\n{', '.join(filter(None, (kind, bounds)))}{f'; default: {default}' if default else ''}")
        for key, kind, bounds, _, default, meaning in rows
    ]


def _parameters(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
