"""The folder of a sweep: its plan, its stored cells, and what is written at the end."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedlane.experiments.engine.study_folder import LOCK, locked, write_files
from fedlane.experiments.engine.work_batches import parquet
from fedlane.experiments.sweep_plan import FORMAT, SweepPlan
from fedlane.files import read_regular
from fedlane.report.sweep_cells import FAILURES, PLAN, SCENARIO, TABLE
from fedlane.validate import InputError

MAX_PLAN_BYTES = 50_000_000
_GROWING = ("policies", "grid", "seeds")
"""Parts of a plan to which a later sweep in the same folder may add."""


@contextlib.contextmanager
def claimed(plan: SweepPlan, folder: Path) -> Iterator[None]:
    """Make a sweep's folder, or accept that of the same sweep or a smaller one, and keep others out meanwhile.

    Raises:
        InputError: The folder holds another sweep or something else, is in use, or cannot be written.
    """
    check_folder(plan, folder)
    with locked(folder, "this sweep"):
        check_folder(plan, folder)  # again, because another process may have been faster
        description = (json.dumps(plan.description(), indent=2) + "\n").encode()
        write_files(folder, {PLAN: description, SCENARIO: plan.scenario.to_toml().encode()})
        yield


def check_folder(plan: SweepPlan, folder: Path) -> None:
    """Raise `InputError` if a folder holds another sweep or something else.

    A sweep may grow: the folder's plan may lack policies, seeds or values of the grid that the new plan has.
    """
    path = folder / PLAN
    if path.exists():
        difference = _difference(json.loads(json.dumps(plan.description())), _read_plan(path))
        if difference:
            raise InputError(f"{folder} holds another sweep, which differs in {difference}: choose another --out")
    elif folder.exists() and (not folder.is_dir() or any(item.name != LOCK for item in folder.iterdir())):
        raise InputError(f"{folder} is not empty and does not hold a sweep: choose another --out")


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_regular(path, MAX_PLAN_BYTES))
        if values["format"] != FORMAT:
            raise InputError(f"{path} has format {values['format']}, this version reads {FORMAT}")
        return dict(values)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}") from error


def _difference(new: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    """Name the first part in which two plans differ; empty if they are equal or the old one has grown."""
    for name in new:
        if new[name] == old.get(name) or (name in _GROWING and _contains(new[name], old.get(name))):
            continue
        if name == "scenario" and isinstance(old.get(name), dict):
            keys = [key for key in new[name] if key != "name" and new[name][key] != old[name].get(key)]
            if not keys and set(new[name]) == set(old[name]):
                continue  # another name changes no result
            return f"scenario value {keys[0] if keys else 'of another version'}"
        part = {"result_version": "the version of its results", "learning": "--no-learning"}.get(name, name)
        return f"{part} (a sweep can grow, but nothing can be left out)" if name in _GROWING else part
    return ""


def _contains(new: Any, old: Any) -> bool:
    """Whether a list has all items of another, or a grid has the same keys and all values of another."""
    if isinstance(new, dict) and isinstance(old, dict):
        return list(new) == list(old) and all(_contains(new[key], old[key]) for key in new)
    return isinstance(new, list) and isinstance(old, list) and all(item in new for item in old)


def write_results(folder: Path, table: pa.Table, failures: Sequence[Mapping[str, Any]]) -> None:
    """Write a sweep's table and its failures.

    Raises:
        InputError: The folder cannot be written.
    """
    listed = (json.dumps(list(failures), indent=2) + "\n").encode()
    write_files(folder, {TABLE: parquet(table), **({FAILURES: listed} if failures else {})})
    if not failures:
        (folder / FAILURES).unlink(missing_ok=True)
