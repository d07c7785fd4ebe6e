"""Tables that are read or made when they are needed, in parts of bounded size."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fedlane.parquet_tables import read_table, read_table_parts, table_rows

LAZY_ROWS = 1_000_000
"""Tables of a run folder with more rows are read only when they are used."""

Parts = Callable[[], Iterator[pa.Table]]
"""Yields the parts of a table, in order, each time that it is called; at least one."""


class TableParts(Mapping[str, pa.Table]):
    """Tables by name, some of which are made only when they are used.

    ``tables[name]`` is the whole table, and `parts` yields it in pieces, so that it never has to be in memory.

    Args:
        sources: For each name, the table or a function that yields its parts.
    """

    def __init__(self, sources: Mapping[str, pa.Table | Parts]) -> None:
        self._sources = dict(sources)

    def __getitem__(self, name: str) -> pa.Table:
        source = self._sources[name]
        if isinstance(source, pa.Table):
            return source
        table = pa.concat_tables(source()).combine_chunks()
        self._sources[name] = table
        return table

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def parts(self, name: str) -> Iterator[pa.Table]:
        """Yield the parts of a table, without keeping them."""
        source = self._sources[name]
        if isinstance(source, pa.Table):
            yield source
        else:
            yield from source()


def write_table(tables: Mapping[str, pa.Table], name: str, folder: Path) -> None:
    """Write a table as NAME.parquet into a folder, one part at a time."""
    with (folder / f"{name}.parquet").open("wb") as file:  # pyarrow would take a path with a ':' for a URI
        if not isinstance(tables, TableParts):
            pq.write_table(tables[name], file, compression="zstd", write_page_checksum=True)
            return
        parts = tables.parts(name)
        first = next(parts)
        with pq.ParquetWriter(file, first.schema, compression="zstd", write_page_checksum=True) as writer:
            writer.write_table(first)
            for part in parts:
                if part.num_rows:
                    writer.write_table(part)


def stored_tables(folder: Path, columns: Mapping[str, Collection[str]]) -> Mapping[str, pa.Table]:
    """Return the tables of a run folder; large ones are read when they are used.

    Args:
        folder: The run folder.
        columns: For each table, the columns that it must have.

    Raises:
        InputError: A table is damaged, or lacks a column.
    """
    sources: dict[str, pa.Table | Parts] = {}
    for name, required in columns.items():
        path = folder / f"{name}.parquet"
        large = table_rows(path, required) > LAZY_ROWS
        sources[name] = partial(read_table_parts, path, required) if large else read_table(path, required)
    return TableParts(sources)
