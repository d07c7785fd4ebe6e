"""What happened, round by round, as arrays; and the tables made from it."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from fedlane.network import Topology
from fedlane.records import BoolArray, Feedback, FloatArray, IntArray, Problem
from fedlane.scenario import Scenario
from fedlane.simulation.round import round_delay_s
from fedlane.simulation.spending import PrivacySpending


@dataclass
class Trace:
    """R replicas, T rounds, U clients, N channels; rows of rounds not yet played are unset."""

    client: IntArray
    """(R, T, N): who used the channel, -1 for nobody."""
    download_s: FloatArray
    """(R, T, N); NaN where nobody."""
    compute_s: FloatArray
    upload_s: FloatArray
    delay_s: FloatArray
    """(R, T): the round's delay, capped at the deadline."""
    queue: FloatArray
    """(R, T, U): after the round."""
    available: BoolArray
    """(R, T, U): before the round."""
    accuracy: FloatArray
    """(R, T): of the global model on the test set after the round; NaN where not evaluated."""
    loss: FloatArray
    rounds: int = 0
    """Rounds played so far."""

    @classmethod
    def empty(cls, replicas: int, rounds: int, clients: int, channels: int) -> "Trace":
        return cls(
            client=np.full((replicas, rounds, channels), -1, np.int32),
            download_s=np.full((replicas, rounds, channels), np.nan),
            compute_s=np.full((replicas, rounds, channels), np.nan),
            upload_s=np.full((replicas, rounds, channels), np.nan),
            delay_s=np.zeros((replicas, rounds)),
            queue=np.zeros((replicas, rounds, clients), np.float32),
            available=np.ones((replicas, rounds, clients), np.bool_),
            accuracy=np.full((replicas, rounds), np.nan),
            loss=np.full((replicas, rounds), np.nan),
        )

    def append(self, feedback: Feedback, queue: FloatArray, available: BoolArray, deadline_s: float) -> None:
        """Add one round."""
        t = self.rounds
        replica, client = np.nonzero(feedback.assignment >= 0)
        at = replica, t, feedback.assignment[replica, client]
        self.client[at] = client
        self.download_s[at] = feedback.delays.download_s[replica, client]
        self.compute_s[at] = feedback.delays.compute_s[replica, client]
        self.upload_s[at] = feedback.delays.upload_s[replica, client]
        self.delay_s[:, t] = round_delay_s(feedback, deadline_s)
        self.queue[:, t] = queue
        self.available[:, t] = available
        self.rounds = t + 1

    def played(self) -> "Trace":
        """The rounds played so far."""
        return Trace(**{name: array[:, : self.rounds] for name, array in self.arrays().items()}, rounds=self.rounds)

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Every array by its field's name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "rounds"}

    @property
    def total_s(self) -> FloatArray:
        """(R, T, N): each assigned client's whole delay."""
        return self.download_s + self.compute_s + self.upload_s

    def total_s_at(self, round: int) -> FloatArray:
        """(R, N): the same for one round."""
        return self.download_s[:, round] + self.compute_s[:, round] + self.upload_s[:, round]

    def assigned_at(self, round: int) -> BoolArray:
        """(R, U): who was assigned in a round."""
        assigned = np.zeros(self.queue[:, round].shape, np.bool_)
        replica, channel = np.nonzero(self.client[:, round] >= 0)
        assigned[replica, self.client[replica, round, channel]] = True
        return assigned

    def uploads_so_far(self) -> IntArray:
        """(R, T, U): each client's uploads up to and including a round, late ones too."""
        made = np.zeros(self.queue.shape, np.int64)
        replica, round, channel = np.nonzero(self.client >= 0)
        made[replica, round, self.client[replica, round, channel]] = 1
        return np.cumsum(made, axis=1)

    def counts(self, deadline_s: float) -> tuple[IntArray, IntArray]:
        """Rounds in which each client was assigned, and punctual; each (R, U)."""
        replicas, _, clients = self.queue.shape
        replica, round, channel = np.nonzero(self.client >= 0)
        index = replica * clients + self.client[replica, round, channel]
        punctual = self.total_s[replica, round, channel] <= deadline_s
        size = replicas * clients
        assigned = np.bincount(index, minlength=size).reshape(replicas, clients)
        in_time = np.bincount(index[punctual], minlength=size).reshape(replicas, clients)
        return assigned, in_time


class World(Protocol):
    """What was played in: of a simulation its `Setup`, of a real federation what is known of it."""

    @property
    def scenario(self) -> Scenario: ...
    @property
    def seeds(self) -> tuple[int, ...]: ...
    @property
    def topology(self) -> Topology: ...
    @property
    def problem(self) -> Problem: ...


def tables(trace: Trace, setup: World, quota: FloatArray, spending: PrivacySpending | None) -> dict[str, pa.Table]:
    """The run folder's tables by name, from the rounds played so far; ``quota`` (R, U) as the policy served it."""
    trace = trace.played()
    deadline_s = setup.problem.deadline_s
    replicas, rounds, clients = trace.queue.shape
    channels = setup.problem.channels
    punctual = trace.total_s <= deadline_s
    replica, round, channel = np.nonzero(trace.client >= 0)
    assigned, in_time = trace.counts(deadline_s)
    played = max(rounds, 1)
    seeds = np.asarray(setup.seeds)
    last_queue = trace.queue[:, -1] if rounds else np.zeros((replicas, clients), np.float32)

    def grid(*sizes: int) -> list[np.ndarray]:
        return [index.ravel().astype(np.int32) for index in np.indices(sizes)]

    def spent(epsilon: "Callable[[PrivacySpending], FloatArray]", count: int) -> "pa.Array[Any]":
        return pa.nulls(count, pa.float64()) if spending is None else pa.array(epsilon(spending).ravel())

    r, t = grid(replicas, rounds)
    rounds_table = {
        "replica": r,
        "seed": seeds[r],
        "round": t,
        "delay_s": trace.delay_s.ravel(),
        "clock_s": np.cumsum(trace.delay_s, axis=1).ravel(),
        "punctual": punctual.sum(axis=2).ravel().astype(np.int32),
        "accuracy": pa.array(trace.accuracy.ravel(), from_pandas=True),  # NaN becomes null
        "loss": pa.array(trace.loss.ravel(), from_pandas=True),
    }
    at = replica, round, channel
    assignments = {
        "replica": replica.astype(np.int32),
        "round": round.astype(np.int32),
        "client": trace.client[at],
        "channel": channel.astype(np.int32),
        "download_s": trace.download_s[at],
        "compute_s": trace.compute_s[at],
        "upload_s": trace.upload_s[at],
        "delay_s": trace.total_s[at],
        "punctual": punctual[at],
    }
    r, c = grid(replicas, clients)
    clients_table = {
        "replica": r,
        "client": c,
        "x_m": setup.topology.client_xy_m[..., 0].ravel(),
        "y_m": setup.topology.client_xy_m[..., 1].ravel(),
        "quota": quota.ravel(),
        "participation": in_time.ravel() / played,
        "selection": assigned.ravel() / played,
        "uploads": assigned.ravel(),
        "queue": last_queue.ravel().astype(np.float64),
        "epsilon": spent(lambda known: known.epsilon(assigned), len(r)),
        "epsilon_paper": spent(lambda known: known.epsilon_paper(assigned), len(r)),
    }
    r, c = grid(replicas, channels)
    channels_table = {
        "replica": r,
        "channel": c,
        "x_m": setup.topology.channel_xy_m[..., 0].ravel(),
        "y_m": setup.topology.channel_xy_m[..., 1].ravel(),
    }
    r, t, c = grid(replicas, rounds, clients)
    client_rounds = {
        "replica": r,
        "round": t,
        "client": c,
        "queue": trace.queue.ravel(),
        "epsilon": spent(lambda known: known.epsilon(trace.uploads_so_far()), len(r)),
        "epsilon_paper": spent(lambda known: known.epsilon_paper(trace.uploads_so_far()), len(r)),
        "available": trace.available.ravel(),
    }
    columns = {
        "rounds": rounds_table,
        "assignments": assignments,
        "clients": clients_table,
        "channels": channels_table,
        "client_rounds": client_rounds,
    }
    return {name: pa.table(table) for name, table in columns.items()}
