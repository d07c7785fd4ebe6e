"""The tables of a run as dense arrays; missing entries are NaN, -1 or False."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fedlane.delay_predictions import NAMES
from fedlane.parquet_tables import column_floats, column_indices
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.report.run_files import RunFiles
from fedlane.validate import InputError

MAX_CELLS = 50_000_000
"""Maximum number of elements of an array."""
MAX_EMPTY, SPARE_CELLS = 4, 1_000_000
"""An array may have `MAX_EMPTY` elements per row of its table and `SPARE_CELLS` more. Tables of runs have no gaps, but
some are rewritten before others while a run continues."""


@dataclass(frozen=True)
class ClientPositions:
    """Where the clients were at the starts of P rounds."""

    rounds: IntArray
    """(P,): the rounds, ascending."""
    xy_m: FloatArray
    """(R, P, U, 2): NaN for replicas whose positions are not stored."""


@dataclass(frozen=True)
class RunArrays:
    """Arrays of a run with R replicas, T rounds, at most S assigned clients per round, U clients and N channels.

    What is known about every client is known after K = T rounds, or of large fleets after every k-th round.
    """

    delay_s: FloatArray
    """(R, T): duration of the round, capped at the deadline."""
    accuracy: FloatArray
    """(R, T): NaN in rounds without a test."""
    slot_client: IntArray
    """(R, T, S): assigned clients, -1 for an empty slot; the other slot arrays have the same shape."""
    slot_channel: IntArray
    download_s: FloatArray
    compute_s: FloatArray
    upload_s: FloatArray
    energy_j: FloatArray
    punctual: BoolArray
    predicted: dict[str, FloatArray] | None
    """(R, T, S) each, by the names of `NAMES`: what the policy predicted; None if it states no predictions."""
    queue: FloatArray
    """(R, K, U): after the round."""
    epsilon: FloatArray
    """(R, K, U): epsilon spent after the round."""
    available: BoolArray
    """(R, K, U): whether the client could be assigned."""
    present: BoolArray
    """(R, K, U): whether the client was there at the round's start; True where it is not known."""
    client_xy_m: FloatArray
    """(R, U, 2)"""
    channel_xy_m: FloatArray
    """(R, N, 2)"""
    clients: dict[str, FloatArray]
    """(R, U) each, by the names of `CLIENT_COLUMNS`."""
    client_every: int = 1
    """k: number of rounds from one row of `queue` to the next."""
    max_queue: FloatArray | None = None
    """(R, T): the largest queue after each round; None if it follows from `queue`."""
    positions: ClientPositions | None = None
    """Where the clients were; None if they do not move."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """R, T, U, N."""
        replicas, rounds = self.delay_s.shape
        return replicas, rounds, self.queue.shape[2], self.channel_xy_m.shape[1]


CLIENT_COLUMNS = (
    *("quota", "participation", "selection", "uploads", "epsilon", "epsilon_paper", "present_share", "energy_j"),
)


def run_arrays(files: RunFiles) -> RunArrays:
    """Build the arrays of a run folder, for the rounds that every table contains."""
    tables = files.tables
    every = files.client_rounds_every
    kept = -(-index_size(tables["client_rounds"], "round") // every)
    rounds = min(index_size(tables["rounds"], "round"), kept * every)
    kept = -(-rounds // every)
    replicas = max(index_size(tables["rounds"], "replica"), 1)
    clients = max(index_size(tables[name], "client") for name in ("clients", "client_rounds", "assignments"))
    channels = max(index_size(tables["channels"], "channel"), index_size(tables["assignments"], "channel"))
    if replicas * max(kept * clients, rounds * channels, rounds, 1) > MAX_CELLS:
        raise InputError(
            f"a report can show at most {MAX_CELLS:,} seeds x rounds x clients, "
            f"got {replicas} x {rounds} x {max(clients, channels)}"
        )
    for name, cells in (
        ("client_rounds", replicas * max(kept, 1) * max(clients, 1)),
        ("rounds", replicas * rounds),
        ("channels", replicas * channels),
    ):
        if cells > MAX_EMPTY * tables[name].num_rows + SPARE_CELLS:
            raise InputError(f"table {name} has {tables[name].num_rows:,} rows instead of {cells:,}")
    per_round = _Scatter(tables["rounds"], ("replica", "round"), (replicas, rounds))
    per_client = _Scatter(tables["clients"], ("replica", "client"), (replicas, clients))
    per_channel = _Scatter(tables["channels"], ("replica", "channel"), (replicas, channels))
    per_both = _Scatter(tables["client_rounds"], ("replica", "round", "client"), (replicas, kept, clients), every)
    slots = _Slots(tables["assignments"], replicas, rounds, clients)
    return RunArrays(
        delay_s=per_round.floats("delay_s"),
        accuracy=per_round.floats("accuracy"),
        slot_client=slots.integers("client"),
        slot_channel=slots.integers("channel"),
        download_s=slots.floats("download_s"),
        compute_s=slots.floats("compute_s"),
        upload_s=slots.floats("upload_s"),
        energy_j=slots.floats("energy_j"),
        punctual=slots.floats("punctual") == 1.0,
        predicted=_predicted(slots),
        queue=per_both.floats("queue"),
        epsilon=per_both.floats("epsilon"),
        available=per_both.floats("available") != 0.0,
        present=per_both.floats("present") != 0.0,
        client_xy_m=np.stack([per_client.floats("x_m"), per_client.floats("y_m")], axis=-1),
        channel_xy_m=np.stack([per_channel.floats("x_m"), per_channel.floats("y_m")], axis=-1),
        clients={name: per_client.floats(name) for name in CLIENT_COLUMNS},
        client_every=every,
        max_queue=per_round.floats("max_queue") if "max_queue" in tables["rounds"].column_names else None,
        positions=_positions(tables.get("positions"), replicas, rounds, clients),
    )


def _predicted(slots: "_Slots") -> dict[str, FloatArray] | None:
    """The predictions of a policy that states them."""
    predicted = {name: slots.floats(name) for name in NAMES if slots.has(name)}
    complete = len(predicted) == len(NAMES) and all(np.isfinite(values).any() for values in predicted.values())
    return predicted if complete else None


def _positions(table: pa.Table | None, replicas: int, rounds: int, clients: int) -> ClientPositions | None:
    """The positions of some rounds, which are the same for all replicas that the table has."""
    if table is None:
        return None
    stored = np.unique(column_indices(table, "round"))
    stored = stored[stored < rounds]
    size = len(stored) * clients
    if size * replicas > MAX_CELLS or size > MAX_EMPTY * table.num_rows + SPARE_CELLS:
        raise InputError(f"table positions has {table.num_rows:,} rows for {len(stored):,} rounds")
    frame = np.searchsorted(stored, column_indices(table, "round"))
    known = table.append_column("frame", pa.array(frame, pa.int64()))
    placed = _Scatter(known, ("replica", "frame", "client"), (replicas, len(stored), clients))
    return ClientPositions(stored, np.stack([placed.floats("x_m"), placed.floats("y_m")], axis=-1))


class _Scatter:
    """Places the rows of a table into arrays of a given shape, by their index columns; of every k-th round."""

    def __init__(self, table: pa.Table, keys: tuple[str, ...], shape: tuple[int, ...], every: int = 1) -> None:
        index = [column_indices(table, key) // (every if key == "round" else 1) for key in keys]
        self._kept = np.logical_and.reduce([column < size for column, size in zip(index, shape, strict=True)])
        self._at: tuple[Any, ...] = tuple(column[self._kept] for column in index)
        self._table, self._shape = table, shape

    def has(self, column: str) -> bool:
        return column in self._table.column_names

    def floats(self, column: str) -> FloatArray:
        placed = np.full(self._shape, np.nan)
        if self.has(column):
            placed[self._at] = column_floats(self._table, column)[self._kept]
        return placed

    def integers(self, column: str) -> IntArray:
        placed = np.full(self._shape, -1, np.int64)
        placed[self._at] = column_indices(self._table, column)[self._kept]
        return placed


class _Slots(_Scatter):
    """Places assignments by replica, round and slot; slots are a round's assignments in the order of channels."""

    def __init__(self, table: pa.Table, replicas: int, rounds: int, clients: int) -> None:
        keys = [column_indices(table, key) for key in ("client", "channel", "round", "replica")]
        if not _ascending(keys[:0:-1]):
            table = table.take(np.lexsort(keys))
        group = column_indices(table, "replica") * (1 + index_size(table, "round")) + column_indices(table, "round")
        start = np.flatnonzero(np.diff(group, prepend=-1))
        slot = np.arange(len(group)) - np.repeat(start, np.diff(start, append=len(group)))
        table = table.append_column("slot", pa.array(slot, pa.int64()))
        slots = int(slot.max(initial=0)) + 1
        if slots > max(clients, 1):
            raise InputError(f"table assignments has {slots:,} assignments of {clients:,} clients in one round")
        if replicas * rounds * slots > MAX_CELLS:
            raise InputError(f"table assignments has {slots:,} assignments in one of {rounds:,} rounds")
        super().__init__(table, ("replica", "round", "slot"), (replicas, rounds, slots))


def _ascending(keys: list[IntArray]) -> bool:
    """Whether rows are in strictly ascending order of their keys, the most important key first."""
    settled = np.zeros(max(len(keys[0]) - 1, 0), np.bool_)
    for key in keys:
        step = np.diff(key)
        if (step[~settled] < 0).any():
            return False
        settled |= step > 0
    return bool(settled.all())


def index_size(table: pa.Table, column: str) -> int:
    """One more than the largest index in a column."""
    return int(column_indices(table, column).max(initial=-1)) + 1
