"""A comparison of runs: every measure per policy, and paired differences from the first policy, with 95% intervals.

Two policies that play the same seed meet the same network and the same data, so that their difference on a seed is
free of the variation between seeds. The interval of a difference is therefore the Student interval of the mean of the
per-seed differences. `fedlane.intervals` says how intervals respect the range of a measure.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedlane.files import write_atomically
from fedlane.intervals import difference_bounds, interval, measure_bounds
from fedlane.records import FloatArray
from fedlane.report.comparison_files import NAME
from fedlane.report.latex import latex_table
from fedlane.report.measure_labels import measure_label
from fedlane.report.optimum_ratio import RATIO, OptimumBySeed
from fedlane.report.seed_measures import COMPARED, ENERGY, PROBLEM_SHORTFALL
from fedlane.validate import InputError

TIME = "time_to_accuracy_s"
"""Simulated time to the target accuracy: a measure of comparisons that have a target."""
METHOD = (
    "low and high bound the 95% Student interval of the mean over seeds, without values that the quantity cannot take: "
    "shares stay within 0 and 1, their differences within -1 and 1, times and queues are at least 0. "
    "The true mean is never among the values left out, so that the coverage is that of the Student interval. "
    "One seed has no interval: low and high are null. "
    "Differences are the run minus the baseline on the same seed. "
    "problem_shortfall is from the problem's quotas, which are the same for all policies; a run's quota_shortfall and "
    "max_queue are from the quotas that its policy serves, lowered by its slack."
)
FIELDS = (
    *("policy", "measure", "unit", "seeds", "mean", "low", "high"),
    *("baseline", "pairs", "difference", "difference_low", "difference_high"),
)
"""Columns of comparison.csv."""


@dataclass(frozen=True)
class ComparedRun:
    """A run that takes part in a comparison.

    Attributes:
        summary: The run's summary; its ``policy`` names the run.
        values: (S,) for each measure, one value per seed; NaN where there is none.
        folder: Name of the run's folder inside the comparison's folder; None for a run from elsewhere.
    """

    summary: Mapping[str, Any]
    values: Mapping[str, FloatArray]
    folder: str | None = None


def comparison(runs: Sequence[ComparedRun], optimum: OptimumBySeed | None = None) -> dict[str, Any]:
    """Compare runs with the first of them.

    Args:
        runs: At least one run; the first is the baseline.
        optimum: The optimum of the baseline's networks, if it is known.

    Returns:
        The content of `comparison.json`: general facts, and for each run its summary, ``seed_values`` (each measure by
        seed) and ``differences`` (each measure: mean, low, high, and the number of ``pairs``); with an optimum, also
        ``delay_over_optimum`` (mean, low, high, and the number of ``seeds``).
    """
    first = runs[0]
    target = first.summary.get("time_to_accuracy")
    has_energy = all(ENERGY in run.values for run in runs)  # a real federation has none
    measures = [name for name in measures_of(first.values) if name != ENERGY or has_energy]
    return {
        "scenario": first.summary["scenario"],
        "rounds": first.summary["rounds"],
        "seeds": first.summary["seeds"],
        "baseline": first.summary["policy"],
        "target_accuracy": target["target"] if target else None,
        "measures": measures,
        "units": {name: measure_label(name).stored_unit for name in measures},
        "method": METHOD,
        "optimum": None if optimum is None else optimum.content,
        "runs": [_entry(run, first, optimum) for run in runs],
    }


def measures_of(values: Mapping[str, object]) -> list[str]:
    """Names of the compared measures, in the order of the tables."""
    return [name for name in (*COMPARED, ENERGY, TIME) if name in values]


def _entry(run: ComparedRun, first: ComparedRun, optimum: OptimumBySeed | None) -> dict[str, Any]:
    comparable = optimum is not None and _same_networks(run, first)
    return {
        **run.summary,
        **_shortfall(run),
        "folder": run.folder,
        RATIO: optimum.ratio(run.summary["seeds"], run.values["mean_round_s"]) if optimum and comparable else None,
        "seed_values": {name: [_number(value) for value in values] for name, values in run.values.items()},
        "differences": None if run is first else _differences(run, first),
    }


def _shortfall(run: ComparedRun) -> dict[str, Any]:
    """The shortfall from the problem's quotas, which a summary does not have."""
    values = run.values.get(PROBLEM_SHORTFALL)
    if values is None:
        return {}
    return {PROBLEM_SHORTFALL: interval(values[~np.isnan(values)], measure_bounds(PROBLEM_SHORTFALL))}


def _differences(run: ComparedRun, first: ComparedRun) -> dict[str, Any]:
    """Paired differences in every measure; without pairs if the runs do not play the same networks equally long."""
    ours, theirs = list(run.summary["seeds"]), list(first.summary["seeds"])
    comparable = _same_networks(run, first)
    pairs = [(ours.index(seed), theirs.index(seed)) for seed in ours if seed in theirs] if comparable else []
    at, base_at = np.array(pairs, np.int64).reshape(-1, 2).T
    result = {}
    for name in first.values.keys() & run.values.keys():
        difference = run.values[name][at] - first.values[name][base_at]
        difference = difference[~np.isnan(difference)]
        bounds = difference_bounds(measure_bounds(name))
        result[name] = {**interval(difference, bounds), "pairs": len(difference)}
    return {name: result[name] for name in measures_of(first.values) if name in result}


def _same_networks(run: ComparedRun, first: ComparedRun) -> bool:
    """Whether both runs play simulated networks of one scenario equally long."""
    same = all(run.summary[key] == first.summary[key] for key in ("scenario", "rounds"))
    return same and "flower" not in run.summary and "flower" not in first.summary


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def write_comparison(content: Mapping[str, Any], folder: Path) -> None:
    """Write comparison.json, comparison.csv and comparison.tex into a folder.

    Args:
        content: What `comparison` returned.
        folder: An existing folder.

    Raises:
        InputError: A file cannot be written.
    """
    texts = {
        ".csv": comparison_csv(content),
        ".tex": latex_table(content),
        ".json": json.dumps(content, indent=2, allow_nan=False) + "\n",
    }
    for suffix, text in texts.items():
        path = (folder / NAME).with_suffix(suffix)
        try:
            write_atomically(path, text.encode())
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error


def comparison_csv(content: Mapping[str, Any]) -> str:
    """Return a comparison as CSV, one row per run and measure; empty cells stand for missing values."""
    text = io.StringIO()
    table = csv.DictWriter(text, FIELDS, restval="", lineterminator="\n")
    table.writeheader()
    for run in content["runs"]:
        for name in (*content["measures"], "feasible_scale", *([RATIO] if run[RATIO] else [])):
            table.writerow(_row(run, name, content["baseline"]))
    return text.getvalue()


def _row(run: Mapping[str, Any], name: str, baseline: str) -> dict[str, Any]:
    measure = run["time_to_accuracy"] if name == TIME else run[name]
    row = {
        "policy": run["policy"],
        "measure": name,
        "unit": measure_label(name).stored_unit,
        "seeds": measure.get("seeds", sum(value is not None for value in run["seed_values"].get(name, run["seeds"]))),
        **{key: measure[key] for key in ("mean", "low", "high")},
    }
    difference = (run["differences"] or {}).get(name)
    if difference is not None:
        row |= {"baseline": baseline, "pairs": difference["pairs"], "difference": difference["mean"]}
        row |= {f"difference_{key}": difference[key] for key in ("low", "high")}
    return {key: value for key, value in row.items() if value is not None}
