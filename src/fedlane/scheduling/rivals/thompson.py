"""Combinatorial Thompson sampling with queues.

Wang and Chen, *Thompson Sampling for Combinatorial Semi-Bandits* (2018, arXiv 1803.04623), with the fairness queues of
Li, Liu and Ji (2019, arXiv 1901.04812). For every pair, the reward and the probability of success are drawn from their
posteriors under a uniform prior,

    r_ij ~ Beta(1 + sum of rewards, 1 + n_ij - sum of rewards),   p_ij ~ Beta(1 + successes, 1 + n_ij - successes),

and the matching maximises the sum of Q_i p_ij + V r_ij.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.matching import max_sum_matching
from fedlane.records import Context, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.estimates import check_statistics, empty_statistics, record
from fedlane.scheduling.policy import BatchPolicy, check_trade_off
from fedlane.scheduling.ranges import QUOTA_SLACK, TRADE_OFF, Tunable


@dataclass(frozen=True)
class Thompson(BatchPolicy):
    """Draws every pair's reward and success from their posteriors, and serves the matching with the largest sum."""

    name: ClassVar[str] = "thompson"
    summary: ClassVar[str] = "combinatorial Thompson sampling with fairness queues"
    ranges: ClassVar[Mapping[str, Tunable]] = {
        "V": TRADE_OFF,
        "quota_slack": QUOTA_SLACK,
    }

    V: float = 5.0
    quota_slack: float = 0.125

    def __post_init__(self) -> None:
        check_trade_off(self.V, 0.0, self.quota_slack)

    def init(self, problem: Problem) -> State:
        """Return empty statistics."""
        return empty_statistics(problem)

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Serve the matching with the largest sum under one draw from the posterior."""
        success = posterior_draw(state["success"], state["count"], rng)
        value = context.queue[..., None] * success
        value += self.V * posterior_draw(state["reward"], state["count"], rng)
        value[~context.available] = -np.inf
        return max_sum_matching(value)

    def update(self, state: State, feedback: Feedback) -> State:
        """Add the measured delays to the statistics."""
        record(state, feedback)
        return state

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the statistics."""
        state = super().check_state(state, problem)
        check_statistics(state, problem)
        return state


def posterior_draw(total: FloatArray | IntArray, count: IntArray, rng: RoundRng) -> FloatArray:
    """Return a draw from Beta(1 + total, 1 + count - total) for every pair (R, U, N)."""
    draws = (g.beta(1.0 + t, 1.0 + n - t) for g, t, n in zip(rng.generators, total, count, strict=True))
    return np.stack(list(draws))
