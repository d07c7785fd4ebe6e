"""A policy that serves the clients with the largest reported losses."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.matching import greedy_matching
from fedlane.scheduling.policy import Policy


@dataclass(frozen=True)
class LargestLoss(Policy):
    """Serves clients without a report first, then those with the largest mean loss; by root mean square if asked."""

    name: ClassVar[str] = "largest-loss"
    requires: ClassVar[frozenset[str]] = frozenset({"losses", "sizes"})
    by_rms: bool = False

    def init(self, problem):
        return {}

    def select(self, state, context, rng):
        losses = context.losses.rms if self.by_rms else context.losses.mean
        order = np.argsort(-np.where(np.isnan(losses), np.inf, losses), kind="stable")
        order = order[np.argsort(~context.available[order], kind="stable")]
        value = np.where(context.available[:, None], 0.0, np.full((1, context.problem.channels), -np.inf))
        return greedy_matching(value, order)
