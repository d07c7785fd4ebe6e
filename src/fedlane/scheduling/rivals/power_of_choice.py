"""Power of choice with stale losses (rpow-d).

Cho, Wang and Joshi, *Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection
Strategies* (2020, arXiv 2010.01243). d candidates are drawn without replacement in proportion to their records, and the
N candidates with the largest loss are served. The loss is the one that came with the last upload; the original's other
variants ask every candidate for its current loss.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.records import BoolArray, Context, State
from fedlane.rng import RoundRng
from fedlane.scheduling.ranges import ParameterRange, Tunable
from fedlane.scheduling.rivals.client_choice import ClientChoice, largest, weighted_keys
from fedlane.validate import at_least


@dataclass(frozen=True)
class PowerOfChoice(ClientChoice):
    """Serves the largest losses among d = ``candidates`` x N random clients; clients without a loss come first."""

    name: ClassVar[str] = "power-of-choice"
    summary: ClassVar[str] = "the largest reported losses among random candidates (Cho et al. 2020, rpow-d)"
    requires: ClassVar[frozenset[str]] = frozenset({"losses", "sizes"})
    ranges: ClassVar[Mapping[str, Tunable]] = {
        "candidates": ParameterRange(1.0, 10.0, "log"),
    }

    candidates: float = 2.0

    def __post_init__(self) -> None:
        at_least("candidates", self.candidates, 1)

    def chosen(self, state: State, context: Context, rng: RoundRng) -> BoolArray:
        """Return the candidates with the largest losses."""
        problem = context.problem
        assert context.losses is not None, "a run supplies what a policy requires"
        assert problem.sizes is not None, "every run sets the sizes"
        draws = rng.uniform(2, problem.clients)
        share = problem.sizes / problem.sizes.sum(axis=1, keepdims=True)
        asked = round(self.candidates * problem.channels)
        candidates = largest(weighted_keys(share, draws[:, 0]), context.available, asked, draws[:, 1])
        loss = np.where(np.isnan(context.losses.mean), np.inf, context.losses.mean)
        return largest(loss, candidates, problem.channels, draws[:, 1])
