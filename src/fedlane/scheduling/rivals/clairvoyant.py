"""`clairvoyant`: drift plus penalty with this round's true delays. It shows what channel knowledge is worth.

In each round it serves the matching that maximises

    sum_i Q_i 1{d_ij <= d_max}  -  V N max_i min(d_ij, d_max) / d_max,

the objective of `lane` with every delay known before the round. The maximum is exact. It is the best choice of each
round for these queues, not the best schedule of all rounds.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.records import Context, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.policy import BatchPolicy, check_trade_off
from fedlane.scheduling.rivals.best_round import best_round


@dataclass(frozen=True)
class Clairvoyant(BatchPolicy):
    """Serves the best matching for this round's delays; its parameters are those of `lane-2026`."""

    name: ClassVar[str] = "clairvoyant"
    summary: ClassVar[str] = "drift plus penalty with this round's true delays (a yardstick)"
    requires: ClassVar[frozenset[str]] = frozenset({"channel_state"})

    V: float = 5.0
    quota_slack: float = 0.125

    def __post_init__(self) -> None:
        check_trade_off(self.V, 0.0, self.quota_slack)

    def init(self, problem: Problem) -> State:
        """Return an empty state: nothing is learned."""
        return {}

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Serve the matching with the largest objective."""
        assert context.channel_state is not None, "a run supplies what a policy requires"
        problem = context.problem
        delay = np.nan_to_num(context.channel_state, nan=np.inf) / problem.deadline_s
        return best_round(delay, context.queue, context.available, self.V * problem.channels)
