"""A policy in a real federation: the same rounds as in simulation, settled with measured delays.

The policy's problem has the clients that have joined so far. When clients join, `Rounds.grow` adds them and keeps what
was learned.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedlane.files import fitting_array
from fedlane.flower.protocol import LARGEST, LossReport
from fedlane.flower.server.reported_losses import ReportedLosses
from fedlane.records import BoolArray, Delays, FloatArray, IntArray, Problem
from fedlane.rounds import Arrivals, Orders, Outcome, Rounds
from fedlane.scheduling.policy import BatchPolicy, check_federated, requires_losses, with_clients
from fedlane.simulation.trace import Trace
from fedlane.validate import InputError


@dataclass(frozen=True)
class MeasuredDelay:
    """How long a client took whose valid update came by the deadline, in seconds.

    Attributes:
        total_s: From sending the order to receiving the whole reply, on the server's clock.
        compute_s: Computing and switching channels, on the client's clock.
    """

    total_s: float
    compute_s: float = 0.0


class Scheduler:
    """The rounds of a federation, their trace, and what its clients reported.

    Attributes:
        rounds: The rounds; R is 1.
        trace: Record of every round so far.
        epsilon: (T, U): the epsilon that each client had spent after each round; NaN if unreported or without a
            mechanism.
        losses: The losses that clients reported; None if the policy does not require them.
    """

    def __init__(
        self,
        policy: BatchPolicy,
        *,
        lanes: int,
        deadline_s: float,
        rounds: int,
        seed: int,
        losses: bool = False,
        charge: Callable[[int, Orders], object] = lambda round, orders: None,
    ) -> None:
        """``losses`` states that clients report their losses; ``charge`` is called before orders are sent."""
        check_federated(policy, losses=losses)
        problem = Problem(0, lanes, rounds, deadline_s, np.zeros((1, 0)))
        self.policy, self.seed = policy, seed
        self.rounds = Rounds(policy, problem, [seed], charge=charge)  # a round without orders takes no time
        self.trace = Trace.empty(1, rounds, 0, lanes).with_presence()
        self.epsilon = np.zeros((rounds, 0))
        self.losses = ReportedLosses() if requires_losses(policy) else None

    @property
    def problem(self) -> Problem:
        """The problem, with the clients that have joined so far."""
        return self.rounds.problem

    @property
    def round(self) -> int:
        """Number of rounds so far."""
        return self.rounds.round

    @property
    def quota(self) -> FloatArray:
        """(1, U): the quotas that the policy serves, after its slack."""
        return self.rounds.quota

    def set_quotas(self, quotas: FloatArray, sizes: FloatArray | None = None) -> None:
        """Set the quotas (1, U) of as many clients as before or more; the policy keeps what it has learned.

        ``sizes`` (1, U) are the numbers of records that the clients claim.
        """
        old, clients = self.problem, quotas.shape[1]
        same_sizes = sizes is None or (old.sizes is not None and np.array_equal(sizes, old.sizes))
        if np.array_equal(quotas, old.quotas) and same_sizes:
            return
        self.rounds.grow(replace(old, clients=clients, quotas=quotas, sizes=sizes))
        self.trace.grow(clients)
        self.epsilon = with_clients(np.full((old.rounds, clients), np.nan), self.epsilon, axis=1)
        if self.losses is not None:
            self.losses.resize(clients)

    def decide(self, present: BoolArray, available: BoolArray) -> Orders:
        """Return the orders of the next round.

        Args:
            present: (U,): the clients that are connected. The queue of an absent client does not grow.
            available: (U,): the clients that could take an order.
        """
        losses = None if self.losses is None else self.losses.latest()
        return self.rounds.decide(present[None], available[None], losses=losses)

    def settle(self, measured: Mapping[int, MeasuredDelay]) -> Outcome:
        """End the round that was started, with what was measured, by client; every other ordered client is late.

        The network's share, which is neither compute nor switching, is split evenly into download and upload: the
        clocks of server and client are not synchronised, so the two cannot be told apart.
        """
        compute_s, network_s = np.full((2, 1, self.problem.clients), np.nan)
        for client, delay in measured.items():
            compute_s[0, client] = min(delay.compute_s, delay.total_s)
            network_s[0, client] = delay.total_s - compute_s[0, client]
        delays, unknown_j = Delays(network_s / 2, compute_s, network_s / 2), np.full(compute_s.shape, np.nan)
        return self._recorded(self.rounds.settle(Arrivals(delays, ~np.isnan(compute_s), unknown_j)))

    def void(self, orders: Orders) -> Outcome:
        """End a round whose orders could not be sent: they are not charged, and count as late."""
        return self._recorded(self.rounds.void(orders))

    def replay(self, lanes: Mapping[int, int]) -> Outcome:
        """Repeat a round that a crash cut off: its orders {client: lane} were charged, and count as late."""
        channel: IntArray = np.full((1, self.problem.clients), -1, np.int64)
        channel[0, list(lanes)] = list(lanes.values())
        return self._recorded(self.rounds.replay(channel))

    def _recorded(self, outcome: Outcome) -> Outcome:
        self.trace.append(outcome, self.problem.deadline_s)
        return outcome

    def record_epsilon(self, epsilon: Sequence[float | None]) -> None:
        """Store the epsilon of every client after the last round."""
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
            **self.rounds.arrays(),
            **self.trace.saved(),
            "quotas": self.problem.quotas,
            "epsilon": self.epsilon[: self.round],
            **({} if self.losses is None else self.losses.arrays()),
        }

    def restore(self, arrays: Mapping[str, np.ndarray[Any, Any]], sizes: FloatArray | None = None) -> None:
        """Continue from the arrays of a checkpoint, perhaps with more rounds to come.

        Args:
            arrays: What `arrays` returned.
            sizes: (1, U): the sizes in the roster, which may already have further clients.

        Raises:
            InputError: The checkpoint belongs to another policy, has more rounds than are to be run, or has arrays that
                no run can have written.
        """
        quotas = arrays["quotas"]
        if quotas.ndim != 2 or len(quotas) != 1 or (sizes is not None and quotas.shape[1] > sizes.shape[1]):
            raise InputError(f"quotas must be (1, U) for the U clients of the roster, got {quotas.shape}")
        quotas = _numbers(arrays, "quotas", np.zeros(quotas.shape), largest=1.0)
        self.set_quotas(quotas, None if sizes is None else sizes[:, : quotas.shape[1]])
        played = int(fitting_array(arrays, "round", np.array(0)).item())
        if played > self.problem.rounds:
            raise InputError(f"num_rounds must be at least the {played} rounds run so far, got {self.problem.rounds}")
        self.rounds.restore(arrays)
        self.trace.restore(arrays, self.problem.deadline_s)
        if self.trace.rounds != played:
            raise InputError(f"round is {played}, but the trace has {self.trace.rounds} rounds")
        if self.losses is not None:
            self.losses.restore(arrays)
        epsilon = _numbers(arrays, "epsilon", self.epsilon[:played], largest=LARGEST, missing=True)
        self.epsilon[:played] = epsilon


def _numbers(
    arrays: Mapping[str, np.ndarray[Any, Any]], name: str, like: FloatArray, *, largest: float, missing: bool = False
) -> FloatArray:
    """Return a copy of an array of a checkpoint: finite numbers in [0, largest], or NaN if some may be ``missing``."""
    array = fitting_array(arrays, name, like).copy()
    if not np.all((np.isfinite(array) & (array >= 0) & (array <= largest)) | (missing & np.isnan(array))):
        raise InputError(f"{name} must be finite, at least 0 and at most {largest:g}")
    return array
