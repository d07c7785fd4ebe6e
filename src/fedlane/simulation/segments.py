"""Assignments of a long run on disk: one Parquet file for each segment of rounds, with one row group per replica.

A segment is written once, under a temporary name that is then renamed. A run that is killed and resumed writes the
segments after its checkpoint again, with the same content. Segments may come from a stranger, like every file of a run
folder, so that each is checked whenever it is read.
"""

import contextlib
import io
import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedlane.delay_predictions import NAMES, ordered_or_none
from fedlane.files import write_atomically
from fedlane.parquet_tables import read_row_group
from fedlane.records import BoolArray, IntArray
from fedlane.validate import InputError

NAME = "segments"
"""The folder of the segments in a run folder."""
CHANNEL_ARRAYS = ("client", "download_s", "compute_s", "upload_s", "punctual", "energy_j", *NAMES)
"""The arrays of a trace that have a channel axis."""
_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(("replica", "round", "client", "channel"), pa.int32()),
    **dict.fromkeys(("download_s", "compute_s", "upload_s", "delay_s"), pa.float64()),
    "punctual": pa.bool_(),
    "energy_j": pa.float64(),
}
SCHEMA = pa.schema(_TYPES)
"""The columns of the table ``assignments``."""
PREDICTED_SCHEMA = pa.schema({**_TYPES, **dict.fromkeys(NAMES, pa.float32())})
"""Its columns if the policy states predictions."""
_UNKNOWN = ("delay_s", "energy_j")
"""Columns besides the parts of a delay that may be null: for a client that left, and in a real federation."""
FILE_NAME = re.compile(r"\.?\d{9}\.parquet(\.\d+-\d+)?")
"""Names of segments and of their temporary files."""


def assignment_rows(arrays: Mapping[str, NDArray[Any]], replica: int = 0, first: int = 0) -> pa.Table:
    """Return one row per replica, round and assigned client.

    Args:
        arrays: The arrays (R, T, N) named in `CHANNEL_ARRAYS`, perhaps without energies and predictions.
        replica: Index of the first replica of the arrays.
        first: Index of the first round of the arrays.
    """
    client = arrays["client"]
    at = replicas, rounds, channels = np.nonzero(client >= 0)
    download_s, compute_s, upload_s = (arrays[name][at] for name in ("download_s", "compute_s", "upload_s"))
    energy_j = arrays["energy_j"][at] if "energy_j" in arrays else np.full(len(replicas), np.nan)
    columns: dict[str, Any] = {
        "replica": (replicas + replica).astype(np.int32),
        "round": (rounds + first).astype(np.int32),
        "client": client[at],
        "channel": channels.astype(np.int32),
        "download_s": _or_null(download_s),
        "compute_s": _or_null(compute_s),
        "upload_s": _or_null(upload_s),
        "delay_s": _or_null(download_s + compute_s + upload_s),
        "punctual": arrays["punctual"][at],
        "energy_j": _or_null(energy_j),
        **{name: _or_null(arrays[name][at]) for name in NAMES if name in arrays},
    }
    return pa.table(columns)


def _or_null(values: NDArray[Any]) -> "pa.Array[Any]":
    """Return numbers as a column, with null for NaN."""
    return pa.array(values, from_pandas=True)


@dataclass(frozen=True)
class SegmentShape:
    """Sizes of a segment.

    Attributes:
        rounds: Number of rounds of a segment.
        replicas: Number of replicas.
        clients: Number of clients.
        channels: Number of channels.
        predicted: Whether the policy states predictions.
    """

    rounds: int
    replicas: int
    clients: int
    channels: int
    predicted: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The columns of a segment."""
        return PREDICTED_SCHEMA if self.predicted else SCHEMA


class Segments:
    """The segments of a run, in a temporary folder or, after `move_to`, in a run folder.

    Args:
        shape: Sizes of a segment.
    """

    def __init__(self, shape: SegmentShape) -> None:
        self.shape = shape
        self._temporary: Path | None = None
        self._folder: Path | None = None

    @property
    def rounds(self) -> int:
        """Number of rounds of a segment."""
        return self.shape.rounds

    def move_to(self, folder: Path) -> None:
        """Keep the segments in a run folder from now on, and use the segments that are there.

        Raises:
            InputError: The run folder has a link or a file in place of the folder of segments.
        """
        target = folder / NAME
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise InputError(f"{target} must be a folder, and not a link")
        if self._temporary is not None and target != self._folder:
            target.mkdir(parents=True, exist_ok=True)
            for path in self._temporary.iterdir():
                shutil.move(path, target / path.name)
            self._temporary = None
        self._folder = target

    def write(self, first: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the segment that begins at round ``first``; ``arrays`` are those of `CHANNEL_ARRAYS`.

        Raises:
            InputError: If the file cannot be written.
        """
        buffer = io.BytesIO()
        with pq.ParquetWriter(buffer, self.shape.schema, compression="zstd", write_page_checksum=True) as writer:
            for replica in range(len(arrays["client"])):
                rows = {name: array[replica : replica + 1] for name, array in arrays.items()}
                table = assignment_rows(rows, replica, first)
                writer.write_table(table, row_group_size=max(1, table.num_rows))
        path = self._path(first)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, buffer.getvalue())
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error

    def read(self, first: int, replica: int) -> pa.Table:
        """Return one replica's rows of the segment that begins at round ``first``.

        Raises:
            InputError: If the file is missing or damaged, or if its rows cannot be those of the segment.
        """
        path, shape = self._path(first), self.shape
        table = read_row_group(
            path, replica, shape.schema, groups=shape.replicas, rows=shape.rounds * min(shape.channels, shape.clients)
        )
        problem = _problem(table, replica, first, shape)
        if problem:
            raise InputError(f"{path} is damaged: {problem}")
        return table

    def clients(self, first: int) -> tuple[IntArray, BoolArray]:
        """Return a segment's ``client`` and ``punctual``, each (R, rounds of a segment, N)."""
        shape = self.shape
        client: IntArray = np.full((shape.replicas, shape.rounds, shape.channels), -1, np.int32)
        punctual: BoolArray = np.zeros(client.shape, np.bool_)
        for replica in range(shape.replicas):
            table = self.read(first, replica)
            at = replica, table["round"].to_numpy() - first, table["channel"].to_numpy()
            client[at], punctual[at] = table["client"].to_numpy(), table["punctual"].to_numpy()
        return client, punctual

    def _path(self, first: int) -> Path:
        if self._folder is None:
            self._folder = self._temporary = Path(tempfile.mkdtemp(prefix="fedlane-"))
            weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        return self._folder / f"{first:09d}.parquet"


def _problem(table: pa.Table, replica: int, first: int, shape: SegmentShape) -> str:
    """Return why rows cannot be those of a replica and of the segment that begins at ``first``; empty if they can."""
    parts_of_delay = ("download_s", "compute_s", "upload_s")
    if any(table[name].null_count for name in table.column_names if name not in (*parts_of_delay, *_UNKNOWN)):
        return "a value is missing"
    columns = {name: table[name].to_numpy() for name in table.column_names}
    bounds = {
        "replica": (replica, replica + 1),
        "round": (first, first + shape.rounds),
        "client": (0, shape.clients),
        "channel": (0, shape.channels),
    }
    for name, (low, high) in bounds.items():
        if np.any((columns[name] < low) | (columns[name] >= high)):
            return f"column {name} must hold numbers from {low} to {high - 1}"
    round_of_segment = columns["round"].astype(np.int64) - first
    if np.any(np.diff(round_of_segment * shape.channels + columns["channel"]) <= 0):
        return "its rounds and channels are repeated or out of order"
    if len(np.unique(round_of_segment * shape.clients + columns["client"])) != table.num_rows:
        return "it gives two channels to one client in the same round"
    parts = [columns[name] for name in parts_of_delay]
    total_s = sum(parts[1:], parts[0])
    if any(np.any(part < 0) for part in parts) or not np.array_equal(total_s, columns["delay_s"], equal_nan=True):
        return "its delays must be at least 0, and delay_s their sum"
    if np.any(np.isnan(total_s) & columns["punctual"]):
        return "a value is missing"
    if np.any(columns["energy_j"] < 0):
        return "energy_j must be at least 0"
    if shape.predicted and not ordered_or_none(*(columns[name] for name in NAMES)).all():
        return "its predictions must be at least 0 and in order"
    return ""


def remove_segments(folder: Path) -> None:
    """Remove the segments of a run folder, whose tables hold the same rows; other files are left."""
    target = folder / NAME
    if target.is_symlink() or not target.is_dir():
        return
    with contextlib.suppress(OSError):  # results do not depend on it
        for path in target.iterdir():
            if FILE_NAME.fullmatch(path.name):
                path.unlink()
        target.rmdir()
