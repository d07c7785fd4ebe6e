"""A run's tables as dense arrays; what a table does not say is NaN, -1 or False."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.report.run_files import RunFiles
from fedlane.validate import InputError

LARGEST = 50_000_000
"""Cells of the largest array that a report makes."""


@dataclass(frozen=True)
class RunArrays:
    """R replicas, T rounds played, S clients in one round at most, U clients, N channels."""

    delay_s: FloatArray
    """(R, T): of the round, capped at the deadline."""
    accuracy: FloatArray
    """(R, T)"""
    slot_client: IntArray
    """(R, T, S): who was assigned, -1 for nobody."""
    slot_channel: IntArray
    download_s: FloatArray
    """(R, T, S)"""
    compute_s: FloatArray
    upload_s: FloatArray
    punctual: BoolArray
    """(R, T, S)"""
    queue: FloatArray
    """(R, T, U): after the round."""
    epsilon: FloatArray
    """(R, T, U): spent by then."""
    available: BoolArray
    """(R, T, U)"""
    client_xy_m: FloatArray
    """(R, U, 2)"""
    channel_xy_m: FloatArray
    """(R, N, 2)"""
    clients: dict[str, FloatArray]
    """(R, U) each: quota, participation, selection, uploads, epsilon, epsilon_paper."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """R, T, U, N."""
        replicas, rounds, clients = self.queue.shape
        return replicas, rounds, clients, self.channel_xy_m.shape[1]


CLIENT_COLUMNS = ("quota", "participation", "selection", "uploads", "epsilon", "epsilon_paper")


def run_arrays(files: RunFiles) -> RunArrays:
    """Dense arrays of a run folder; only rounds that every table of rounds has."""
    tables = files.tables
    rounds = min(_size(tables["rounds"], "round"), _size(tables["client_rounds"], "round"))
    replicas = max(_size(tables["rounds"], "replica"), 1)
    clients = max(_size(tables["clients"], "client"), _size(tables["client_rounds"], "client"))
    channels = max(_size(tables["channels"], "channel"), _size(tables["assignments"], "channel"))
    if replicas * max(rounds, 1) * max(clients, channels, 1) > LARGEST:
        raise InputError(
            f"a report holds at most {LARGEST:,} seeds x rounds x clients, "
            f"got {replicas} x {rounds} x {max(clients, channels)}"
        )
    per_round = _Scatter(tables["rounds"], ("replica", "round"), (replicas, rounds))
    per_client = _Scatter(tables["clients"], ("replica", "client"), (replicas, clients))
    per_channel = _Scatter(tables["channels"], ("replica", "channel"), (replicas, channels))
    per_both = _Scatter(tables["client_rounds"], ("replica", "round", "client"), (replicas, rounds, clients))
    slots = _Slots(tables["assignments"], replicas, rounds)
    return RunArrays(
        delay_s=per_round.floats("delay_s"),
        accuracy=per_round.floats("accuracy"),
        slot_client=slots.integers("client"),
        slot_channel=slots.integers("channel"),
        download_s=slots.floats("download_s"),
        compute_s=slots.floats("compute_s"),
        upload_s=slots.floats("upload_s"),
        punctual=slots.floats("punctual") == 1.0,
        queue=per_both.floats("queue"),
        epsilon=per_both.floats("epsilon"),
        available=per_both.floats("available") != 0.0,
        client_xy_m=np.stack([per_client.floats("x_m"), per_client.floats("y_m")], axis=-1),
        channel_xy_m=np.stack([per_channel.floats("x_m"), per_channel.floats("y_m")], axis=-1),
        clients={name: per_client.floats(name) for name in CLIENT_COLUMNS},
    )


class _Scatter:
    """Rows of a table placed by their index columns into an array of a given shape."""

    def __init__(self, table: pa.Table, keys: tuple[str, ...], shape: tuple[int, ...]) -> None:
        index = [_indices(table, key) for key in keys]
        self._kept = np.logical_and.reduce([column < size for column, size in zip(index, shape, strict=True)])
        self._at: tuple[Any, ...] = tuple(column[self._kept] for column in index)
        self._table, self._shape = table, shape

    def floats(self, column: str) -> FloatArray:
        placed = np.full(self._shape, np.nan)
        if column in self._table.column_names:
            placed[self._at] = _floats(self._table, column)[self._kept]
        return placed

    def integers(self, column: str) -> IntArray:
        placed = np.full(self._shape, -1, np.int64)
        placed[self._at] = _indices(self._table, column)[self._kept]
        return placed


class _Slots(_Scatter):
    """Assignments by replica, round and slot: the k-th assigned client of a round, in the order of channels."""

    def __init__(self, table: pa.Table, replicas: int, rounds: int) -> None:
        table = table.take(np.lexsort([_indices(table, key) for key in ("client", "channel", "round", "replica")]))
        group = _indices(table, "replica") * (1 + _size(table, "round")) + _indices(table, "round")
        start = np.flatnonzero(np.diff(group, prepend=-1))
        slot = np.arange(len(group)) - np.repeat(start, np.diff(start, append=len(group)))
        table = table.append_column("slot", pa.array(slot, pa.int64()))
        slots = int(slot.max(initial=0)) + 1
        super().__init__(table, ("replica", "round", "slot"), (replicas, rounds, slots))


def _indices(table: pa.Table, column: str) -> NDArray[np.int64]:
    values = _floats(table, column)
    if not (values >= 0).all():
        raise InputError(f"column {column} of a run's table must be at least 0 everywhere")
    return values.astype(np.int64)


def _floats(table: pa.Table, column: str) -> FloatArray:
    """A column as floats, null as NaN."""
    try:
        values = table[column]
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.uint8())
        return np.asarray(values.cast(pa.float64()).to_numpy(), np.float64)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"column {column} of a run's table must hold numbers, got {table[column].type}") from error


def _size(table: pa.Table, column: str) -> int:
    """One more than the largest index of a column."""
    return int(_indices(table, column).max(initial=-1)) + 1
