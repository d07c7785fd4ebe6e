"""The tables of a run folder, made from a trace."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedlane.network import Topology
from fedlane.records import BoolArray, FloatArray, IntArray, Problem
from fedlane.scenario import Scenario
from fedlane.simulation.segments import assignment_rows
from fedlane.simulation.spending import PrivacySpending
from fedlane.simulation.table_parts import Parts, TableParts
from fedlane.simulation.trace import Trace

PART_ROWS = 250_000
"""Number of rows of a part of ``client_rounds``, or those of one round if it has more."""

Columns = dict[str, "NDArray[Any] | pa.Array[Any]"]


@dataclass(frozen=True)
class ClientTotals:
    """Sums over all rounds so far.

    Attributes:
        present_rounds: (R, U): number of rounds at whose start each client was present.
        energy_j: (R, U): energy that each client has spent, in joules; NaN if unknown, as in a real federation.
    """

    present_rounds: IntArray
    energy_j: FloatArray


class World(Protocol):
    """The setting of a run: a simulation's `Setup`, or the known facts about a real federation."""

    @property
    def scenario(self) -> Scenario:
        """The scenario, with all values resolved."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """One seed per replica."""

    @property
    def topology(self) -> Topology:
        """Positions of clients and channels."""

    @property
    def problem(self) -> Problem:
        """Sizes, deadline and quotas."""


def run_tables(
    trace: Trace,
    world: World,
    quota: FloatArray,
    spending: PrivacySpending | None,
    totals: ClientTotals | None = None,
    world_tables: Mapping[str, Parts] | None = None,
) -> Mapping[str, pa.Table]:
    """Make the run folder's tables, by name, from the rounds played so far.

    The two tables that grow with the rounds are made in parts, when they are needed, if the trace is bounded.

    Args:
        trace: The trace of the run.
        world: Scenario, seeds, positions and problem of the run.
        quota: (R, U): quotas as the policy serves them, slack included.
        spending: Accounting of the uploads; None without a mechanism.
        totals: Presence and energy of every client; None if unknown.
        world_tables: Makes the tables of worlds with movement or a map, by name.
    """
    trace = trace.played()
    known = totals is not None
    rounds = pa.table(_rounds(trace, world.seeds))
    clients = pa.table(_clients(trace, world.topology, quota, spending, totals))
    channels = pa.table(_channels(world.topology))
    bounded = trace.segments is not None
    tables: dict[str, pa.Table | Parts] = {
        "rounds": rounds,
        "assignments": partial(_assignment_parts, trace) if bounded else assignment_rows(trace.window()),
        "clients": clients,
        "channels": channels,
        "client_rounds": partial(_client_round_parts, trace, spending, known=known)
        if bounded
        else _client_rounds(trace, spending, slice(None), slice(None), known=known),
    }
    return TableParts({**tables, **(world_tables or {})})


def _rounds(trace: Trace, seeds: tuple[int, ...]) -> Columns:
    replica, round = _grid(*trace.delay_s.shape)
    largest = {} if trace.max_queue is None else {"max_queue": trace.max_queue.ravel()}
    return {
        "replica": replica,
        "seed": np.asarray(seeds)[replica],
        "round": round,
        "delay_s": trace.delay_s.ravel(),
        "clock_s": np.cumsum(trace.delay_s, axis=1).ravel(),
        "punctual": _punctual(trace).ravel().astype(np.int32),
        "accuracy": pa.array(trace.accuracy.ravel(), from_pandas=True),  # NaN becomes null
        "loss": pa.array(trace.loss.ravel(), from_pandas=True),
        **largest,
    }


def _punctual(trace: Trace) -> IntArray:
    """(R, T): number of punctual clients."""
    return trace.punctual.sum(axis=2) if trace.served is None else trace.served


def _assignment_parts(trace: Trace) -> Iterator[pa.Table]:
    """Yield the assignments, replica by replica, one segment at a time."""
    assert trace.segments is not None
    for replica in range(len(trace.client)):
        for first in range(0, trace.first, trace.segments.rounds):
            yield trace.segments.read(first, replica)
        arrays = {name: array[replica : replica + 1] for name, array in trace.window().items()}
        yield assignment_rows(arrays, replica, trace.first)


def _clients(
    trace: Trace,
    topology: Topology,
    quota: FloatArray,
    spending: PrivacySpending | None,
    totals: ClientTotals | None,
) -> Columns:
    assigned, in_time = trace.counts()
    rounds = max(trace.rounds, 1)
    replica, client = _grid(*assigned.shape)
    return {
        "replica": replica,
        "client": client,
        "x_m": topology.client_xy_m[..., 0].ravel(),
        "y_m": topology.client_xy_m[..., 1].ravel(),
        "quota": quota.ravel(),
        "participation": in_time.ravel() / rounds,
        "selection": assigned.ravel() / rounds,
        "uploads": assigned.ravel(),
        "queue": trace.last_queue().ravel().astype(np.float64),
        **_epsilons(spending, assigned),
        **_attendance(totals, in_time, quota, rounds),
    }


def _attendance(totals: ClientTotals | None, in_time: IntArray, quota: FloatArray, rounds: int) -> Columns:
    """The columns of presence and energy; null where they are not known. ``in_time`` (R, U) counts punctual rounds."""
    if totals is None:
        return {name: pa.nulls(in_time.size, pa.float64()) for name in ("present_share", "shortfall", "energy_j")}
    return {
        "present_share": totals.present_rounds.ravel() / rounds,
        "shortfall": shortfalls(quota, in_time, totals).ravel(),
        "energy_j": pa.array(totals.energy_j.ravel(), from_pandas=True),  # NaN becomes null
    }


def shortfalls(quota: FloatArray, in_time: IntArray, totals: ClientTotals) -> FloatArray:
    """(R, U): [quota - punctual rounds / present rounds]^+; 0 for a client that never was there.

    Args:
        quota: (R, U): share of its present rounds in which each client must be punctual.
        in_time: (R, U): number of rounds in which it was.
        totals: Number of rounds in which it was present.
    """
    share = in_time / np.maximum(totals.present_rounds, 1)
    return np.where(totals.present_rounds > 0, np.maximum(quota - share, 0.0), 0.0)


def _channels(topology: Topology) -> Columns:
    replica, channel = _grid(*topology.channel_xy_m.shape[:2])
    return {
        "replica": replica,
        "channel": channel,
        "x_m": topology.channel_xy_m[..., 0].ravel(),
        "y_m": topology.channel_xy_m[..., 1].ravel(),
    }


def _client_round_parts(trace: Trace, spending: PrivacySpending | None, *, known: bool) -> Iterator[pa.Table]:
    """Yield the rows of clients and rounds, replica by replica, some rounds at a time."""
    replicas, kept, clients = trace.queue.shape
    step = max(1, PART_ROWS // clients)
    for replica in range(replicas):
        for start in range(0, kept, step):
            yield _client_rounds(trace, spending, slice(replica, replica + 1), slice(start, start + step), known=known)


def _client_rounds(
    trace: Trace, spending: PrivacySpending | None, replicas: slice, kept: slice, *, known: bool
) -> pa.Table:
    """The rows of some replicas and some of the rounds whose queues were kept; ``known``: whether presence is."""
    queue = trace.queue[replicas, kept]
    replica, round, client = _grid(*queue.shape)
    uploads = trace.uploads_so_far()[replicas, kept]
    return pa.table(
        {
            "replica": replica + np.int32(replicas.start or 0),
            "round": (round + np.int32(kept.start or 0)) * np.int32(trace.every),
            "client": client,
            "queue": queue.ravel(),
            **_epsilons(spending, uploads, replicas),
            "available": trace.available[replicas, kept].ravel(),
            "present": _present(trace, replicas, kept) if known else pa.nulls(queue.size, pa.bool_()),
        }
    )


def _present(trace: Trace, replicas: slice, kept: slice) -> BoolArray:
    """Who was there in some rounds of some replicas; everybody if the trace does not say."""
    if trace.present is None:
        return np.ones(trace.queue[replicas, kept].size, np.bool_)
    return trace.present[replicas, kept].ravel()


def _grid(*sizes: int) -> list[NDArray[np.int32]]:
    """The index along every axis, for each entry of an array of that shape."""
    return [index.ravel().astype(np.int32) for index in np.indices(sizes)]


def _epsilons(spending: PrivacySpending | None, uploads: IntArray, replicas: slice = slice(None)) -> Columns:
    """The epsilon columns for upload counts (R, ..., U); null without a mechanism, and formula (6) if not `paper`."""
    absent = pa.nulls(uploads.size, pa.float64())
    if spending is None:
        return {"epsilon": absent, "epsilon_paper": absent}
    by_formula = spending.mechanism.is_lower_bound
    return {
        "epsilon": pa.array(spending.epsilon(uploads, replicas).ravel()),
        "epsilon_paper": pa.array(spending.epsilon_paper(uploads, replicas).ravel()) if by_formula else absent,
    }
