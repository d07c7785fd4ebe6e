"""`genie`: the rule of `lane-2026` with the true delay distributions.

It shows how much knowledge would gain that rule. It is a heuristic: the smallest delay that any policy can reach is
`fedlane.theory.optimum`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.records import Context, DelayDistributions, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.lane_2026 import Lane2026
from fedlane.scheduling.lane_kernels import search_batch
from fedlane.scheduling.ranges import Tunable


@dataclass(frozen=True)
class Genie(Lane2026):
    """`lane-2026` with known delay distributions; ``exploration`` is accepted but has no effect."""

    name: ClassVar[str] = "genie"
    summary: ClassVar[str] = "lane-2026's rule with the true delay distributions (a reference, not the optimum)"
    requires: ClassVar[frozenset[str]] = frozenset({"distributions"})
    per_client: ClassVar[frozenset[str]] = frozenset()
    ranges: ClassVar[Mapping[str, Tunable]] = {}  # a yardstick is not tuned

    def caution(self, distributions: DelayDistributions) -> str | None:
        """Warn that on a network that changes with time, genie knows averages only."""
        if distributions.stationary:
            return None
        return (
            f"{self.name} knows the delay distributions as averages over time, but this network changes with time: "
            "they are not what a round will bring, and other policies may be faster"
        )

    def init(self, problem: Problem) -> State:
        """Return an empty state: nothing is learned."""
        return {}

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Search for the matching with the largest objective under the true distributions."""
        truth = context.distributions
        assert truth is not None, "a run supplies what a policy requires"
        replicas, clients, channels, cells = truth.cdf.shape
        slot = np.arange(clients * channels, dtype=np.int32).reshape(1, clients, channels).repeat(replicas, axis=0)
        assignment: IntArray = search_batch(
            context.queue[..., None] * truth.success,
            truth.cdf.mean(axis=3) + 1e-9,
            np.zeros(truth.success.shape),
            np.ones(truth.success.shape, np.int32),
            slot,
            truth.cdf.reshape(replicas, clients * channels, cells),
            context.available,
            context.previous,
            self.V,
        )
        return assignment
