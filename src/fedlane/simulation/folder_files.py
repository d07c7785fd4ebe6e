"""The files of a run folder: their names and columns, and reading them with checks of every value that is relied on."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedlane.files import read_regular
from fedlane.parquet_tables import check_table
from fedlane.scenario import Scenario
from fedlane.scenario.run_settings import RunSettings
from fedlane.simulation.provenance import read_provenance
from fedlane.validate import InputError, printable

COLUMNS = {
    "rounds": ("replica", "seed", "round", "delay_s", "clock_s", "punctual", "accuracy", "loss"),
    "assignments": (
        *("replica", "round", "client", "channel", "download_s", "compute_s", "upload_s", "delay_s", "punctual"),
    ),
    "clients": (
        *("replica", "client", "x_m", "y_m", "quota", "participation", "selection", "uploads", "queue"),
        *("epsilon", "epsilon_paper"),
    ),
    "channels": ("replica", "channel", "x_m", "y_m"),
    "client_rounds": ("replica", "round", "client", "queue", "epsilon", "available"),
}
"""Columns that every run folder's tables have, by table."""
OPTIONAL = {
    "positions": ("replica", "round", "client", "x_m", "y_m"),
    "coverage": ("x_m", "y_m", "building", "gain_db"),
}
"""Columns of the tables that only some run folders have."""
MODEL = "model.safetensors"
MEASURES = ("cumulative_delay_s", "mean_round_s", "late_share", "min_participation", "max_queue", "final_accuracy")
EXTRA = ("max_participation", "quota_shortfall", "feasible_scale")
"""Measures of a summary besides `MEASURES`."""


def load_summary(folder: Path) -> dict[str, Any]:
    """Read the summary of a run folder; of the tables, only the metadata is looked at.

    Raises:
        InputError: If the folder is damaged or was not written by FedLane.
    """
    check_files(folder)
    for name, columns in table_columns(folder).items():
        check_table(folder / f"{name}.parquet", columns)
    Scenario.load(folder / "scenario.toml")
    RunSettings.load(folder / "scenario.toml")
    read_provenance(folder)
    return read_summary(folder / "summary.json")


def table_columns(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the columns that each table of a run folder must have; optional tables only if the folder has them."""
    return COLUMNS | {name: columns for name, columns in OPTIONAL.items() if (folder / f"{name}.parquet").is_file()}


def check_files(folder: Path) -> None:
    """Raise `InputError` if a file is missing in a run folder."""
    if not folder.is_dir():
        raise InputError(f"run folder {folder} does not exist")
    for name in ("scenario.toml", "summary.json", "status.json", *(f"{table}.parquet" for table in COLUMNS)):
        if not (folder / name).is_file():
            raise InputError(f"{folder} is not a run folder: {name} is missing")


def read_model(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of a run's model; none if there is no model."""
    try:
        return load_file(path) if path.is_file() else {}
    except (OSError, SafetensorError, ValueError, TypeError, AttributeError, KeyError) as error:
        # A file may hold types that NumPy does not have (bfloat16, float8) or more axes than it supports.
        raise InputError(f"{path} is damaged: {error}") from error


def read_ledger(path: Path) -> str:
    """Return the text of a run's ledger; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is damaged: {error}") from error


def read_summary(path: Path) -> dict[str, Any]:
    """Return a run's summary with printable texts; raise `InputError` if it lacks a value that FedLane relies on."""
    try:
        summary: dict[str, Any] = printable(json.loads(read_regular(path)))
        figures = [summary[measure][key] for measure in (*MEASURES, *EXTRA) for key in ("mean", "low", "high")]
        quotas = [summary["quota"][key] for key in ("smallest", "largest")]
        complete = all(figure is None or _is_number(figure) for figure in [*figures, *quotas])
        complete &= all(isinstance(summary[key], str) for key in ("policy", "scenario"))
        complete &= isinstance(summary["rounds"], int) and isinstance(summary["infeasible_seeds"], dict)
        complete &= all(_is_number(scale) for scale in summary["infeasible_seeds"].values())
        every = summary.get("client_rounds_every", 1)
        complete &= type(every) is int and 1 <= every < 2**31
        complete &= isinstance(summary["seeds"], list) and all(isinstance(seed, int) for seed in summary["seeds"])
    except RecursionError:
        raise InputError(f"{path} is damaged: its values are nested too deeply") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    if not complete or not summary["seeds"]:
        raise InputError(f"{path} was not written by FedLane: a value is missing or has the wrong type")
    return summary


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max  # False for NaN
