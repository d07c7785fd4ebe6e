"""Delays relative to the optimum of `fedlane.theory`, the smallest long-run mean delay that serves the quotas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedlane.intervals import interval
from fedlane.records import FloatArray

RATIO = "delay_over_optimum"
"""Name of the measure: mean delay of a round, divided by the optimum of the same network."""


@dataclass(frozen=True)
class OptimumBySeed:
    """The optimum of the networks of a comparison.

    Attributes:
        quota_slack: Share by which the quotas are lowered.
        round_s: Smallest long-run mean delay of a round in seconds, by seed; NaN where the quotas cannot be served.
    """

    quota_slack: float
    round_s: Mapping[int, float]

    @property
    def content(self) -> dict[str, Any]:
        """The optimum as it is stored in comparison.json, null where the quotas cannot be served."""
        by_seed = {str(seed): None if np.isnan(value) else value for seed, value in self.round_s.items()}
        return {"quota_slack": self.quota_slack, "round_s": by_seed}

    def ratio(self, seeds: Sequence[int], mean_round_s: FloatArray) -> dict[str, Any]:
        """Mean over seeds of the ratio of a run's delay to the optimum, its 95% interval, and the number of seeds."""
        optimal = np.array([self.round_s.get(seed, np.nan) for seed in seeds])
        ratios = (mean_round_s / optimal)[~np.isnan(optimal)]
        return {**interval(ratios, (0.0, np.inf)), "seeds": len(ratios)}


def optimum_caption(content: Mapping[str, Any]) -> str:
    """Explain the column of ratios; empty if the comparison has none."""
    optimum = content.get("optimum")
    if not optimum:
        return ""
    served = sum(value is not None for value in optimum["round_s"].values())
    seeds = "" if served == len(optimum["round_s"]) else f" ({served} of {len(optimum['round_s'])} seeds allow that)"
    return (
        "optimum: the smallest long-run mean delay of any policy that uses every channel and serves "
        f"{1 - optimum['quota_slack']:g} of the quotas{seeds}; a run may end a little below it with quotas unserved"
    )
