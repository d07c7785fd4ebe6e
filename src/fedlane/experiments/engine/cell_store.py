"""The store of a study's cells, which checks what it reads."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from fedlane.experiments.engine.batch_store import BatchStore
from fedlane.experiments.engine.measuring import RMSE, SCHEMA
from fedlane.experiments.engine.work_batches import WorkBatch
from fedlane.validate import InputError

CELLS = "cells"
"""Folder of the stored batches in a study's folder."""


class CellStore(BatchStore):
    """Stored batches of a study. A file that does not hold what its batch must hold counts as missing.

    Args:
        folder: The folder; None to keep results in memory.
        batches: The batches of the study.
        schema: Columns of every result, ``seed`` among them.
    """

    def __init__(self, folder: Path | None, batches: Sequence[WorkBatch], schema: "pa.Schema" = SCHEMA) -> None:
        super().__init__(folder)
        self._schema = schema
        self._seeds = {batch.key: list(batch.values["seeds"]) for batch in batches}
        self._tables: dict[str, pa.Table] = {}

    def keys(self) -> set[str]:
        """Return the keys of this study's batches whose results are stored and whole."""
        return {key for key in super().keys() & set(self._seeds) if self._is_whole(key)}

    def table(self, key: str) -> pa.Table:
        """Return a result: the seeds and their measures."""
        if key not in self._tables:
            table = self.read(key, self._schema.names)
            self._tables[key] = table.select([*self._schema.names, *({RMSE} & {*table.column_names})])
        return self._tables[key]

    def write(self, key: str, content: bytes) -> None:
        """Store a result."""
        self._tables.pop(key, None)
        super().write(key, content)

    def _is_whole(self, key: str) -> bool:
        try:
            table = self.table(key)
        except InputError:
            return False
        types = [*self._schema.types, *[pa.float64()] * (RMSE in table.column_names)]
        return table.schema.types == types and table["seed"].to_pylist() == self._seeds[key]
