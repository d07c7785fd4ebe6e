"""The tables of a run folder, made from a trace."""

from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedlane.network import Topology
from fedlane.records import FloatArray, IntArray, Problem
from fedlane.scenario import Scenario
from fedlane.simulation.spending import PrivacySpending
from fedlane.simulation.trace import Trace

Columns = dict[str, "NDArray[Any] | pa.Array[Any]"]


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


def run_tables(trace: Trace, world: World, quota: FloatArray, spending: PrivacySpending | None) -> dict[str, pa.Table]:
    """Make the run folder's tables, by name, from the rounds played so far.

    Args:
        trace: The trace of the run.
        world: Scenario, seeds, positions and problem of the run.
        quota: (R, U): quotas as the policy serves them, slack included.
        spending: Accounting of the uploads; None without a mechanism.
    """
    trace = trace.played()
    columns = {
        "rounds": _rounds(trace, world.seeds),
        "assignments": _assignments(trace),
        "clients": _clients(trace, world.topology, quota, spending),
        "channels": _channels(world.topology),
        "client_rounds": _client_rounds(trace, spending),
    }
    return {name: pa.table(table) for name, table in columns.items()}


def _rounds(trace: Trace, seeds: tuple[int, ...]) -> Columns:
    replica, round = _grid(*trace.delay_s.shape)
    return {
        "replica": replica,
        "seed": np.asarray(seeds)[replica],
        "round": round,
        "delay_s": trace.delay_s.ravel(),
        "clock_s": np.cumsum(trace.delay_s, axis=1).ravel(),
        "punctual": trace.punctual.sum(axis=2).ravel().astype(np.int32),
        "accuracy": pa.array(trace.accuracy.ravel(), from_pandas=True),  # NaN becomes null
        "loss": pa.array(trace.loss.ravel(), from_pandas=True),
    }


def _assignments(trace: Trace) -> Columns:
    at = replica, round, channel = np.nonzero(trace.client >= 0)
    return {
        "replica": replica.astype(np.int32),
        "round": round.astype(np.int32),
        "client": trace.client[at],
        "channel": channel.astype(np.int32),
        "download_s": trace.download_s[at],
        "compute_s": trace.compute_s[at],
        "upload_s": trace.upload_s[at],
        "delay_s": trace.total_s[at],
        "punctual": trace.punctual[at],
    }


def _clients(trace: Trace, topology: Topology, quota: FloatArray, spending: PrivacySpending | None) -> Columns:
    assigned, in_time = trace.counts()
    rounds = max(trace.rounds, 1)
    queue = trace.queue[:, -1] if trace.rounds else np.zeros(assigned.shape, np.float32)
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
        "queue": queue.ravel().astype(np.float64),
        **_epsilons(spending, assigned),
    }


def _channels(topology: Topology) -> Columns:
    replica, channel = _grid(*topology.channel_xy_m.shape[:2])
    return {
        "replica": replica,
        "channel": channel,
        "x_m": topology.channel_xy_m[..., 0].ravel(),
        "y_m": topology.channel_xy_m[..., 1].ravel(),
    }


def _client_rounds(trace: Trace, spending: PrivacySpending | None) -> Columns:
    replica, round, client = _grid(*trace.queue.shape)
    return {
        "replica": replica,
        "round": round,
        "client": client,
        "queue": trace.queue.ravel(),
        **_epsilons(spending, trace.uploads_so_far()),
        "available": trace.available.ravel(),
    }


def _grid(*sizes: int) -> list[NDArray[np.int32]]:
    """The index along every axis, for each entry of an array of that shape."""
    return [index.ravel().astype(np.int32) for index in np.indices(sizes)]


def _epsilons(spending: PrivacySpending | None, uploads: IntArray) -> Columns:
    """The epsilon columns for upload counts (R, ..., U); null without a mechanism, and formula (6) if not `paper`."""
    absent = pa.nulls(uploads.size, pa.float64())
    if spending is None:
        return {"epsilon": absent, "epsilon_paper": absent}
    by_formula = spending.mechanism.is_lower_bound
    return {
        "epsilon": pa.array(spending.epsilon(uploads).ravel()),
        "epsilon_paper": pa.array(spending.epsilon_paper(uploads).ravel()) if by_formula else absent,
    }
