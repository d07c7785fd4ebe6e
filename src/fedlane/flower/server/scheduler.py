"""A policy in a real federation: the same objects as in simulation, updated with measured delays.

The policy's problem has the clients that have joined so far. When clients join, `Policy.resize` adds them to the
policy's state and keeps what was learned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedlane.files import fitting_array
from fedlane.flower.protocol import LARGEST, LossReport
from fedlane.flower.server.reported_losses import ReportedLosses
from fedlane.records import BoolArray, Context, Delays, Feedback, FloatArray, IntArray, Problem
from fedlane.rng import RoundStreams
from fedlane.scheduling.checks import check_assignment, check_predictions
from fedlane.scheduling.policy import Policy
from fedlane.scheduling.queues import updated_queues
from fedlane.scheduling.registry import former_policy
from fedlane.scheduling.requirements import check_federated, requires_losses
from fedlane.scheduling.resizing import with_clients
from fedlane.simulation.trace import Trace
from fedlane.validate import InputError

RETIRED_STATE = frozenset({"quota", "deadline_s", "channels"})
"""State arrays of earlier versions that are ignored in a checkpoint: they are part of the problem now."""


@dataclass(frozen=True)
class MeasuredDelay:
    """The delay of one client in a round, on the server's clock."""

    lane: int
    total_s: float | None
    """Seconds from sending the order to receiving the whole reply; None if no valid update came by the deadline."""
    compute_s: float = 0.0
    """Seconds that the client spent on computing and switching lanes, on its own clock."""


class Scheduler:
    """A policy, its state, and the trace of the rounds that it scheduled."""

    def __init__(
        self, policy: Policy, *, lanes: int, deadline_s: float, rounds: int, seed: int, losses: bool = False
    ) -> None:
        """``losses`` states that clients report their losses, for a policy that requires them."""
        check_federated(policy, losses=losses)
        self.policy = policy
        self.problem = Problem(0, lanes, rounds, deadline_s, np.zeros((1, 0)))
        self.state: dict[str, Any] = {}
        self.trace = self._empty_trace(0)
        self.queue = np.zeros((1, 0))
        self.present_rounds = np.zeros((1, 0), np.int64)
        """(1, U): number of rounds at whose start each client was connected."""
        self.epsilon = np.zeros((rounds, 0))
        """(T, U): the epsilon that each client had spent after each round; NaN if unreported or without a mechanism."""
        self.losses = ReportedLosses() if requires_losses(policy) else None
        self.seed, self._streams = seed, RoundStreams([seed], "policy")

    def _empty_trace(self, clients: int) -> Trace:
        trace = Trace.empty(1, self.problem.rounds, clients, self.problem.channels)
        return trace.with_predictions() if self.policy.predicts else trace

    @property
    def round(self) -> int:
        """Number of rounds played so far."""
        return self.trace.rounds

    @property
    def quota(self) -> FloatArray:
        """(1, U): the quotas that the policy serves, after its slack."""
        return self.policy.quotas(self.problem)

    def set_quotas(self, quotas: FloatArray, sizes: FloatArray | None = None) -> None:
        """Set the quotas (1, U) of as many clients as before or more; the policy keeps what it has learned.

        ``sizes`` (1, U) are the numbers of records that the clients claim.
        """
        old, clients = self.problem, quotas.shape[1]
        same_sizes = sizes is None or (old.sizes is not None and np.array_equal(sizes, old.sizes))
        if np.array_equal(quotas, old.quotas) and same_sizes:
            return
        self.problem = replace(old, clients=clients, quotas=quotas, sizes=sizes)
        self.state = dict(
            self.policy.resize(self.state, old, self.problem) if old.clients else self.policy.init(self.problem)
        )
        empty = Trace.empty(1, old.rounds, clients, old.channels)
        self.trace.queue = with_clients(empty.queue, self.trace.queue, axis=2)
        self.trace.available = with_clients(np.zeros_like(empty.available), self.trace.available, axis=2)
        self.queue = with_clients(np.zeros((1, clients)), self.queue, axis=1)
        self.present_rounds = with_clients(np.zeros((1, clients), np.int64), self.present_rounds, axis=1)
        self.epsilon = with_clients(np.full((old.rounds, clients), np.nan), self.epsilon, axis=1)
        if self.losses is not None:
            self.losses.resize(clients)

    def select(self, available: BoolArray) -> IntArray:
        """Return each client's lane in the next round, (U,), -1 for none; ``available`` is (U,)."""
        context = self._context(available)
        assignment = self.policy.select(self.state, context, self._streams.at(self.round))
        check_assignment(
            assignment, context.available, self.problem.channels, f"policy {self.policy.name}, round {self.round}"
        )
        return np.asarray(assignment[0])

    def _context(self, available: BoolArray) -> Context:
        losses = None if self.losses is None else self.losses.latest()
        return Context(round=self.round, available=available[None], losses=losses, problem=self.problem)

    def learn(
        self, measured: Mapping[int, MeasuredDelay], available: BoolArray, present: BoolArray | None = None
    ) -> Feedback:
        """Give the policy the measured delay of each assigned client, by index, and end the round.

        The network's share, which is neither compute nor switching, is split evenly into download and upload: the
        clocks of server and client are not synchronised, so the two cannot be told apart. The parts of a client without
        a valid update by the deadline are unknown: NaN in the trace, and +inf for the policy, as of any late client.

        Args:
            measured: What was measured, by client.
            available: (U,): the clients that could have been chosen.
            present: (U,): the clients that were connected at the round's start; None if all were. The queue of an
                absent client does not grow.
        """
        shape, deadline_s = (1, self.problem.clients), self.problem.deadline_s
        there = np.ones(shape, np.bool_) if present is None else present[None]
        assignment = np.full(shape, -1, np.int64)
        compute, network = np.full(shape, np.nan), np.full(shape, np.nan)
        for client, delay in measured.items():
            assignment[0, client] = delay.lane
            if delay.total_s is not None:
                compute[0, client] = min(delay.compute_s, delay.total_s)
                network[0, client] = delay.total_s - compute[0, client]
        delays = Delays(network / 2, compute, network / 2)
        punctual = delays.total_s <= deadline_s
        losses = None if self.losses is None else self.losses.latest()
        feedback = Feedback(self.round, assignment, delays, punctual, self.problem, there, losses)
        predicted = None
        if self.policy.predicts:
            predicted = self.policy.predictions(self.state, self._context(available), assignment)
            check_predictions(predicted, assignment, f"policy {self.policy.name}, round {self.round}")
        self.state = dict(self.policy.update(self.state, feedback.observed()))
        self.queue = updated_queues(self.queue, self.quota, punctual, there)
        self.present_rounds = self.present_rounds + there
        # If no client was ordered to train, the server continues at once; a simulation would advance its clock here.
        feedback_of_trace = replace(feedback, present=None)
        self.trace.append(feedback_of_trace, self.queue, available[None], deadline_s, predicted=predicted)
        return feedback

    def record_epsilon(self, epsilon: Sequence[float | None]) -> None:
        """Store the epsilon of every client after the round that was played last."""
        known = epsilon[: self.problem.clients]  # a client that joined during the round comes with the next
        self.epsilon[self.round - 1] = [np.nan if value is None else value for value in known]

    def record_losses(self, reports: Mapping[int, LossReport]) -> None:
        """Store the losses that came with accepted updates, by client, if the policy requires them."""
        if self.losses is not None:
            self.losses.record(reports)

    def record_metrics(self, round: int, metrics: Mapping[str, object]) -> None:
        """Store the accuracy and the loss after a round, if the metrics have them."""
        for name, values in (("accuracy", self.trace.accuracy), ("loss", self.trace.loss)):
            if isinstance(value := metrics.get(name), float | int):
                values[0, round] = value

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the arrays of a checkpoint by name."""
        return {
            **{f"state.{key}": np.asarray(value) for key, value in self.state.items()},
            **self.trace.saved(),
            "quotas": self.problem.quotas,
            "queue": self.queue,
            "present_rounds": self.present_rounds,
            "epsilon": self.epsilon[: self.round],
            **({} if self.losses is None else self.losses.arrays()),
        }

    def former_policy(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Policy | None:
        """Return the rule that wrote a checkpoint if it is a former version of this policy, otherwise None."""
        return former_policy(self.policy, _policy_state(arrays))

    def restore(self, arrays: Mapping[str, np.ndarray[Any, Any]], sizes: FloatArray | None = None) -> None:
        """Continue from the arrays of a checkpoint, perhaps with more rounds to play.

        Args:
            arrays: What `arrays` returned.
            sizes: (1, U): the sizes in the roster, which may already have further clients.

        Raises:
            InputError: The checkpoint belongs to another policy, has more rounds than are to be played, or has arrays
                that no run can have written.
        """
        quotas = arrays["quotas"]
        if quotas.ndim != 2 or len(quotas) != 1 or (sizes is not None and quotas.shape[1] > sizes.shape[1]):
            raise InputError(f"quotas must be (1, U) for the U clients of the roster, got {quotas.shape}")
        quotas = _numbers(arrays, "quotas", np.zeros(quotas.shape), largest=1.0)
        self.set_quotas(quotas, None if sizes is None else sizes[:, : quotas.shape[1]])
        played = np.shape(arrays["epsilon"])[:1]
        saved = _policy_state(arrays)
        former = self.former_policy(arrays)
        if former is not None:  # the state of a server that ran an earlier version: the federation keeps its rule
            self.policy, self.state = former, dict(former.init(self.problem))
            self.trace = self._empty_trace(self.problem.clients)
        if not set(self.state) <= set(saved) <= set(self.state) | RETIRED_STATE:
            raise InputError(f"the saved state does not belong to policy {self.policy.name}")
        if played and played[0] > self.problem.rounds:
            raise InputError(
                f"num_rounds must be at least the {played[0]} rounds played so far, got {self.problem.rounds}"
            )
        self.state = dict(self.policy.check_state({key: saved[key] for key in self.state}, self.problem))
        self.queue = _numbers(arrays, "queue", self.queue, largest=np.inf)
        self.trace.restore(arrays, self.problem.deadline_s)
        self.present_rounds = self._restored_presence(arrays)
        if self.losses is not None:
            self.losses.restore(arrays)
        epsilon = _numbers(arrays, "epsilon", self.epsilon[: self.round], largest=LARGEST, missing=True)
        self.epsilon[: self.round] = epsilon

    def _restored_presence(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> IntArray:
        """Return the present rounds of a checkpoint; an old one has none, but tells who was available."""
        if "present_rounds" not in arrays:
            return np.asarray(self.trace.played().available.sum(axis=1), np.int64)
        present_rounds = fitting_array(arrays, "present_rounds", self.present_rounds)
        if np.any((present_rounds < 0) | (present_rounds > self.round)):
            raise InputError(f"present_rounds must be between 0 and {self.round}")
        return present_rounds.copy()


def _policy_state(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the policy's state in a checkpoint."""
    return {key.removeprefix("state."): array for key, array in arrays.items() if key.startswith("state.")}


def _numbers(
    arrays: Mapping[str, np.ndarray[Any, Any]], name: str, like: FloatArray, *, largest: float, missing: bool = False
) -> FloatArray:
    """Return a copy of an array of a checkpoint: finite numbers in [0, largest], or NaN if some may be ``missing``."""
    array = fitting_array(arrays, name, like).copy()
    if not np.all((np.isfinite(array) & (array >= 0) & (array <= largest)) | (missing & np.isnan(array))):
        raise InputError(f"{name} must be finite, at least 0 and at most {largest:g}")
    return array
