"""Files on disk: atomic replacement, durable names, arrays without pickle, and names made from text."""

import contextlib
import errno
import os
import re
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedlane.validate import InputError

if TYPE_CHECKING:  # pyarrow is imported where it is used, so that a client does not need it
    import pyarrow as pa

READ_ERRORS = (
    *(OSError, ValueError, KeyError, IndexError, EOFError, TypeError, AttributeError, NotImplementedError),
    *(OverflowError, RecursionError, SyntaxError, struct.error, zipfile.BadZipFile, zlib.error),
)
"""Exceptions that reading a missing, damaged or foreign file of arrays may raise."""
MAX_ROWS, MAX_VALUES = 50_000_000, 500_000_000
"""Largest Parquet table that is read."""


def write_atomically(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Replace a file atomically: readers find either the old content or the new, even after a crash.

    Args:
        path: The file; its folder must exist.
        content: The new content.
        durable: Force content and name to disk before returning. Assumes a single writer: the temporary name is
            fixed, so that a crash leaves at most one temporary file.

    Raises:
        OSError: The file could not be written; the old content is unchanged.
    """
    unique = "" if durable else f".{os.getpid()}-{threading.get_ident()}"
    temporary = path.with_name(f".{path.name}{unique}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk; syncing a file forces only its content."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_regular(path: Path, *, writable: bool = False) -> BinaryIO:
    """Open an existing regular file without a buffer; a pipe or a device is refused at once instead of waited for.

    Args:
        path: The file.
        writable: Open it for writing as well.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if stat.S_ISREG(path.stat().st_mode):  # opening a device can have effects
        descriptor = os.open(path, flags)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "r+b" if writable else "rb", buffering=0)
        os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file")


def read_regular(path: Path, largest: int | None = None) -> bytes:
    """Return the content of a regular file.

    Args:
        path: The file.
        largest: Largest size that is accepted, in bytes; None accepts any.

    Raises:
        OSError: The file cannot be read, is too large, or is not a regular file.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if largest is not None and size > largest:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, at most {largest:,} are read")
        return file.read()


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of an npz file by name; pickled content is refused.

    Raises:
        One of `READ_ERRORS`: the file is missing, damaged, or holds anything but plain arrays.
    """
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def fitting_array(
    arrays: Mapping[str, NDArray[Any]], name: str, like: NDArray[Any], *, growing: bool = False
) -> NDArray[Any]:
    """Return an array of a checkpoint, which must have the shape of ``like`` and a type that fits it.

    The second axis of a ``growing`` array may be longer.

    Raises:
        KeyError, ValueError: The array is missing, or has a different shape or type.
    """
    array = arrays[name]
    shape = array.shape
    if growing and array.ndim == like.ndim > 1 and shape[1] > like.shape[1]:
        shape = (shape[0], like.shape[1], *shape[2:])
    if shape != like.shape or not np.can_cast(array.dtype, like.dtype, "same_kind"):
        raise ValueError(f"{name} must be {like.dtype} {like.shape}, got {array.dtype} {array.shape}")
    return array


def read_table(path: Path, columns: Iterable[str]) -> "pa.Table":
    """Return a Parquet file's table, after a look at its metadata: a small file can hold billions of equal values.

    Args:
        path: The file.
        columns: Columns that it must have.

    Raises:
        InputError: The file is damaged, lacks a column, or holds more than `MAX_ROWS` rows or `MAX_VALUES` values.
    """
    import pyarrow.parquet as pq

    with _readable(path) as file:
        metadata = pq.read_metadata(file)
        _check_size(path, metadata, range(metadata.num_row_groups))
        file.seek(0)
        table = pq.read_table(file, page_checksum_verification=True, partitioning=None)
    _check_columns(path, table.column_names, columns)
    return table


def table_rows(path: Path, columns: Iterable[str]) -> int:
    """Return the number of rows of a Parquet file, from its metadata.

    Raises:
        InputError: The file is damaged or lacks a column.
    """
    import pyarrow.parquet as pq

    with _readable(path) as file:
        metadata = pq.read_metadata(file)
        names = metadata.schema.to_arrow_schema().names
    _check_columns(path, names, columns)
    return int(metadata.num_rows)


def read_table_parts(path: Path) -> Iterator["pa.Table"]:
    """Yield the row groups of a Parquet file, one at a time.

    Raises:
        InputError: The file is damaged, or a row group holds more than `MAX_ROWS` rows or `MAX_VALUES` values.
    """
    import pyarrow.parquet as pq

    with _readable(path) as file:
        stored = pq.ParquetFile(file, page_checksum_verification=True)
        for group in range(stored.num_row_groups):
            _check_size(path, stored.metadata, range(group, group + 1))
            yield stored.read_row_group(group)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[BinaryIO]:
    """Open a Parquet file, and turn the errors of reading it into an `InputError`."""
    import pyarrow as pa

    try:
        with open_regular(path) as file:  # by handle: a path with ':' would be taken for a URL
            yield file
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} is damaged: {(str(error).splitlines() or [type(error).__name__])[0]}") from error


def _check_size(path: Path, metadata: Any, groups: Iterable[int]) -> None:
    """Raise `InputError` if some row groups of a Parquet file are too large to read."""
    described = [metadata.row_group(k) for k in groups]
    rows = sum(group.num_rows for group in described)
    values = sum(group.column(k).num_values for group in described for k in range(group.num_columns))
    if rows > MAX_ROWS or values > MAX_VALUES:
        raise InputError(
            f"{path} is too large: it has {rows:,} rows and {values:,} values, "
            f"at most {MAX_ROWS:,} and {MAX_VALUES:,} are read"
        )


def _check_columns(path: Path, names: Iterable[str], columns: Iterable[str]) -> None:
    """Raise `InputError` if a table lacks a column."""
    present = set(names)
    missing = [column for column in columns if column not in present]
    if missing:
        raise InputError(f"{path} was not written by FedLane: column {missing[0]} is missing")


def file_name(text: str) -> str:
    """Return a policy's or scenario's name in a form that is safe as part of a file name."""
    return re.sub(r"[^\w.-]+", "-", text).strip(".-") or "unnamed"
