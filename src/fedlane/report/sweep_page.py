"""The data embedded in the page of a sweep: its keys, and every cell's measures with 95% intervals over seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedlane.report.measure_labels import measure_label
from fedlane.report.packing import embedded, packed_doubles, packed_indices
from fedlane.report.page_data import page_data
from fedlane.report.page_fit import BUDGET_BYTES, PAGE_BYTES, shortened
from fedlane.report.plot_data import Value
from fedlane.report.plot_layout import text_of
from fedlane.report.run_files import run_folders
from fedlane.report.run_labels import seeds_text
from fedlane.report.sweep_cells import SweepFiles, is_sweep, read_sweep
from fedlane.validate import InputError

MAX_FAILURES = 100
"""Largest number of failures on the page."""
MAX_VALUES = 60_000
"""Largest number of values of a key."""


def folders_page(folders: Sequence[Path]) -> tuple[dict[str, Any], str]:
    """Collect the data of the page for some folders, and say in words what it shows.

    Args:
        folders: Run folders and folders of comparisons, or the folder of one sweep.

    Raises:
        InputError: A folder is missing or damaged, or sweeps are mixed with others.
    """
    if any(is_sweep(folder) for folder in folders):
        if len(folders) > 1:
            raise InputError("a page shows one sweep: give its folder alone")
        data = sweep_page_data(folders[0])
        return data, f"a sweep of {data['sweep']['cells']} cells"
    runs = run_folders(folders)
    return page_data(runs), "1 run" if len(runs) == 1 else f"{len(runs)} runs"


def sweep_page_data(folder: Path) -> dict[str, Any]:
    """Collect the data that the page of a sweep shows.

    Args:
        folder: A folder written by `fedlane sweep`.

    Returns:
        The data of the page, ready for JSON; pass it to `build_page`.

    Raises:
        InputError: A file is damaged, no cell is finished, or the page would exceed its size.
    """
    files = read_sweep(folder)
    data = {"runs": [], "sweep": _content(files)}
    if (size := len(embedded(data))) > BUDGET_BYTES:
        raise InputError(
            f"the page of these {len(files.cells.seeds):,} cells would take "
            f"{(size + PAGE_BYTES - BUDGET_BYTES) / 1e6:.1f} MB, more than the limit of {PAGE_BYTES / 1e6:.1f} MB; "
            "fedlane plot draws sweeps of any size"
        )
    return data


def _content(files: SweepFiles) -> dict[str, Any]:
    cells, scenario, seeds = files.cells, files.plan.get("scenario"), files.plan.get("seeds")
    keys = [_key(name, values) for name, values in cells.keys.items()]
    parts = np.array(
        [
            [[np.nan if m[part] is None else m[part] for part in ("mean", "low", "high")] for m in measures]
            for measures in cells.measures.values()
        ]
    ).reshape(len(cells.measures), len(cells.seeds), 3)
    return {
        "scenario": str(scenario.get("name", "")) if isinstance(scenario, dict) else "",
        "folder": files.folder,
        "toml": shortened(files.toml, BUDGET_BYTES),
        "seeds_text": seeds_text(seeds) if isinstance(seeds, list) and seeds else "",
        "cells": len(cells.seeds),
        "keys": [{"name": name, "values": names, "numbers": numbers} for name, names, numbers, _ in keys],
        "index": packed_indices(np.array([places for *_, places in keys], np.int64)),
        "seeds": list(cells.seeds),
        "measures": [_label(name) for name in cells.measures],
        "numbers": packed_doubles(parts),
        "failed": len(files.failures),
        "failures": [_failure(failure) for failure in files.failures[:MAX_FAILURES]],
    }


def _key(name: str, values: Sequence[Value | None]) -> tuple[str, list[str], list[float] | None, list[int]]:
    """A key's name, its different values as texts, as numbers if all are, and the place of each cell's value."""
    different = list(dict.fromkeys(value for value in values if value is not None))
    if len(different) > MAX_VALUES:
        raise InputError(f"{name} has {len(different):,} values, a page shows at most {MAX_VALUES:,}")
    numeric = bool(different) and all(isinstance(value, float) and np.isfinite(value) for value in different)
    ordered = sorted(different) if numeric else different
    place = {value: k for k, value in enumerate(ordered)}
    numbers = [float(value) for value in ordered] if numeric else None
    return name, list(map(text_of, ordered)), numbers, [-1 if value is None else place[value] for value in values]


def _label(name: str) -> dict[str, str]:
    return {"name": name, "label": measure_label(name).text}


def _failure(failure: Mapping[str, Any]) -> dict[str, str]:
    values = failure.get("values")
    shown = [f"{key} = {value}" for key, value in values.items()] if isinstance(values, dict) else []
    return {
        "policy": str(failure.get("policy", "")),
        "values": ", ".join(shown),
        "error": str(failure.get("error", "")),
    }
