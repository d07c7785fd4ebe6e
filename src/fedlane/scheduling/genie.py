"""`genie`: the rule of `lane` with the true delay distributions.

It shows how much knowledge would gain that rule. It is a heuristic: the smallest delay that any policy can reach is
`fedlane.theory.optimum`.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.records import Context, DelayDistributions, FloatArray, IntArray, State
from fedlane.rng import RoundRng
from fedlane.scheduling.lane.search import search_batch
from fedlane.scheduling.policy import BatchPolicy, check_trade_off


@dataclass(frozen=True)
class Genie(BatchPolicy):
    """`lane` with known delay distributions; ``exploration`` is accepted but has no effect: nothing is unknown."""

    name: ClassVar[str] = "genie"
    summary: ClassVar[str] = "lane's rule with the true delay distributions (a reference, not the optimum)"
    version: ClassVar[int] = 2  # version 1 was the rule of lane-2026
    requires: ClassVar[frozenset[str]] = frozenset({"distributions"})

    V: float = 7.0
    exploration: float = 0.6
    quota_slack: float = 0.125

    def __post_init__(self) -> None:
        check_trade_off(self.V, self.exploration, self.quota_slack)

    def caution(self, distributions: DelayDistributions) -> str | None:
        """Warn that on a network that changes with time, genie knows averages only."""
        if distributions.stationary:
            return None
        return (
            f"{self.name} knows the delay distributions as averages over time, but this network changes with time: "
            "they are not what a round will bring, and other policies may be faster"
        )

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Search for the matching with the largest objective under the true distributions."""
        truth = context.distributions
        assert truth is not None, "a run supplies what a policy requires"
        rows: FloatArray = np.concatenate([truth.cdf, truth.success[..., None]], axis=-1).astype(np.float32)
        weight, cells = context.queue[..., None] * truth.success, truth.cdf.shape[-1]
        widths = np.full(cells, 1.0 / cells)
        return search_batch(weight, rows, context.available, context.previous, self.V, False, widths)
