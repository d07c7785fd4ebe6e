"""The store of batches: one Parquet file per batch, named by its key and written atomically."""

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fedlane.files import write_atomically
from fedlane.parquet_tables import read_table
from fedlane.validate import InputError


class BatchStore:
    """Results by key, in a folder or, without one, in memory.

    Args:
        folder: The folder; it is created when the first result is written.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._memory: dict[str, bytes] = {}

    def keys(self) -> set[str]:
        """Return the keys of all stored results."""
        if self.folder is None:
            return set(self._memory)
        return {path.stem for path in self.folder.glob("*.parquet")} if self.folder.is_dir() else set()

    def write(self, key: str, content: bytes) -> None:
        """Store a result.

        Raises:
            InputError: The file cannot be written.
        """
        if self.folder is None:
            self._memory[key] = content
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(self.folder, key), content)
        except OSError as error:
            raise InputError(f"{self._path(self.folder, key)} cannot be written: {error.strerror}") from error

    def read(self, key: str, columns: Collection[str] = (), *, texts: bool = False) -> pa.Table:
        """Read a result.

        Args:
            key: Its key.
            columns: Columns that it must have.
            texts: Whether columns of text are read as well; a folder's other columns always are.

        Raises:
            InputError: The file is missing or damaged.
        """
        if self.folder is None:
            return pq.read_table(pa.BufferReader(self._memory[key]))
        path = self._path(self.folder, key)
        try:
            return read_table(path, columns, texts=texts)
        except InputError as error:
            raise InputError(f"{error}; remove it to compute it again") from None

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        return folder / f"{key}.parquet"
