"""Reading the files of a run folder, which may be rewritten while they are read."""

import json
import time
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedlane.parquet_tables import column_indices, read_table, read_table_parts, table_rows
from fedlane.report.comparison_files import compared_folders
from fedlane.validate import InputError, printable

TABLES = {
    "rounds": ("replica", "round", "delay_s"),
    "assignments": ("replica", "round", "client", "channel", "download_s", "compute_s", "upload_s", "punctual"),
    "clients": ("replica", "client", "participation"),
    "channels": ("replica", "channel"),
    "client_rounds": ("replica", "round", "client"),
}
"""The tables of a run folder, and the columns that a report requires."""
OPTIONAL_TABLES = {
    "positions": ("replica", "round", "client", "x_m", "y_m"),
    "coverage": ("x_m", "y_m", "building", "gain_db"),
}
"""The tables that only some run folders have, and their columns."""
TEXTS = ("scenario.toml", "summary.json", "status.json")
FILES = (*TEXTS, *(f"{name}.parquet" for name in TABLES))
OPTIONAL_FILES = tuple(f"{name}.parquet" for name in OPTIONAL_TABLES)
CLIENT_ROUND_ROWS = 2_000_000
"""Of a larger table ``client_rounds``, only every m-th of its rounds is read."""
ATTEMPTS = 6
PAUSE_S = 0.05


@dataclass(frozen=True)
class RunFiles:
    """The contents of one run folder, read consistently."""

    folder: str
    """Name of the folder, without its path."""
    toml: str
    scenario: Mapping[str, Any]
    summary: Mapping[str, Any]
    status: Mapping[str, Any]
    tables: Mapping[str, pa.Table]
    written_s: float
    """Time of the last write of status.json, in seconds since 1970."""
    client_rounds_every: int = 1
    """Number of rounds from one round of the table ``client_rounds`` to the next."""


def run_folders(folders: Iterable[Path]) -> list[Path]:
    """Run folders among ``folders``; a folder written by `fedlane compare` stands for the run folders in it."""
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"run folder {folder} does not exist")
        if any((folder / name).is_file() for name in TEXTS):
            inside = [folder]
        else:
            order = {name: k for k, name in enumerate(compared_folders(folder))}
            inside = sorted(path.parent for path in folder.glob("*/status.json"))
            inside.sort(key=lambda path: order.get(path.name, len(order)))
        if not inside:
            raise InputError(f"{folder} is not a run folder: status.json is missing")
        found += [path for path in inside if path not in found]
    return found


def signature(folder: Path) -> str:
    """Return a string that changes whenever a file of the folder is rewritten."""
    parts = []
    for name in (*FILES, *OPTIONAL_FILES):
        try:
            info = (folder / name).stat()
        except OSError:
            parts.append("-")
        else:
            parts.append(f"{info.st_ino}.{info.st_mtime_ns}.{info.st_size}")
    return " ".join(parts)


def read_run(folder: Path) -> RunFiles:
    """Read a run folder, retrying if it is rewritten meanwhile. Raises `InputError` if it is incomplete or damaged."""
    for attempt in range(ATTEMPTS):
        before = signature(folder)
        try:
            files = _read(folder)
        except InputError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            if signature(folder) == before:
                return files
        time.sleep(PAUSE_S)
    return files  # still being rewritten: tables may end at different rounds, which `run_arrays` handles


def _read(folder: Path) -> RunFiles:
    for name in FILES:
        if not (folder / name).is_file():
            raise InputError(f"{folder} is not a run folder: {name} is missing")
    try:
        toml, summary, status = ((folder / name).read_text(encoding="utf-8") for name in TEXTS)
        written_s = (folder / "status.json").stat().st_mtime
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} cannot be read: {error}") from error
    parsed = _parsed(folder / "summary.json", json.loads, summary)
    small = {name: columns for name, columns in TABLES.items() if name != "client_rounds"}
    small |= {name: c for name, c in OPTIONAL_TABLES.items() if (folder / f"{name}.parquet").is_file()}
    tables = {name: read_table(folder / f"{name}.parquet", columns) for name, columns in small.items()}
    thin = "max_queue" in tables["rounds"].column_names
    tables["client_rounds"], every = _client_rounds(folder / "client_rounds.parquet", parsed, thin=thin)
    return RunFiles(
        folder=folder.resolve().name,
        toml=toml,
        scenario=_parsed(folder / "scenario.toml", tomllib.loads, toml),
        summary=parsed,
        status=_parsed(folder / "status.json", json.loads, status),
        tables=tables,
        client_rounds_every=every,
        written_s=written_s,
    )


def _client_rounds(path: Path, summary: Mapping[str, Any], *, thin: bool) -> tuple[pa.Table, int]:
    """Return the table ``client_rounds``, thinned if it is large, and the stride of its rounds.

    Args:
        path: The file.
        summary: The run's summary, with the stride of the file's rounds.
        thin: Whether rounds may be left out, because another table has the largest queues.
    """
    stored = summary.get("client_rounds_every", 1)
    if type(stored) is not int or not 1 <= stored < 2**31:
        raise InputError(f"{path.parent / 'summary.json'} is damaged: client_rounds_every must be a whole number")
    rows = table_rows(path, TABLES["client_rounds"])
    if rows <= CLIENT_ROUND_ROWS or not thin:
        return read_table(path, TABLES["client_rounds"]), stored
    every = stored * -(-rows // CLIENT_ROUND_ROWS)
    parts = [
        part.filter(pa.array(column_indices(part, "round") % every == 0))
        for part in read_table_parts(path, TABLES["client_rounds"])
    ]
    return pa.concat_tables(parts), every


def _parsed(path: Path, parse: Any, text: str) -> Mapping[str, Any]:
    try:
        value = parse(text)
        if not isinstance(value, dict):
            raise InputError(f"{path} was not written by FedLane: it must contain keys and values")
        cleaned: dict[str, Any] = printable(value)
    except RecursionError:
        raise InputError(f"{path} is damaged: its values are nested too deeply") from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return cleaned
