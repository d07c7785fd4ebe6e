"""The trace of a run: what happened in every round, as arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.files import fitting_array
from fedlane.records import BoolArray, Feedback, FloatArray, IntArray
from fedlane.simulation.round import round_delay_s
from fedlane.validate import InputError


@dataclass
class Trace:
    """Arrays for R replicas, T rounds, U clients and N channels. Rows of rounds not yet played are unset.

    Attributes:
        client: (R, T, N): the client on each channel, -1 for none.
        download_s: (R, T, N): download time in seconds; NaN on an unused channel.
        compute_s: (R, T, N): computation time in seconds; NaN on an unused channel.
        upload_s: (R, T, N): upload time in seconds; NaN on an unused channel.
        punctual: (R, T, N): whether the client on the channel met the deadline.
        delay_s: (R, T): delay of the round in seconds, capped at the deadline.
        queue: (R, T, U): queues after the round.
        available: (R, T, U): which clients could be chosen in the round.
        accuracy: (R, T): accuracy of the global model on the test set after the round; NaN where not evaluated.
        loss: (R, T): loss on the test set; NaN where not evaluated.
        rounds: Number of rounds played so far.
    """

    client: IntArray
    download_s: FloatArray
    compute_s: FloatArray
    upload_s: FloatArray
    punctual: BoolArray
    delay_s: FloatArray
    queue: FloatArray
    available: BoolArray
    accuracy: FloatArray
    loss: FloatArray
    rounds: int = 0

    @classmethod
    def empty(cls, replicas: int, rounds: int, clients: int, channels: int) -> "Trace":
        """Allocate a trace for ``rounds`` rounds, none of them played."""
        return cls(
            client=np.full((replicas, rounds, channels), -1, np.int32),
            download_s=np.full((replicas, rounds, channels), np.nan),
            compute_s=np.full((replicas, rounds, channels), np.nan),
            upload_s=np.full((replicas, rounds, channels), np.nan),
            punctual=np.zeros((replicas, rounds, channels), np.bool_),
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
        self.punctual[at] = feedback.punctual[replica, client]
        self.delay_s[:, t] = round_delay_s(feedback, deadline_s)
        self.queue[:, t] = queue
        self.available[:, t] = available
        self.rounds = t + 1

    def played(self) -> "Trace":
        """Return a view of the rounds played so far."""
        return Trace(**{name: array[:, : self.rounds] for name, array in self.arrays().items()}, rounds=self.rounds)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every array by its field's name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "rounds"}

    def saved(self) -> dict[str, NDArray[Any]]:
        """The rounds played so far as a checkpoint's arrays, named ``trace.FIELD``."""
        return {f"trace.{name}": array for name, array in self.played().arrays().items()}

    def restore(self, saved: Mapping[str, NDArray[Any]], deadline_s: float) -> None:
        """Restore the rounds of a checkpoint, which may be older than the storage of `punctual`.

        Raises:
            InputError: The arrays are not those of a run of this size.
        """
        rounds = np.shape(saved["trace.delay_s"])[1:2]
        if not rounds or rounds[0] > self.delay_s.shape[1]:
            raise InputError(f"trace.delay_s must have at most {self.delay_s.shape[1]} rounds")
        self.rounds = rounds[0]
        for name, array in self.played().arrays().items():
            if name != "punctual" or "trace.punctual" in saved:
                array[:] = fitting_array(saved, f"trace.{name}", array)
        _check(self.played())
        if "trace.punctual" not in saved:
            self.punctual[:] = self.total_s <= deadline_s

    @property
    def total_s(self) -> FloatArray:
        """(R, T, N): each assigned client's total delay in seconds."""
        return self.download_s + self.compute_s + self.upload_s

    def assigned_at(self, round: int) -> BoolArray:
        """(R, U): which clients were assigned in a round."""
        assigned = np.zeros(self.queue[:, round].shape, np.bool_)
        replica, channel = np.nonzero(self.client[:, round] >= 0)
        assigned[replica, self.client[replica, round, channel]] = True
        return assigned

    def uploads_so_far(self) -> IntArray:
        """(R, T, U): each client's uploads up to and including a round, late ones included."""
        uploads = np.zeros(self.queue.shape, np.int64)
        replica, round, channel = np.nonzero(self.client >= 0)
        uploads[replica, round, self.client[replica, round, channel]] = 1
        return np.cumsum(uploads, axis=1)

    def counts(self) -> tuple[IntArray, IntArray]:
        """(R, U) each: the number of rounds in which each client was assigned, and in which it was punctual."""
        return self._rounds_by_client(self.client >= 0), self._rounds_by_client(self.punctual)

    def _rounds_by_client(self, counted: BoolArray) -> IntArray:
        """(R, U): how often each client is on a channel that is ``counted`` (R, T, N)."""
        replicas, _, clients = self.queue.shape
        replica, round, channel = np.nonzero(counted)
        index = replica * clients + self.client[replica, round, channel]
        return np.bincount(index, minlength=replicas * clients).reshape(replicas, clients)


def _check(trace: Trace) -> None:
    """Raise `InputError` unless the values of a trace from a file can be those of a run."""
    if trace.client.min(initial=-1) < -1 or trace.client.max(initial=-1) >= trace.queue.shape[2]:
        raise InputError("trace.client names a client that does not exist")
    sorted_clients = np.sort(trace.client, axis=2)
    if np.any((np.diff(sorted_clients, axis=2) == 0) & (sorted_clients[:, :, 1:] >= 0)):
        raise InputError("trace.client gives two channels to one client in the same round")
    if np.any(trace.punctual & (trace.client < 0)):
        raise InputError("trace.punctual is true on a channel without a client")
    for name in ("delay_s", "queue"):
        values = getattr(trace, name)
        if not np.all(np.isfinite(values) & (values >= 0)):
            raise InputError(f"trace.{name} must be finite and at least 0")
    for name in ("download_s", "compute_s", "upload_s"):
        if np.any(getattr(trace, name) < 0):
            raise InputError(f"trace.{name} must be at least 0")
    if np.isinf(trace.accuracy).any():
        raise InputError("trace.accuracy must be finite")
