"""RBCS-F: the set of clients that is best for slowest exchange time against fairness queues.

Huang et al., *An Efficiency-Boosting Client Selection Scheme for Federated Learning with Fairness Guarantee* (2021,
arXiv 2011.01783). The exchange time of client i has the lower confidence bound

    tau_i = [b_i / H_i - alpha / sqrt(H_i)]^+,   H_i = lambda + n_i,   b_i = sum of its delays / d_max,

and the set S of min(N, available) clients minimises V max_{i in S} tau_i - sum_{i in S} Z_i, with the queues
Z_i <- [Z_i + beta_i - x_i]^+, where x_i is 1 if the client was selected.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.records import BoolArray, Context, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.policy import check_trade_off, check_within, updated_queues
from fedlane.scheduling.ranges import EXPLORATION, QUOTA_SLACK, TRADE_OFF, ParameterRange, Tunable
from fedlane.scheduling.rivals.client_choice import ClientChoice, largest
from fedlane.validate import positive


@dataclass(frozen=True)
class RbcsF(ClientChoice):
    """Ridge regression of every client's delay on a constant context, and a fairness queue per client."""

    name: ClassVar[str] = "rbcs-f"
    summary: ClassVar[str] = "slowest exchange time against fairness queues, by sets of clients (Huang et al. 2021)"
    ranges: ClassVar[Mapping[str, Tunable]] = {
        "V": TRADE_OFF,
        "exploration": EXPLORATION,
        "ridge": ParameterRange(0.1, 10.0, "log"),
        "quota_slack": QUOTA_SLACK,
    }

    V: float = 20.0
    exploration: float = 0.1
    ridge: float = 1.0
    quota_slack: float = 0.0

    def __post_init__(self) -> None:
        check_trade_off(self.V, self.exploration, self.quota_slack)
        positive("ridge", self.ridge)

    def init(self, problem: Problem) -> State:
        """Return empty statistics and queues."""
        return {**super().init(problem), "queue": np.zeros(problem.quotas.shape)}

    def exchange_time(self, state: State) -> FloatArray:
        """Return tau (R, U), in units of the deadline."""
        count = state["count"].sum(axis=2)
        total = np.maximum(count - state["reward"].sum(axis=2), 0.0)
        weight = self.ridge + count
        return np.asarray(np.maximum(total / weight - self.exploration / np.sqrt(weight), 0.0))

    def chosen(self, state: State, context: Context, rng: RoundRng) -> BoolArray:
        """Return the set with the smallest objective."""
        keys = rng.uniform(context.available.shape[1])
        channels, tau = context.problem.channels, self.exchange_time(state)
        prefix = np.zeros(tau.shape, np.bool_)
        for r, available in enumerate(context.available):
            clients = np.flatnonzero(available)
            prefix[r, best_prefix(tau[r], state["queue"][r], clients, channels, self.V)] = True
        return largest(state["queue"], prefix, channels, keys)

    def update(self, state: State, feedback: Feedback) -> State:
        """Add the measured delays and update the queues, which fall with each selection."""
        quota, selected = self.quotas(feedback.context.problem), feedback.channel >= 0
        queue = updated_queues(state["queue"], quota, selected, feedback.context.present)
        return {**super().update(state, feedback), "queue": queue}

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the statistics and the queues."""
        state = super().check_state(state, problem)
        check_within("queue", state["queue"], 0, problem.rounds * max(1.0, problem.quotas.max(initial=0.0)))
        return state


def best_prefix(tau: FloatArray, queue: FloatArray, clients: IntArray, channels: int, V: float) -> IntArray:
    """Return the clients that are not slower than the slowest client of the best set.

    For every client as the slowest one, the best set holds the largest queues among the clients that are not slower
    (the paper's divide and conquer). One pass in the order of tau keeps these queues in a heap.

    Args:
        tau: (U,) exchange times.
        queue: (U,) fairness queues.
        clients: Indices of the available clients.
        channels: N; a set holds min(N, number of available clients).
        V: Weight of the exchange time.
    """
    order = clients[np.argsort(tau[clients], kind="stable")]
    times, size, total = tau[order].tolist(), min(channels, len(order)), 0.0
    heap: list[float] = []
    best, length = np.inf, 0
    for place, waiting in enumerate(queue[order].tolist(), start=1):
        heapq.heappush(heap, waiting)
        total += waiting
        if len(heap) > size:
            total -= heapq.heappop(heap)
        equally_slow_follows = place < len(times) and times[place] == times[place - 1]
        objective = V * times[place - 1] - total
        if len(heap) == size and not equally_slow_follows and objective < best:
            best, length = objective, place
    return order[:length]
