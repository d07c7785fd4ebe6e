"""The data of a figure: one row per cell and seed. Run folders and tables of sweeps are brought into this form.

A cell is a policy in a scenario. Keys describe the cell (policy, its parameters, scenario values) and the seed.
Measures are numbers per cell and seed. Runs also have curves, which are numbers per round.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedlane.parquet_tables import by_replica, column_floats, column_indices, count_replicas, read_table
from fedlane.records import FloatArray
from fedlane.report.run_files import RunFiles, read_run, run_folders
from fedlane.report.run_labels import run_names
from fedlane.report.seed_measures import PROBLEM_SHORTFALL, problem_shortfall, seed_measures
from fedlane.targets import time_to_accuracy
from fedlane.validate import InputError, printable

Value = str | float
"""A key's value."""
TABLES = ("sweep.parquet", "leaderboard.parquet")
"""Tables with one row per cell and seed, by file name."""
NUMERIC_KEYS = frozenset(("seed", "rounds"))
"""Keys without a dot in their name that hold numbers; every other such column of a table is a measure."""
NOT_CURVES = frozenset(("replica", "seed"))
"""Columns of rounds.parquet that are not drawn over rounds."""


@dataclass(frozen=True)
class PlotData:
    """Results with one row per cell and seed.

    Attributes:
        keys: Value of each key by row; None where the cell does not have the key.
        measures: (rows,) for each measure; NaN where it is missing.
        curves: For each column of rounds.parquet, the values of each row by round; empty if there are no rounds.
    """

    keys: Mapping[str, Sequence[Value | None]]
    measures: Mapping[str, FloatArray]
    curves: Mapping[str, Sequence[FloatArray]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.keys["seed"])


def load_plot_data(folders: Sequence[Path]) -> PlotData:
    """Read the results in some folders.

    Args:
        folders: Run folders and folders of comparisons, or folders of sweeps.

    Raises:
        InputError: A folder is missing, damaged or of another kind than the others.
    """
    tables = [folder / name for folder in folders for name in TABLES if (folder / name).is_file()]
    if not tables:
        return runs_data([read_run(folder) for folder in run_folders(folders)])
    if len(tables) < len(folders):
        raise InputError("runs and sweeps cannot be drawn in one figure")
    contents = [read_table(path, ("policy", "seed"), texts=True) for path in tables]
    try:
        return table_data(pa.concat_tables(contents, promote_options="permissive"))
    except pa.ArrowException as error:
        raise InputError(f"the tables do not fit together: {str(error).splitlines()[0]}") from error


def table_data(table: pa.Table) -> PlotData:
    """Bring the table of a sweep into the form of a figure's data.

    Args:
        table: One row per cell and seed. Columns: ``policy``, ``seed``, grid keys named by their scenario key (such as
            ``privacy.epsilon``) or holding text, and measures.

    Raises:
        InputError: There is no column ``seed``.
    """
    if "seed" not in table.column_names:
        raise InputError("a table to plot needs a column 'seed'")
    keys: dict[str, list[Value | None]] = {}
    measures: dict[str, FloatArray] = {}
    for column in table.schema:
        number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        if number and "." not in column.name and column.name not in NUMERIC_KEYS:
            measures[column.name] = column_floats(table, column.name)
        else:
            keys[column.name] = [_value(value) for value in table[column.name].to_pylist()]
    parameters = [_inline_parameters(str(policy)) for policy in keys.get("policy", [])]
    for name in dict.fromkeys(name for row in parameters for name in row):
        keys.setdefault(name, [row.get(name) for row in parameters])
    return PlotData(keys, measures)


def runs_data(runs: Sequence[RunFiles]) -> PlotData:
    """Bring the files of runs into the form of a figure's data, with one row per run and seed."""
    described = [_described(run, name) for run, name in zip(runs, run_names(runs), strict=True)]
    seeds = [_seeds(run) for run in runs]
    keys: dict[str, list[Value | None]] = {}
    for name in dict.fromkeys(name for description in described for name in description):
        rows = [[description.get(name)] * len(own) for description, own in zip(described, seeds, strict=True)]
        keys[name] = [value for row in rows for value in row]
    keys["seed"] = [float(seed) for own in seeds for seed in own]
    per_run = [_measures(run) for run in runs]
    measures = {name: np.concatenate([values[name] for values in per_run]) for name in per_run[0]}
    return PlotData(keys, measures, _curves(runs))


def _measures(run: RunFiles) -> dict[str, FloatArray]:
    """The measures of a run for each seed: those of its summary, and what can be computed from its tables."""
    rounds, clients = run.tables["rounds"], run.tables["clients"]
    replicas = count_replicas(rounds)
    curves = [by_replica(rounds, column_floats(rounds, name), replicas) for name in ("accuracy", "clock_s")]
    learning = run.scenario.get("learning")
    given = learning.get("target_accuracy") if isinstance(learning, Mapping) else None
    target = given if isinstance(given, float) and 0 < given <= 1 else np.inf  # which no run reaches
    epsilon = by_replica(clients, column_floats(clients, "epsilon"), replicas)
    return {
        **seed_measures(run.tables),
        PROBLEM_SHORTFALL: problem_shortfall(run.tables, run.summary),
        "time_to_accuracy_s": np.array(
            [time_to_accuracy(a[None], c[None], target)[0] for a, c in zip(*curves, strict=True)]
        ),
        "epsilon": np.array([np.nan if np.isnan(values).all() else np.nanmax(values) for values in epsilon]),
    }


def _curves(runs: Sequence[RunFiles]) -> dict[str, list[FloatArray]]:
    """Columns of rounds.parquet that all runs have, one array per run and seed, in the order of rounds."""
    tables = [run.tables["rounds"] for run in runs]
    names = [name for name in tables[0].column_names if all(name in table.column_names for table in tables)]
    curves: dict[str, list[FloatArray]] = {name: [] for name in names if name not in NOT_CURVES}
    for run, table in zip(runs, tables, strict=True):
        replica, order = column_indices(table, "replica"), np.argsort(column_indices(table, "round"), kind="stable")
        for name, rows in curves.items():
            values = column_floats(table, name) + (1.0 if name == "round" else 0.0)  # readers count rounds from 1
            rows += [values[order][replica[order] == r] for r in range(len(_seeds(run)))]
    return curves


def _seeds(run: RunFiles) -> list[int]:
    """The seed of each replica."""
    replicas = count_replicas(run.tables["rounds"])
    listed = run.summary.get("seeds")
    known = isinstance(listed, list) and len(listed) == replicas and all(isinstance(seed, int) for seed in listed)
    return listed if known and isinstance(listed, list) else list(range(replicas))


def _described(run: RunFiles, name: str) -> dict[str, Value | None]:
    """Keys of a run: its name, scenario, policy, the policy's parameters, and all scenario values by dotted name."""
    parameters = run.summary.get("parameters")
    scenario = {key: value for key, value in run.scenario.items() if key not in ("name", "run")}
    return {
        "run": name,
        "scenario": _value(run.summary.get("scenario")),
        "policy": _value(run.summary.get("policy")),
        **(dict(_flat(parameters)) if isinstance(parameters, Mapping) else {}),
        **dict(_flat(scenario)),
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Value | None]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, _value(value)


def _value(value: object) -> Value | None:
    """A key's value as a number or a text; lists are shown as text."""
    if value is None or isinstance(value, bool):
        return None if value is None else str(value).lower()
    if isinstance(value, int | float):
        return float(value)
    return str(printable(value if isinstance(value, str) else str(value)))


def _inline_parameters(policy: str) -> dict[str, Value]:
    """Parameters in the name of a policy, such as V in ``mamab-om:V=10``."""
    parameters: dict[str, Value] = {}
    for item in policy.partition(":")[2].rpartition(":")[2].split(","):
        key, equals, text = item.partition("=")
        if equals:
            try:
                parameters[key.strip()] = float(text)
            except ValueError:
                parameters[key.strip()] = text.strip()
    return parameters
