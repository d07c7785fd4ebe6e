"""`lane-2026`, the rule that was called `lane` in 2026. It compares whole matchings, as `lane` does.

In each round it selects the matching that maximises

    sum_i Q_i p_ij  -  V N E[max of the assigned delays] / d_max,

the drift-plus-penalty rule with the paper's queues weighted by the probability p_ij that the assignment serves them
(reading 12 in docs/reading-the-paper.md). Each pair's delay distribution is learned from its past delays, minus an
optimism bonus; a pair that was never tried is tried first. The rule groups slow clients into the same rounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.records import Context, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.estimates import bonus, check_statistics, empty_statistics, optimistic_mean, record
from fedlane.scheduling.lane_kernels import search_batch
from fedlane.scheduling.policy import BatchPolicy, check_trade_off, check_within, fitting_state
from fedlane.scheduling.ranges import EXPLORATION, QUOTA_SLACK, TRADE_OFF, Tunable
from fedlane.scheduling.slots import check_slots, with_slots

CELLS = 32
"""Number of equal cells of [0, d_max] that represent a delay distribution."""


@dataclass(frozen=True)
class Lane2026(BatchPolicy):
    """Drift plus penalty on the expected delay of the slowest client, with learned distributions."""

    name: ClassVar[str] = "lane-2026"
    summary: ClassVar[str] = "the former lane, which tries every pair first and learns each pair alone"
    ranges: ClassVar[Mapping[str, Tunable]] = {
        "V": TRADE_OFF,
        "exploration": EXPLORATION,
        "quota_slack": QUOTA_SLACK,
    }

    V: float = 5.0
    exploration: float = 0.03
    quota_slack: float = 0.125

    def __post_init__(self) -> None:
        check_trade_off(self.V, self.exploration, self.quota_slack)

    def init(self, problem: Problem) -> State:
        """Return empty statistics, queues and delay histories."""
        replicas, clients = problem.quotas.shape
        return {
            **empty_statistics(problem),
            # Only pairs that were tried have a history: slot maps the pair to its row of cells.
            "slot": np.full((replicas, clients, problem.channels), -1, np.int32),
            "slots": np.zeros(replicas, np.int64),
            "history": np.zeros((replicas, min(64, clients * problem.channels), CELLS), np.float32),
        }

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Search for the matching with the largest objective; pairs never tried come first."""
        count = state["count"]
        optimism = bonus(count, self.exploration)
        # In place where possible: with 10 million pairs, each array takes 80 MB.
        weight = optimistic_mean(state["success"], count, optimism)
        weight *= context.queue[..., None]
        reward = optimistic_mean(state["reward"], count, optimism)
        first = 1e3 * (1.0 + self.V * count.shape[2] + context.queue.max(axis=1))
        np.add(weight, first[:, None, None], out=weight, where=count == 0)
        np.multiply(optimism, CELLS, out=optimism)
        assignment: IntArray = search_batch(
            weight,
            reward,
            optimism,
            count,
            state["slot"],
            state["history"],
            context.available,
            context.previous,
            self.V,
        )
        return assignment

    def update(self, state: State, feedback: Feedback) -> State:
        """Add the measured delays to the statistics and histories, and update the queues."""
        problem = feedback.context.problem
        pair = record(state, feedback)
        state = with_slots(state, pair)
        replica, client, _ = pair
        delay = feedback.delays.total_s[replica, client] / problem.deadline_s
        rows = replica, state["slot"][pair]
        state["history"][rows] += cell_cdf(delay)
        return state

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the statistics, the queues, the previous matching, and that every tried pair has its own history."""
        first = dict(self.init(problem))
        if "history" in state and state["history"].ndim == 3:  # the number of rows grows while rounds are played
            first["history"] = np.zeros((problem.replicas, state["history"].shape[1], CELLS), np.float32)
        state = fitting_state(first, state)
        check_statistics(state, problem)
        check_slots(state)
        count, history = state["count"], state["history"]
        check_within("history", history, 0, count.max(axis=(1, 2), initial=0)[:, None, None])
        return state


def cell_cdf(delay: FloatArray) -> FloatArray:
    """Return the mean of the step function 1{delay <= x} over each cell, (..., CELLS); delay in units of d_max."""
    return np.clip(np.arange(1, CELLS + 1) - delay[..., None] * CELLS, 0.0, 1.0)
