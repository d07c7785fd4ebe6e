"""The tables and figures of an artifact, made from its runs."""

import csv
import io
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedlane.report.figures import accuracy_figure, time_figure
from fedlane.simulation.results import EXTRA, MEASURES, Run

FIGURE_SUFFIXES = ("pdf", "png")


def write_results(runs: Mapping[str, Run]) -> dict[str, bytes]:
    """Return the tables and figures of some runs, by path inside of the artifact."""
    files = {"tables/summary.csv": _csv(_summary_rows(runs)), "tables/seeds.csv": _csv(_seed_rows(runs))}
    tables = {name: run.rounds for name, run in runs.items()}
    files |= _figures("time", lambda path: time_figure(tables, path))
    learned = {name: run.rounds for name, run in runs.items() if run.rounds["loss"].null_count < len(run.rounds)}
    if learned:
        files |= _figures("accuracy", lambda path: accuracy_figure(learned, path))
    return files


def _figures(name: str, draw: Callable[[Path], None]) -> dict[str, bytes]:
    """Draw a figure in every format."""
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        for suffix in FIGURE_SUFFIXES:
            path = Path(folder) / f"{name}.{suffix}"
            draw(path)
            files[f"figures/{path.name}"] = path.read_bytes()
    return files


def _summary_rows(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """One row per run and measure: mean and 95% interval over seeds."""
    return [
        {
            "run": name,
            "scenario": run.summary["scenario"],
            "policy": run.summary["policy"],
            "seeds": len(run.summary["seeds"]),
            "measure": measure,
            **{key: run.summary[measure][key] for key in ("mean", "low", "high")},
        }
        for name, run in runs.items()
        for measure in (*MEASURES, *EXTRA)
    ]


def _seed_rows(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """One row per run and seed."""
    rows = []
    for name, run in runs.items():
        rounds = {column: run.rounds[column].to_numpy() for column in ("replica", "clock_s", "accuracy")}
        participation, owner = (run.clients[column].to_numpy() for column in ("participation", "replica"))
        assigned, late = run.assignments["replica"].to_numpy(), ~np.asarray(run.assignments["punctual"])
        for replica, seed in enumerate(run.summary["seeds"]):
            of_replica = rounds["replica"] == replica
            accuracy = rounds["accuracy"][of_replica & ~np.isnan(rounds["accuracy"])]
            uploads = late[assigned == replica]
            rows.append(
                {
                    "run": name,
                    "seed": seed,
                    "cumulative_delay_s": float(rounds["clock_s"][of_replica].max(initial=0.0)),
                    "late_share": float(uploads.mean()) if len(uploads) else 0.0,
                    "min_participation": float(participation[owner == replica].min()),
                    "final_accuracy": float(accuracy[-1]) if len(accuracy) else None,
                }
            )
    return rows


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as CSV; a value that is not known is empty, and numbers keep all their digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
