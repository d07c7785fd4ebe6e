"""The trace of a run: what happened in every round, as arrays.

A trace is *whole* if it holds every round. The trace of a long run or of a large fleet is *bounded*: assignments are
moved to files, segment by segment, and the queues of every k-th round are kept.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.delay_predictions import NAMES
from fedlane.files import fitting_array
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.rounds import Outcome
from fedlane.scheduling.policy import with_clients
from fedlane.simulation.segments import CHANNEL_ARRAYS, Segments, SegmentShape
from fedlane.simulation.trace_checks import check_trace
from fedlane.simulation.trace_shape import Totals, TraceShape, channel_arrays
from fedlane.simulation.traced_predictions import check_predictions, covered_uploads, prediction_arrays
from fedlane.validate import InputError

KEPT = ("queue", "available", "uploads", "present")
"""The arrays of a trace that have a client axis, and of which a bounded trace keeps every k-th round."""

OPTIONAL = ("punctual", "energy_j", "present", *NAMES, "covered")
"""The arrays that a checkpoint may lack, because it is older than they are."""


@dataclass
class Trace:
    """Arrays for R replicas, T rounds, U clients and N channels. Rows of rounds not yet played are unset.

    A whole trace has S = K = T. A bounded trace has the channels' arrays of the last S rounds or fewer, from round
    ``first`` on, and the clients' arrays of the K rounds 0, k, 2k, and so on.

    Attributes:
        client: (R, S, N): the client on each channel, -1 for none.
        download_s: (R, S, N): download time in seconds; NaN on an unused channel.
        compute_s: (R, S, N): computation time in seconds; NaN on an unused channel.
        upload_s: (R, S, N): upload time in seconds; NaN on an unused channel. All three parts are NaN for a client that
            left during the round, and a part is NaN for a transfer that never ended.
        punctual: (R, S, N): whether the client on the channel met the deadline.
        delay_s: (R, T): delay of the round in seconds, capped at the deadline.
        queue: (R, K, U): queues after the round.
        available: (R, K, U): which clients could be chosen in the round.
        accuracy: (R, T): accuracy of the global model on the test set after the round; NaN where not evaluated, and
            where numbers are learned.
        loss: (R, T): loss on the test set; NaN where not evaluated.
        rounds: Number of rounds played so far.
        every: k, the number of rounds from one row of ``queue`` to the next.
        first: The round of the first row of ``client``.
        max_queue: (R, T): the largest queue after each round; None if ``queue`` has every round and is not very large.
        served: (R, T): number of punctual clients of each round; None in a whole trace.
        uploads: (R, K, U): each client's uploads up to and including the round; None in a whole trace.
        totals: Sums over all rounds; None in a whole trace.
        segments: The rounds before ``first``; None in a whole trace.
        energy_j: (R, S, N): energy that the client on the channel spent, in joules; NaN on an unused channel. None in a
            real federation.
        present: (R, K, U): which clients were there at the round's start; None where every client always is.
        predicted_low_s: (R, S, N): lower end of the 90% interval that the policy predicted for the upload, as float32;
            NaN on an unused channel. None if the policy states no predictions, like the next three.
        predicted_median_s: (R, S, N): the median that it predicted.
        predicted_high_s: (R, S, N): the upper end; the deadline if the upload may as well be late.
        covered: (R, T): number of the round's uploads in their intervals.
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
    every: int = 1
    first: int = 0
    max_queue: FloatArray | None = None
    served: IntArray | None = None
    uploads: IntArray | None = None
    totals: Totals | None = None
    segments: Segments | None = None
    energy_j: FloatArray | None = None
    present: BoolArray | None = None
    predicted_low_s: FloatArray | None = None
    predicted_median_s: FloatArray | None = None
    predicted_high_s: FloatArray | None = None
    covered: IntArray | None = None

    @property
    def evaluated(self) -> BoolArray:
        """(T,): whether the global models were tested after the round; where numbers are learned, only losses exist."""
        return np.asarray(~(np.isnan(self.accuracy) & np.isnan(self.loss)).any(axis=0))

    @property
    def learns_numbers(self) -> bool:
        """Whether numbers are learned: the models were tested, and have a loss but no accuracy."""
        return bool(self.evaluated.any()) and bool(np.isnan(self.accuracy).all())

    @classmethod
    def empty(cls, replicas: int, rounds: int, clients: int, channels: int, every: int = 1) -> "Trace":
        """Allocate a whole trace for ``rounds`` rounds, none of them played; queues of every k-th round."""
        kept = -(-rounds // every)
        return cls(
            **channel_arrays(replicas, rounds, channels),  # type: ignore[arg-type]
            delay_s=np.zeros((replicas, rounds)),
            queue=np.zeros((replicas, kept, clients), np.float32),
            available=np.ones((replicas, kept, clients), np.bool_),
            accuracy=np.full((replicas, rounds), np.nan),
            loss=np.full((replicas, rounds), np.nan),
            every=every,
        )

    @classmethod
    def fitting(cls, replicas: int, rounds: int, clients: int, channels: int) -> "Trace":
        """Allocate a whole trace for a small run, and a bounded one for a long run or a large fleet."""
        shape = TraceShape.of(replicas, rounds, clients, channels)
        if not shape.bounded:
            return cls.empty(replicas, rounds, clients, channels)
        trace = cls.empty(replicas, rounds, clients, 0, shape.every)
        trace._new_window(channel_arrays(replicas, shape.window, channels))
        trace.max_queue = np.zeros((replicas, rounds), np.float32) if shape.largest else None
        trace.served = np.zeros((replicas, rounds), np.int32)
        trace.uploads = np.zeros(trace.queue.shape, np.int32)
        trace.totals = Totals.zero(replicas, clients)
        trace.segments = Segments(SegmentShape(shape.window, replicas, clients, channels))
        return trace

    def with_energy(self) -> "Trace":
        """Return this trace, still without rounds, with room for energies."""
        self.energy_j = np.full(self.client.shape, np.nan)
        return self

    def with_presence(self) -> "Trace":
        """Return this trace, still without rounds, with room for who is there."""
        self.present = np.ones_like(self.available)
        return self

    def with_predictions(self) -> "Trace":
        """Return this trace, still without rounds, with room for predictions."""
        self._new_window(prediction_arrays(*self.client.shape))
        self.covered = np.zeros(self.delay_s.shape, np.int32)
        if self.segments is not None:
            self.segments.shape = replace(self.segments.shape, predicted=True)
        return self

    def grow(self, clients: int) -> None:
        """Make room for clients that join; in the rounds so far they had no queue, and were not present."""
        empty = {"queue": np.float32(0.0), "available": np.False_, "present": np.False_}
        for name, value in empty.items():
            if (old := getattr(self, name)) is not None:
                setattr(self, name, with_clients(np.full((*old.shape[:2], clients), value), old, axis=2))

    def _new_window(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name, array in arrays.items():
            setattr(self, name, array)

    def _next_row(self) -> int:
        """Return the row of the next round in the channels' arrays; full arrays are first moved to a file.

        The arrays are replaced rather than cleared, because a result may still refer to them.
        """
        if self.segments is not None and self.rounds - self.first == self.client.shape[1]:
            self.segments.write(self.first, self.window())
            self._new_window(channel_arrays(*self.client.shape))
            if self.energy_j is not None:
                self.with_energy()
            if self.covered is not None:
                self._new_window(prediction_arrays(*self.client.shape))
            self.first = self.rounds
        return self.rounds - self.first

    def window(self) -> dict[str, NDArray[Any]]:
        """The arrays that have a channel axis, by name."""
        return {name: array for name in CHANNEL_ARRAYS if (array := getattr(self, name)) is not None}

    def append(self, outcome: Outcome, deadline_s: float) -> None:
        """Add one round."""
        stated = outcome.orders.predicted is not None
        if stated and self.covered is None and (self.segments is None or not self.rounds):
            self.with_predictions()  # in a federation perhaps late, after rounds that a crash cut off
        t, row = self.rounds, self._next_row()
        channel, arrivals = outcome.orders.channel, outcome.arrivals
        replica, client = np.nonzero(channel >= 0)
        at = replica, row, channel[replica, client]
        self.client[at] = client
        self.download_s[at] = arrivals.delays.download_s[replica, client]
        self.compute_s[at] = arrivals.delays.compute_s[replica, client]
        self.upload_s[at] = arrivals.delays.upload_s[replica, client]
        self.punctual[at] = outcome.punctual[replica, client]
        if self.energy_j is not None:
            self.energy_j[at] = arrivals.energy_j[replica, client]
        if self.covered is not None and outcome.orders.predicted is not None:
            for name, values in outcome.orders.predicted.arrays().items():
                getattr(self, name)[at] = values[replica, client]
            self.covered[:, t] = covered_uploads(self.window(), deadline_s, slice(row, row + 1))[:, 0]
        self.delay_s[:, t] = outcome.delay_s
        self._add_clients(row, outcome.queue, outcome.available, outcome.present)
        self.rounds = t + 1

    def _add_clients(
        self, row: int, queue: NDArray[Any], available: BoolArray, present: BoolArray | None = None
    ) -> None:
        """Add what a round says about its clients; ``row`` is its row in the channels' arrays."""
        kept, between = divmod(self.rounds, self.every)
        if not between:
            self.queue[:, kept], self.available[:, kept] = queue, available
            if self.present is not None and present is not None:
                self.present[:, kept] = present
        if self.max_queue is not None:
            self.max_queue[:, self.rounds] = queue.max(axis=1, initial=0.0)
        if self.totals is None or self.served is None or self.uploads is None:
            return
        self.totals.queue[:] = queue
        self.totals.add(self.client[:, row], self.punctual[:, row])
        self.served[:, self.rounds] = self.punctual[:, row].sum(axis=1)
        if not between:
            self.uploads[:, kept] = self.totals.assigned

    def played(self) -> "Trace":
        """Return a view of the rounds played so far."""
        cut = {name: array[:, : self._filled(name)] for name, array in self.arrays().items()}
        totals = self.totals and Totals(**{name: array.copy() for name, array in vars(self.totals).items()})
        rest = {"rounds": self.rounds, "every": self.every, "first": self.first, "segments": self.segments}
        return Trace(**cut, **rest, totals=totals)  # type: ignore[arg-type]

    def _filled(self, name: str) -> int:
        """Return the number of rows of an array that are in use."""
        if name in KEPT:
            return -(-self.rounds // self.every)
        return self.rounds - self.first if name in CHANNEL_ARRAYS else self.rounds

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every array by its field's name."""
        return {f.name: array for f in fields(self) if isinstance(array := getattr(self, f.name), np.ndarray)}

    def saved(self) -> dict[str, NDArray[Any]]:
        """The rounds played so far as a checkpoint's arrays, named ``trace.FIELD``; segments are not among them."""
        arrays = {f"trace.{name}": array for name, array in self.played().arrays().items()}
        if self.totals is not None:
            arrays["trace.shape"] = np.array([self.client.shape[1], self.every, self.first])
            arrays |= {f"total.{name}": array for name, array in vars(self.totals).items()}
        return arrays

    def restore(self, saved: Mapping[str, NDArray[Any]], deadline_s: float) -> None:
        """Restore the rounds of a checkpoint, which may be older than bounded traces or the storage of `punctual`.

        Raises:
            InputError: The arrays are not those of a run of this size.
        """
        shape = np.shape(saved["trace.delay_s"])[1:2]
        if not shape or shape[0] > self.delay_s.shape[1]:
            raise InputError(f"trace.delay_s must have at most {self.delay_s.shape[1]} rounds")
        rounds = shape[0]
        if f"trace.{NAMES[0]}" in saved:
            self.with_predictions()
        if self.totals is not None and "trace.shape" not in saved:
            self._restore_whole(saved, rounds, deadline_s)
            return
        self.rounds = rounds
        if self.totals is not None:
            self._restore_totals(saved)
        for name, array in self.played().arrays().items():
            if name not in OPTIONAL or f"trace.{name}" in saved:
                array[:] = fitting_array(saved, f"trace.{name}", array)
        check_trace(self.played())
        if "trace.punctual" not in saved:
            self.punctual[:] = self.total_s <= deadline_s
        check_predictions(self.played(), deadline_s)

    def _restore_totals(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Restore the shape and the totals of a bounded trace."""
        window, rounds = self.client.shape[1], self.rounds
        stored = fitting_array(saved, "trace.shape", np.zeros(3, np.int64)).tolist()
        self.first = max(0, (rounds - 1) // window * window)
        if stored != [window, self.every, self.first]:
            raise InputError(f"trace.shape must be {[window, self.every, self.first]}, got {stored}")
        for name, array in vars(self.totals).items():
            array[:] = fitting_array(saved, f"total.{name}", array)

    def _restore_whole(self, saved: Mapping[str, NDArray[Any]], rounds: int, deadline_s: float) -> None:
        """Restore a checkpoint of a whole trace in this bounded one, round by round."""
        replicas, _, clients = self.queue.shape
        whole = Trace.empty(replicas, rounds, clients, self.client.shape[2]).with_energy().with_presence()
        whole.restore(saved, deadline_s)
        for t in range(rounds):
            row = self._next_row()
            for name, array in whole.window().items():
                getattr(self, name)[:, row] = array[:, t]
            for name in ("delay_s", "accuracy", "loss", *["covered"] * (self.covered is not None)):
                getattr(self, name)[:, t] = getattr(whole, name)[:, t]
            present = None if whole.present is None else whole.present[:, t]
            self._add_clients(row, whole.queue[:, t], whole.available[:, t], present)
            self.rounds = t + 1

    @property
    def total_s(self) -> FloatArray:
        """(R, S, N): each assigned client's total delay in seconds."""
        return self.download_s + self.compute_s + self.upload_s

    def assigned_rounds(self) -> Iterator[BoolArray]:
        """Yield which clients were assigned (R, U), for every round so far."""
        replicas, _, clients = self.queue.shape
        for block in self.client_blocks():
            for t in range(block[0].shape[1]):
                assigned = np.zeros((replicas, clients), np.bool_)
                replica, channel = np.nonzero(block[0][:, t] >= 0)
                assigned[replica, block[0][replica, t, channel]] = True
                yield assigned

    def client_blocks(self) -> Iterator[tuple[IntArray, BoolArray]]:
        """Yield ``client`` and ``punctual`` of all rounds so far, in blocks of successive rounds."""
        if self.segments is not None:
            for first in range(0, self.first, self.segments.rounds):
                yield self.segments.clients(first)
        yield self.client[:, : self.rounds - self.first], self.punctual[:, : self.rounds - self.first]

    def uploads_so_far(self) -> IntArray:
        """(R, K, U): each client's uploads up to and including a round, late ones included."""
        if self.uploads is not None:
            return self.uploads
        uploads = np.zeros(self.queue.shape, np.int64)
        replica, round, channel = np.nonzero(self.client >= 0)
        uploads[replica, round, self.client[replica, round, channel]] = 1
        return np.cumsum(uploads, axis=1)

    def counts(self) -> tuple[IntArray, IntArray]:
        """(R, U) each: the number of rounds in which each client was assigned, and in which it was punctual."""
        if self.totals is not None:
            return self.totals.assigned, self.totals.punctual
        return self._rounds_by_client(self.client >= 0), self._rounds_by_client(self.punctual)

    def last_queue(self) -> FloatArray:
        """(R, U): the queues after the last round."""
        if self.totals is not None:
            return self.totals.queue
        replicas, _, clients = self.queue.shape
        return self.queue[:, self.rounds - 1] if self.rounds else np.zeros((replicas, clients), np.float32)

    def largest_queue(self) -> FloatArray:
        """(R,): the largest queue of any client after any round."""
        if self.max_queue is not None:
            return self.max_queue.max(axis=1, initial=0.0).astype(np.float64)
        return self.queue.max(axis=(1, 2), initial=0.0).astype(np.float64)

    def _rounds_by_client(self, counted: BoolArray) -> IntArray:
        """(R, U): how often each client is on a channel that is ``counted`` (R, T, N)."""
        replicas, _, clients = self.queue.shape
        replica, round, channel = np.nonzero(counted)
        index = replica * clients + self.client[replica, round, channel]
        return np.bincount(index, minlength=replicas * clients).reshape(replicas, clients)
