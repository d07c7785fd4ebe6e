"""Assignments of a long run on disk: one Parquet file for each segment of rounds, with one row group per replica.

A segment is written once, under a temporary name that is then renamed. A run that is killed and resumed writes the
segments after its checkpoint again, with the same content.
"""

import io
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedlane.files import open_regular, table_rows, write_atomically
from fedlane.records import BoolArray, IntArray
from fedlane.validate import InputError

NAME = "segments"
"""The folder of the segments in a run folder."""
CHANNEL_ARRAYS = ("client", "download_s", "compute_s", "upload_s", "punctual")
"""The arrays of a trace that have a channel axis."""


def assignment_rows(arrays: Mapping[str, NDArray[Any]], replica: int = 0, first: int = 0) -> pa.Table:
    """Return one row per replica, round and assigned client.

    Args:
        arrays: The arrays (R, T, N) named in `CHANNEL_ARRAYS`.
        replica: Index of the first replica of the arrays.
        first: Index of the first round of the arrays.
    """
    client = arrays["client"]
    at = replicas, rounds, channels = np.nonzero(client >= 0)
    download_s, compute_s, upload_s = (arrays[name][at] for name in ("download_s", "compute_s", "upload_s"))
    return pa.table(
        {
            "replica": (replicas + replica).astype(np.int32),
            "round": (rounds + first).astype(np.int32),
            "client": client[at],
            "channel": channels.astype(np.int32),
            "download_s": download_s,
            "compute_s": compute_s,
            "upload_s": upload_s,
            "delay_s": download_s + compute_s + upload_s,
            "punctual": arrays["punctual"][at],
        }
    )


class Segments:
    """The segments of a run, in a temporary folder or, after `move_to`, in a run folder.

    Args:
        rounds: Number of rounds of a segment.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self._temporary: Path | None = None
        self._folder: Path | None = None

    def move_to(self, folder: Path) -> None:
        """Keep the segments in a run folder from now on, and use the segments that are there."""
        target = folder / NAME
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
        for replica in range(len(arrays["client"])):
            rows = {name: array[replica : replica + 1] for name, array in arrays.items()}
            table = assignment_rows(rows, replica, first)
            if replica == 0:
                writer = pq.ParquetWriter(buffer, table.schema, compression="zstd", write_page_checksum=True)
            writer.write_table(table, row_group_size=max(1, table.num_rows))
        writer.close()
        path = self._path(first)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, buffer.getvalue())
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error

    def read(self, first: int, replica: int) -> pa.Table:
        """Return one replica's rows of the segment that begins at round ``first``.

        Raises:
            InputError: If the file is missing or damaged.
        """
        path = self._path(first)
        try:
            with open_regular(path) as file:
                return pq.ParquetFile(file, page_checksum_verification=True).read_row_group(replica)
        except (OSError, ValueError, IndexError, pa.ArrowException) as error:
            raise InputError(f"{path} is missing or damaged: {str(error).splitlines()[0]}") from error

    def check(self, rounds: int) -> None:
        """Raise `InputError` unless the segments of the first ``rounds`` rounds are there and have their columns."""
        for first in range(0, rounds, self.rounds):
            table_rows(self._path(first), ("replica", "round", "client", "channel", "punctual"))

    def clients(self, first: int, replicas: int, channels: int) -> tuple[IntArray, BoolArray]:
        """Return a segment's ``client`` and ``punctual``, each (R, rounds of a segment, N)."""
        client: IntArray = np.full((replicas, self.rounds, channels), -1, np.int32)
        punctual: BoolArray = np.zeros(client.shape, np.bool_)
        for replica in range(replicas):
            table = self.read(first, replica)
            at = replica, table["round"].to_numpy() - first, table["channel"].to_numpy()
            client[at], punctual[at] = table["client"].to_numpy(), table["punctual"].to_numpy()
        return client, punctual

    def _path(self, first: int) -> Path:
        if self._folder is None:
            self._folder = self._temporary = Path(tempfile.mkdtemp(prefix="fedlane-"))
            weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        return self._folder / f"{first:09d}.parquet"


def remove_segments(folder: Path) -> None:
    """Remove the segments of a run folder, whose tables hold the same rows."""
    shutil.rmtree(folder / NAME, ignore_errors=True)
