"""One round after another: who is ordered to train on which channel, what it costs, and what came of it.

`Rounds` owns what changes from round to round: the clock, the queues, the charged uploads and the policy's state. The
world is separate: a simulated network or a real federation. A driver asks the world which clients are present, gives
it the orders, and ends the round with what arrived:

    orders = rounds.decide(world.present(rounds))
    rounds.start(orders)
    outcome = rounds.settle(world.attempt(rounds, orders))

Shapes: R replicas, U clients, N channels; R = 1 in a real federation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedlane.delay_predictions import PredictedDelays
from fedlane.files import fitting_array
from fedlane.records import (
    BoolArray,
    Context,
    Delays,
    Feedback,
    FloatArray,
    IntArray,
    Problem,
    State,
)
from fedlane.rng import RoundStreams
from fedlane.scheduling.policy import BatchPolicy, Choice, updated_queues, with_clients
from fedlane.validate import InputError


class PolicyError(AssertionError):
    """A policy breaks its contract; the message names the rule and where it was broken."""


@dataclass(frozen=True)
class Orders:
    """Which clients train in a round, and on which channels.

    Attributes:
        channel: (R, U): each client's channel; -1 for no order.
        predicted: What the policy expects of these uploads; None if it states no predictions.
    """

    channel: IntArray
    predicted: PredictedDelays | None = None

    @property
    def given(self) -> BoolArray:
        """(R, U): which clients have an order."""
        return np.asarray(self.channel >= 0)


@dataclass(frozen=True)
class Arrivals:
    """What the world says about the orders of a round.

    Attributes:
        delays: The parts of each delay (R, U), counted from the order; NaN without an order and where unknown, as for a
            client that left, a transfer that never ended, and an update that a server did not get.
        usable: (R, U): False for an upload that may not enter the model even if it is on time: the client left, or a
            server refused its update.
        energy_j: (R, U): energy that each client spent until the deadline, in joules; 0 without an order, NaN if
            unknown.
    """

    delays: Delays
    usable: BoolArray
    energy_j: FloatArray

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "Arrivals":
        """Return the arrivals of a round in which nothing arrived."""
        nan = np.full(shape, np.nan)
        return cls(Delays(nan, nan, nan), np.zeros(shape, np.bool_), np.zeros(shape))


@dataclass(frozen=True)
class Outcome:
    """A round that has ended: the one record that training, tables, displays, trackers and the server's state read.

    Attributes:
        round: Index of the round.
        start_s: (R,): time at which it began, in seconds.
        delay_s: (R,): how long it took, in seconds.
        orders: Its orders.
        arrivals: What the world said about them. A policy sees only `Feedback.observed`.
        punctual: (R, U): whether a client had an order and its usable upload arrived by the deadline.
        present: (R, U): which clients were present at the start.
        available: (R, U): which of them could be chosen.
        queue: (R, U): queues after the round.
        uploads: (R, U): uploads charged so far.
    """

    round: int
    start_s: FloatArray
    delay_s: FloatArray
    orders: Orders
    arrivals: Arrivals
    punctual: BoolArray
    present: BoolArray
    available: BoolArray
    queue: FloatArray
    uploads: IntArray


class World(Protocol):
    """Where orders are carried out: a simulated network, or the nodes of a real federation."""

    def present(self, rounds: "Rounds") -> BoolArray:
        """Return which clients are present (R, U) now."""

    def attempt(self, rounds: "Rounds", orders: Orders) -> Arrivals:
        """Carry the orders out and return what came of them."""


class Rounds:
    """The rounds of R replicas.

    Args:
        policy: The policy.
        problem: The problem to be scheduled.
        seeds: One seed per replica, for the policy's random numbers.
        max_uploads: (U,) or (R, U): uploads that each client's budget allows. By default, nothing is limited here, as
            in a real federation, in which every client counts for itself.
        wait_s: How long a round takes in which clients are absent and nobody has an order: the deadline in a
            simulation, because a clock that stood still would never bring the clients back.
        charge: Called with the round and its orders before any of them is sent. It must record them durably, so that a
            crash can hide no upload.

    Attributes:
        round: Index of the next round.
        clock_s: (R,): time at which it begins, in seconds.
        queue: (R, U): how far each client is behind its quota, in rounds.
        previous: (R, U): each client's channel in the last round; -1 for none.
        uploads: (R, U): uploads charged so far, late ones included.
        present_rounds: (R, U): number of rounds at whose start each client was present.
        spent_j: (R, U): energy that each client has spent, in joules; NaN if unknown.
        quota: (R, U): quotas as the policy serves them, its slack included.
        state: The policy's state.
        seen: The context of the last decision.
    """

    def __init__(
        self,
        policy: BatchPolicy,
        problem: Problem,
        seeds: Sequence[int],
        *,
        max_uploads: IntArray | float = np.inf,
        wait_s: float = 0.0,
        charge: Callable[[int, Orders], object] = lambda round, orders: None,
    ) -> None:
        self.policy, self.problem, self.seeds = policy, problem, tuple(seeds)
        self.max_uploads, self.wait_s, self.charge = max_uploads, wait_s, charge
        self.quota = policy.quotas(problem)
        self.state: State = policy.init(problem) if problem.clients else {}
        shape = problem.quotas.shape
        self.round, self.clock_s = 0, np.zeros(problem.replicas)
        self.queue, self.spent_j = np.zeros(shape), np.zeros(shape)
        self.uploads, self.present_rounds = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.streams = RoundStreams(seeds, "policy")
        self.previous: IntArray = np.full(shape, -1, np.int64)
        self.seen = Context.first(problem)
        self._sent: Orders | None = None

    @property
    def finished(self) -> bool:
        """Whether all rounds of the problem have ended."""
        return self.round == self.problem.rounds

    def context(self, present: BoolArray, ready: BoolArray | None = None, **required: Any) -> Context:
        """Return what a policy sees before the next round.

        Args:
            present: (R, U): which clients are present: queues of others do not grow.
            ready: (R, U): which clients could take an order, if that is less than being present.
            **required: What the policy requires: `losses`, `channel_state` or `distributions`.
        """
        available = (present if ready is None else ready) & (self.uploads < self.max_uploads)
        self.seen = Context(self.round, self.problem, available, present, self.queue, self.previous, **required)
        return self.seen

    def decide(self, present: BoolArray, ready: BoolArray | None = None, **required: Any) -> Orders:
        """Return the policy's orders for the next round; the arguments are those of `context`.

        Raises:
            PolicyError: They are no matching of available clients, or the predictions are impossible.
        """
        context = self.context(present, ready, **required)
        chosen = self.policy.select(self.state, context, self.streams.at(self.round))
        return self.order(chosen.channel, chosen.predicted) if isinstance(chosen, Choice) else self.order(chosen)

    def order(self, channel: IntArray, predicted: PredictedDelays | None = None) -> Orders:
        """Return a choice (R, U), a policy's or an agent's, as orders, after checking it against the last context.

        Raises:
            PolicyError: It is no matching of available clients, or the predictions are impossible.
        """
        where = f"policy {self.policy.name}, round {self.round}"
        check_assignment(channel, self.seen.available, self.problem.channels, where)
        if predicted is not None and (wrong := predicted.problem(channel)):
            raise PolicyError(f"{where}: {wrong}")
        return Orders(channel, predicted)

    def start(self, orders: Orders) -> None:
        """Charge the orders, late ones included. Nothing may be sent before this returns."""
        self.charge(self.round, orders)
        self.uploads = self.uploads + orders.given
        self._sent = orders

    def settle(self, arrivals: Arrivals) -> Outcome:
        """End the round that was started: who was on time, how long it took, how queues grow; the policy learns."""
        orders, self._sent = self._sent, None
        if orders is None:
            raise RuntimeError("start must be called before settle")
        return self._ended(orders, arrivals)

    def void(self, orders: Orders) -> Outcome:
        """End a round whose orders could not be sent: they are not charged, and count as late."""
        return self._ended(orders, Arrivals.none(orders.channel.shape))

    def replay(self, channel: IntArray) -> Outcome:
        """Repeat a round that a crash cut off: its orders (R, U) were charged before they were sent, and are late."""
        self.context(np.ones(channel.shape, np.bool_), channel >= 0)
        orders = self.order(channel)
        self.uploads = self.uploads + orders.given
        return self.void(orders)

    def _ended(self, orders: Orders, arrivals: Arrivals) -> Outcome:
        deadline_s, ordered, present = self.problem.deadline_s, orders.given, self.seen.present
        total_s = arrivals.delays.total_s
        punctual = ordered & arrivals.usable & (total_s <= deadline_s)  # a NaN is not on time
        # d(t) = max over the ordered clients of min(d_ij, d_max); the server waits until the deadline for a client that
        # left, whose delay is NaN. Without orders it is 0 (reading 6), unless absent clients are waited for.
        delay_s: FloatArray = np.where(ordered, np.fmin(total_s, deadline_s), 0.0).max(axis=1, initial=0.0)
        delay_s = np.where(~ordered.any(axis=1) & ~present.all(axis=1), self.wait_s, delay_s)
        feedback = Feedback(self.seen, orders.channel, arrivals.delays, punctual)
        self.state = self.policy.update(self.state, feedback.observed())
        self.previous = orders.channel
        self.queue = updated_queues(self.queue, self.quota, punctual, present)
        self.present_rounds = self.present_rounds + present
        self.spent_j = self.spent_j + arrivals.energy_j
        outcome = Outcome(
            round=self.round,
            start_s=self.clock_s,
            delay_s=delay_s,
            orders=orders,
            arrivals=arrivals,
            punctual=punctual,
            present=present,
            available=self.seen.available,
            queue=self.queue,
            uploads=self.uploads,
        )
        self.clock_s, self.round = self.clock_s + delay_s, self.round + 1
        return outcome

    def grow(self, problem: Problem) -> None:
        """Continue with a problem that has the same clients or more; the policy keeps what it has learned."""
        old, clients = self.problem, problem.clients
        self.state = self.policy.resize(self.state, old, problem) if old.clients else self.policy.init(problem)
        self.problem, self.quota = problem, self.policy.quotas(problem)
        for name in ("queue", "spent_j", "uploads", "present_rounds"):
            array = getattr(self, name)
            setattr(self, name, with_clients(np.zeros((len(array), clients), array.dtype), array, axis=1))
        self.previous = with_clients(np.full((problem.replicas, clients), -1, np.int64), self.previous, axis=1)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that changes from round to round, as the arrays of a checkpoint by name."""
        named = {f"state.{name}": np.asarray(array) for name, array in self.state.items()}
        return named | {name: np.asarray(getattr(self, name)) for name in _SAVED}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the arrays of a checkpoint.

        Raises:
            InputError: An array does not fit the problem, or no run can have written it.
        """
        saved = {name: fitting_array(arrays, name, np.asarray(getattr(self, name))).copy() for name in _SAVED}
        rounds = int(saved.pop("round").item())
        if not 0 <= rounds <= self.problem.rounds:
            raise InputError(f"round must be between 0 and {self.problem.rounds}, got {rounds}")
        try:
            check_assignment(saved["previous"], saved["previous"] >= 0, self.problem.channels, "previous")
        except PolicyError as error:
            raise InputError(str(error)) from error
        for name, array in saved.items():
            missing = np.isnan(array) if name == "spent_j" else np.False_
            if name != "previous" and not np.all((array >= 0) & (array < np.inf) | missing):
                raise InputError(f"{name} must be finite and at least 0")
        if np.any(saved["present_rounds"] > rounds) or np.any(saved["uploads"] > rounds):
            raise InputError(f"present_rounds and uploads must be at most {rounds}")
        state = {name.removeprefix("state."): array for name, array in arrays.items() if name.startswith("state.")}
        self.state = self.policy.check_state(state, self.problem)
        self.round = rounds
        for name, array in saved.items():
            setattr(self, name, array)


_SAVED = ("round", "clock_s", "queue", "previous", "uploads", "present_rounds", "spent_j")
"""The attributes of `Rounds` that a checkpoint holds besides the policy's state."""


def check_assignment(assignment: IntArray, available: BoolArray, channels: int, where: str) -> None:
    """Raise `PolicyError` unless ``assignment`` (R, U) is a matching of available clients in every replica."""
    if not isinstance(assignment, np.ndarray) or not np.issubdtype(assignment.dtype, np.integer):
        raise PolicyError(
            f"{where}: select must return an integer array, got {getattr(assignment, 'dtype', type(assignment))}"
        )
    if assignment.shape != available.shape:
        hint = ""
        if assignment.ndim != available.ndim:
            hint = ": derive it from Policy if its arrays are (U,), and from BatchPolicy if they are (R, U)"
        raise PolicyError(f"{where}: select must return shape {available.shape}, got {assignment.shape}{hint}")
    if assignment.min(initial=0) < -1 or assignment.max(initial=-1) >= channels:
        raise PolicyError(
            f"{where}: channels must lie in -1..{channels - 1}, got {assignment.min()}..{assignment.max()}"
        )
    replica, client = np.nonzero(assignment >= 0)
    if not available[replica, client].all():
        raise PolicyError(f"{where}: an unavailable client was assigned")
    used = np.bincount(replica * channels + assignment[replica, client], minlength=len(assignment) * channels)
    if used.max(initial=0) > 1:
        r, channel = divmod(int(used.argmax()), channels)
        raise PolicyError(f"{where}: channel {channel} was given to {used.max()} clients in replica {r}")
