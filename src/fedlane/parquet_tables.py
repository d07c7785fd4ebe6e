"""Parquet tables from run folders: reading them with bounds on memory, and their columns as arrays."""

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedlane.files import open_regular
from fedlane.records import FloatArray
from fedlane.validate import InputError, first_line, printable

MAX_ROWS, MAX_VALUES, MAX_BYTES = 50_000_000, 500_000_000, 2**30
"""Largest Parquet table that is read: rows, values, and bytes that its columns need in memory."""
LARGEST_INDEX = 2**31 - 1


def check_table(path: Path, columns: Collection[str], *, texts: bool = False) -> list[str]:
    """Check a Parquet file's metadata, without reading its values: a small file can hold billions of equal ones.

    Args:
        path: The file.
        columns: Columns that it must have.
        texts: Whether its columns of text are read as well.

    Returns:
        The names of the columns to read: those of numbers and truth values, the required ones, and texts if asked for.

    Raises:
        InputError: The file is damaged, lacks a column, or is larger than `MAX_ROWS`, `MAX_VALUES` or `MAX_BYTES`.
    """
    metadata, schema = _metadata(path, columns)
    wanted = [field.name for field in schema if field.name in columns or _is_plain(field.type, texts=texts)]
    paths = [metadata.schema.column(k).path for k in range(metadata.num_columns)]
    read = {k for k, path in enumerate(paths) if any(path == name or path.startswith(f"{name}.") for name in wanted)}
    values = stored = 0
    for k in range(metadata.num_row_groups):
        group = metadata.row_group(k)
        values += sum(group.column(c).num_values for c in range(metadata.num_columns))
        stored += sum(group.column(c).total_uncompressed_size for c in read)
    if metadata.num_rows > MAX_ROWS or values > MAX_VALUES:
        raise InputError(
            f"{path} is too large: it has {metadata.num_rows:,} rows and {values:,} values, "
            f"at most {MAX_ROWS:,} and {MAX_VALUES:,} are read"
        )
    needed = max(stored, metadata.num_rows * sum(_width(schema.field(name).type) for name in wanted))
    if needed > MAX_BYTES:
        raise InputError(f"{path} is too large: its columns need {needed:,} bytes, at most {MAX_BYTES:,} are read")
    return wanted


def read_table(path: Path, columns: Collection[str], *, texts: bool = False) -> pa.Table:
    """Return a Parquet file's columns of numbers and truth values, after a look at its metadata.

    Args:
        path: The file.
        columns: Columns that it must have.
        texts: Whether its columns of text are read as well, as dictionaries.

    Raises:
        InputError: The file is damaged, lacks a column, or is too large (see `check_table`).
    """
    wanted = check_table(path, columns, texts=texts)
    try:
        with _opened(path) as file:
            schema = pq.read_schema(file)
            long = [name for name in wanted if _is_text(schema.field(name).type)]
            table = pq.read_table(
                file, columns=wanted, read_dictionary=long, page_checksum_verification=True, partitioning=None
            )
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from error
    for column in table.schema:
        longest = _longest(table[column.name])
        if longest * table.num_rows > MAX_BYTES:
            raise InputError(f"{path} is too large: column {column.name} has texts of {longest:,} bytes")
    return table


def read_table_parts(path: Path, columns: Collection[str]) -> Iterator[pa.Table]:
    """Yield the row groups of a Parquet file, one at a time, with the columns that `read_table` reads.

    Args:
        path: The file.
        columns: Columns that it must have.

    Raises:
        InputError: The file is damaged, lacks a column, or is too large (see `check_table`).
    """
    wanted = check_table(path, columns)
    try:
        with _opened(path) as file:
            stored = pq.ParquetFile(file, page_checksum_verification=True)
            for group in range(stored.num_row_groups):
                yield stored.read_row_group(group, columns=wanted)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from error


def read_row_group(path: Path, group: int, schema: "pa.Schema", *, groups: int, rows: int) -> pa.Table:
    """Return one row group of a Parquet file that must have exactly the columns of a schema.

    Args:
        path: The file.
        group: Index of the row group.
        schema: Names and types of the columns.
        groups: Number of row groups that the file must have.
        rows: Largest number of rows of the row group.

    Raises:
        InputError: The file is missing or damaged, or has other columns, other row groups or more rows.
    """
    metadata, stored_schema = _metadata(path, schema.names)
    if not stored_schema.equals(schema):
        raise InputError(f"{path} was not written by FedLane: it has other columns")
    if metadata.num_row_groups != groups:
        raise InputError(f"{path} is damaged: it has {metadata.num_row_groups:,} row groups instead of {groups}")
    described = metadata.row_group(group)
    counted = {described.num_rows, *(described.column(k).num_values for k in range(described.num_columns))}
    if max(counted) > rows:
        raise InputError(f"{path} is too large: a row group has {max(counted):,} rows, at most {rows:,} are read")
    try:
        with _opened(path) as file:
            return pq.ParquetFile(file, page_checksum_verification=True).read_row_group(group)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from error


def table_rows(path: Path, columns: Collection[str]) -> int:
    """Return the number of rows of a Parquet file, from its metadata; the file may be too large to be read.

    Raises:
        InputError: The file is damaged or lacks a column.
    """
    return int(_metadata(path, columns)[0].num_rows)


def column_indices(table: pa.Table, column: str) -> NDArray[np.int64]:
    """Return a column of indices; raise `InputError` unless all are whole numbers from 0 to 2^31 - 1."""
    values = column_floats(table, column)
    if not ((values >= 0) & (values <= LARGEST_INDEX)).all() or np.any(values != np.floor(values)):
        raise InputError(f"column {column} of a run's table must hold whole numbers from 0 to {LARGEST_INDEX}")
    return values.astype(np.int64)


def column_floats(table: pa.Table, column: str) -> FloatArray:
    """Return a column as floats, null as NaN; raise `InputError` if it does not hold numbers."""
    try:
        values = table[column]
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.uint8())
        return np.asarray(values.cast(pa.float64()).to_numpy(), np.float64)
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        raise InputError(f"column {column} of a run's table must hold numbers") from error


def count_replicas(table: pa.Table) -> int:
    """Return the number of replicas in a table; raise `InputError` unless there are at least as many rows."""
    replicas = int(column_indices(table, "replica").max(initial=-1)) + 1
    if replicas > table.num_rows:
        raise InputError(f"a run's table has no row for some of the replicas 0 to {replicas - 1}")
    return replicas


def by_replica(table: pa.Table, values: FloatArray, replicas: int) -> list[FloatArray]:
    """Return the ``values`` (rows,) that belong to a table's rows, one array per replica, in the order of the rows."""
    replica = column_indices(table, "replica")
    order = np.argsort(replica, kind="stable")
    ends = np.searchsorted(replica[order], np.arange(replicas + 1))
    return [values[order[start:end]] for start, end in pairwise(ends)]


def _metadata(path: Path, columns: Collection[str]) -> tuple[Any, "pa.Schema"]:
    """Return the metadata and the schema of a Parquet file; raise `InputError` if it is damaged or lacks a column."""
    try:
        with _opened(path) as file:
            metadata = pq.read_metadata(file)
            schema = metadata.schema.to_arrow_schema()
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from error
    twice = next((name for name, count in Counter(schema.names).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"{path} was not written by FedLane: it has two columns {printable(twice)}")
    missing = [column for column in columns if schema.get_field_index(column) < 0]
    if missing:
        raise InputError(f"{path} was not written by FedLane: column {missing[0]} is missing")
    return metadata, schema


@contextlib.contextmanager
def _opened(path: Path) -> "Iterator[pa.NativeFile]":
    """Open a regular file for Arrow, which would take a path with ':' for a URL.

    Arrow's threads must not hold a Python file: if one lets go of it while Python exits, the process is aborted.
    """
    with open_regular(path) as file, pa.OSFile(f"/dev/fd/{file.fileno()}", "rb") as native:
        yield native


def _is_text(kind: "pa.DataType") -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)


def _is_plain(kind: "pa.DataType", *, texts: bool) -> bool:
    """Whether a column is read although it is not required."""
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return number or pa.types.is_null(kind) or (texts and (_is_text(kind) or pa.types.is_dictionary(kind)))


def _width(kind: "pa.DataType") -> int:
    """Bytes of a value in memory; a text is the number of its entry in a dictionary."""
    return kind.bit_width // 8 or 1 if pa.types.is_primitive(kind) else 4


def _longest(column: Any) -> int:
    """Bytes of the longest text in a column that is stored as a dictionary; 0 for any other column."""
    if not (pa.types.is_dictionary(column.type) and _is_text(column.type.value_type)):
        return 0
    texts = (text for chunk in column.chunks for text in chunk.dictionary if text.is_valid)
    return max((len(text.as_buffer()) for text in texts), default=0)


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} is damaged: {first_line(error)}")
