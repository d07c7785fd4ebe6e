"""A run in a Python session: a few lines of text, a table for notebooks, and pandas frames."""

import importlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlane.number_text import number_text
from fedlane.validate import InputError, unknown

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = (
    ("simulated time", "cumulative_delay_s", "{:,.1f}", " s"),
    ("mean round time", "mean_round_s", "{:.3f}", " s"),
    ("late uploads", "late_share", "{:.1%}", ""),
    ("min. participation", "min_participation", "{:.3f}", ""),
    ("final accuracy", "final_accuracy", "{:.4f}", ""),
    ("final RMSE", "final_rmse", "{:.4g}", ""),
)
"""Label, measure, format and unit."""


def run_text(summary: Mapping[str, Any], rounds: int) -> str:
    """Return a run's summary in a few lines.

    Args:
        summary: The run's summary.
        rounds: Number of rounds requested.
    """
    lines = [f"  {label}: {value}" for label, value in _rows(summary)]
    return "\n".join([f"Run: {_title(summary, rounds)}", *lines])


def run_html(summary: Mapping[str, Any], rounds: int) -> str:
    """Return a run's summary as an HTML table."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(label)}</th><td>{escape(value)}</td></tr>"
        for label, value in _rows(summary)
    )
    return f"<table><caption>{escape(_title(summary, rounds))}</caption><tbody>{rows}</tbody></table>"


def data_frame(tables: "Mapping[str, pa.Table]", name: str, seeds: Sequence[int]) -> Any:
    """Return a table as a pandas DataFrame, with each row's seed.

    Raises:
        InputError: There is no such table, or pandas is not installed.
    """
    if name not in tables:
        raise unknown("table", name, tables)
    try:
        importlib.import_module("pandas")  # pyarrow would report its absence less clearly
    except ModuleNotFoundError as error:
        raise InputError("Run.to_pandas needs pandas: pip install pandas") from error
    frame = tables[name].to_pandas()
    if "seed" not in frame.columns and "replica" in frame.columns:
        frame.insert(1, "seed", np.asarray(seeds)[frame["replica"].to_numpy()])
    return frame


def _title(summary: Mapping[str, Any], rounds: int) -> str:
    done = summary["rounds"]
    played = f"{done} rounds" if done == rounds else f"{done} of {rounds} rounds"
    seeds = summary["seeds"]
    listed = ", ".join(map(str, seeds)) if len(seeds) < 6 else f"{seeds[0]}, {seeds[1]}, ..., {seeds[-1]}"
    counted = f"seed {listed}" if len(seeds) == 1 else f"{len(seeds)} seeds ({listed})"
    return f"{summary['scenario']}, {summary['policy']}, {played}, {counted}"


def _rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the label and value of each measure, and the privacy that was spent."""
    rows = []
    for label, measure, form, unit in _SHOWN:
        if measure not in summary:  # only runs on float targets have an RMSE
            continue
        mean, low, high = (summary[measure][key] for key in ("mean", "low", "high"))
        if mean is not None:
            ends = "" if low is None else f" (95% interval {number_text(low, form)} to {number_text(high, form)})"
            rows.append((label, number_text(mean, form) + unit + ends))
    privacy = summary.get("privacy")
    if privacy:
        spent, delta = privacy["epsilon"]["largest"], privacy["delta"]["largest"]
        kind = "at least " if "epsilon_composed" in privacy else "up to "
        value = "unreported" if spent is None else f"{kind}{spent:.3g} at delta {delta:g}"
        rows.append((f"epsilon ({privacy['mechanism']})", value))
    return rows
