"""Average ranks over worlds, Friedman's test and Nemenyi's critical difference (Demsar, JMLR 7, 2006).

With k entrants in N worlds, Friedman's test asks whether all have the same distribution of ranks. If they do not, two
average ranks differ significantly if they are at least

    CD = q sqrt(k (k + 1) / (6 N))

apart, where q is the 95% quantile of the studentized range of k means with infinitely many degrees of freedom, divided
by sqrt(2). The test assumes that worlds are independent samples of the worlds that matter. Nine chosen presets are not,
so the result only describes how consistent the order is over these worlds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from fedlane.experiments.arena.standings import Standing
from fedlane.records import FloatArray

LEVEL = 0.05
MIN_ENTRANTS, MIN_WORLDS = 3, 2


@dataclass(frozen=True)
class CriticalDifference:
    """Average ranks of a league over worlds.

    Attributes:
        labels: The entrants, best first.
        ranks: Their average ranks.
        worlds: The worlds in which every entrant has results.
        p_value: P-value of Friedman's test.
        distance: Nemenyi's critical difference.
    """

    labels: tuple[str, ...]
    ranks: tuple[float, ...]
    worlds: tuple[str, ...]
    p_value: float
    distance: float

    def groups(self) -> list[tuple[int, int]]:
        """Return the maximal groups, as first and last place, whose average ranks do not differ significantly."""
        groups: list[tuple[int, int]] = []
        for first in range(len(self.ranks)):
            last = max(k for k in range(first, len(self.ranks)) if self.ranks[k] - self.ranks[first] < self.distance)
            if last > first and not any(last <= end for _, end in groups):
                groups.append((first, last))
        return groups


def nemenyi_distance(entrants: int, worlds: int) -> float:
    """Return Nemenyi's critical difference of average ranks at the level of 5%."""
    quantile = float(studentized_range.ppf(1.0 - LEVEL, entrants, np.inf)) / np.sqrt(2.0)
    return float(quantile * np.sqrt(entrants * (entrants + 1) / (6.0 * worlds)))


def critical_difference(standings: Sequence[Standing], league: str) -> CriticalDifference | None:
    """Compare the entrants of a league over all worlds in which every one of them has results.

    In each world, entrants that meet the quotas are ordered by simulated time, and the others follow by shortfall.

    Args:
        standings: Judged entrants of all worlds.
        league: The league.

    Returns:
        None if fewer than `MIN_ENTRANTS` entrants or `MIN_WORLDS` worlds can be compared.
    """
    members = [standing for standing in standings if standing.league == league]
    labels = list(dict.fromkeys(standing.label for standing in members))
    worlds = list(dict.fromkeys(standing.world for standing in members))
    by_place = {(standing.world, standing.label): standing for standing in members}
    complete = [world for world in worlds if all((world, label) in by_place for label in labels)]
    if len(labels) < MIN_ENTRANTS or len(complete) < MIN_WORLDS:
        return None
    scores = np.array([order_scores([by_place[world, label] for label in labels]) for world in complete])
    ranks = np.array([rankdata(row) for row in scores])
    average = ranks.mean(axis=0)
    best_first = np.argsort(average, kind="stable")
    p_value = float(friedmanchisquare(*ranks.T).pvalue) if np.ptp(average) > 0 else 1.0
    return CriticalDifference(
        tuple(labels[k] for k in best_first),
        tuple(float(average[k]) for k in best_first),
        tuple(complete),
        p_value,
        nemenyi_distance(len(labels), len(complete)),
    )


def order_scores(members: Sequence[Standing]) -> FloatArray:
    """Return scores that order a world's entrants: those that meet the quotas by time, then the rest by shortfall."""
    slowest = max(standing.mean("simulated_time_s") for standing in members)
    return np.array(
        [
            standing.mean("simulated_time_s") if standing.meets else slowest + 1.0 + standing.mean("shortfall")
            for standing in members
        ]
    )
