"""`clairvoyant`: the rule of `lane` with this round's true delays. It shows what channel knowledge is worth.

In each round it searches for the matching that maximises

    sum_i Q_i 1{d_ij <= d_max}  -  V N max_i min(d_ij, d_max) / d_max,

drift plus penalty with every delay known before the round. The search is `lane`'s, which finds local optima.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedlane.records import Context, DelayDistributions, IntArray, State
from fedlane.rng import RoundRng
from fedlane.scheduling.genie import Genie
from fedlane.scheduling.lane import cell_cdf
from fedlane.scheduling.policy import problem_of


@dataclass(frozen=True)
class Clairvoyant(Genie):
    """`lane`'s rule with this round's delays known; ``exploration`` is accepted but has no effect."""

    name: ClassVar[str] = "clairvoyant"
    summary: ClassVar[str] = "lane's rule with this round's true delays (a yardstick)"
    requires: ClassVar[frozenset[str]] = frozenset({"channel_state"})

    def caution(self, distributions: DelayDistributions) -> str | None:
        """Return no caution: the delays are those of the round, whether or not the network changes."""
        return None

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Search for the matching with the largest objective; each delay is a distribution of one value."""
        assert context.channel_state is not None, "a run supplies what a policy requires"
        delay = np.nan_to_num(context.channel_state, nan=np.inf) / problem_of(context).deadline_s
        truth = DelayDistributions(cell_cdf(delay), (delay <= 1.0).astype(np.float64), 0.0)
        return super().select(state, replace(context, distributions=truth), rng)
