"""The tables of a leaderboard as rows of text, which the HTML page, the documentation and the terminal share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedlane.experiments.arena.critical_difference import CriticalDifference
from fedlane.experiments.arena.entrants import OPTIMUM, YARDSTICK
from fedlane.experiments.arena.standings import Difference, Standing
from fedlane.number_text import number_text

COLUMNS = (
    *("rank", "policy", "simulated time (s)", "to the fastest", "time to target (s)", "rank to target"),
    *("min. participation", "shortfall", "Jain", "late uploads", "energy (J)", "final accuracy", "epsilon"),
)
"""Headings of a world's table."""
LEAGUE_COLUMNS = ("policy", "average rank", "fastest in", "does not meet quotas in", "time relative to the fastest")
"""Headings of a league's table."""
FAILS = "does not meet quotas"
NONE = "-"


@dataclass(frozen=True)
class TableRow:
    """A row of a world's table.

    Attributes:
        group: The group of rows: a league, the entrants of a league that do not meet the quotas, or yardsticks.
        label: The entrant.
        cells: The row's texts, one for each of `COLUMNS`.
    """

    group: str
    label: str
    cells: tuple[str, ...]


def world_rows(standings: Sequence[Standing]) -> list[TableRow]:
    """Return the table of one world, in the order of its standings."""
    return [TableRow(group_of(standing), standing.label, _cells(standing)) for standing in standings]


def group_of(standing: Standing) -> str:
    """Return the group of rows that an entrant belongs to."""
    if standing.league == YARDSTICK:
        return "yardsticks (not ranked)"
    league = f"league {standing.league}"
    return league if standing.meets else f"{league}: {FAILS}"


def _cells(standing: Standing) -> tuple[str, ...]:
    return (
        NONE if standing.rank is None else str(standing.rank),
        f"{standing.label} ({len(standing.seeds)} seeds)" if standing.policy == OPTIMUM else standing.label,
        measured(standing, "simulated_time_s", "{:.1f}"),
        difference_text(standing.difference),
        target_text(standing),
        NONE if standing.target_rank is None else str(standing.target_rank),
        *(mean_text(standing, name, "{:.3f}") for name in ("min_participation", "shortfall", "jain")),
        mean_text(standing, "late_share", "{:.1%}"),
        mean_text(standing, "energy_j", "{:.1f}"),
        mean_text(standing, "final_accuracy", "{:.3f}"),
        mean_text(standing, "epsilon", "{:.3g}"),
    )


def mean_text(standing: Standing, measure: str, form: str) -> str:
    """Return a measure's mean as text."""
    mean = standing.mean(measure)
    return number_text(mean, form) if math.isfinite(mean) else NONE


def measured(standing: Standing, measure: str, form: str) -> str:
    """Return a measure's mean and its 95% interval as text."""
    value = standing.measure(measure)
    mean, low, high = value["mean"], value["low"], value["high"]
    if mean is None:
        return NONE
    ends = "" if low is None or high is None else f" [{number_text(low, form)}, {number_text(high, form)}]"
    return number_text(mean, form) + ends


def percent(share: float) -> str:
    """Return a share as a percentage with its sign."""
    return number_text(share, "{:+.1%}")


def longer(share: float) -> str:
    """Return as text how much longer a time is, as a percentage of another."""
    return f"{number_text(share, '{:.1%}')} longer"


def difference_text(difference: Difference | None) -> str:
    """Return a difference to the fastest with its interval and its corrected p-value; a dash for the fastest."""
    if difference is None:
        return NONE
    if difference.low is None or difference.high is None or difference.p_value is None:
        return percent(difference.mean)
    ends = f"[{percent(difference.low)}, {percent(difference.high)}]"
    p_text = "p < 0.001" if difference.p_value < 0.001 else f"p = {number_text(difference.p_value, '{:.3f}')}"
    return f"{percent(difference.mean)} {ends} {p_text}"


def target_text(standing: Standing) -> str:
    """Return the median time to the target accuracy, and how many seeds reach it if not all do."""
    time_s = standing.time_to_target_s
    if math.isnan(time_s):
        return NONE
    count = f"{standing.reached} of {len(standing.seeds)}"
    if math.isinf(time_s):
        return f"not reached ({count})"
    return number_text(time_s, "{:.1f}") + ("" if standing.reached == len(standing.seeds) else f" ({count})")


def league_rows(standings: Sequence[Standing], league: str, ranks: CriticalDifference | None) -> list[tuple[str, ...]]:
    """Return the table of a league over all worlds: one row per entrant, the best average rank first."""
    members = [standing for standing in standings if standing.league == league]
    labels = list(dict.fromkeys(standing.label for standing in members))
    average = {} if ranks is None else dict(zip(ranks.labels, ranks.ranks, strict=True))
    ratios = {label: relative_time(members, label) for label in labels}
    rows: list[tuple[str, ...]] = []
    for label in sorted(labels, key=lambda label: (average.get(label, 0.0), ratios[label])):
        mine = [standing for standing in members if standing.label == label]
        won = [standing.world for standing in mine if standing.rank == 1]
        failed = [standing.world for standing in mine if not standing.meets]
        rank = number_text(average[label], "{:.2f}") if label in average else NONE
        ratio = number_text(ratios[label], "{:.2f}") if math.isfinite(ratios[label]) else NONE
        rows.append((label, rank, ", ".join(won) or NONE, ", ".join(failed) or NONE, ratio))
    return rows


def relative_time(members: Sequence[Standing], label: str) -> float:
    """Return the geometric mean of an entrant's time relative to the fastest, over worlds where it meets the quotas."""
    fastest = {standing.world: standing.mean("simulated_time_s") for standing in members if standing.rank == 1}
    ratios = [
        standing.mean("simulated_time_s") / fastest[standing.world]
        for standing in members
        if standing.label == label and standing.meets and standing.world in fastest
    ]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else math.inf


def tuning_rows(tuned: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the table of tuned values: policy, values, and the ratio of times on the tuning seeds."""
    rows: list[tuple[str, ...]] = []
    for name, entry in tuned.get("policies", {}).items():
        best = entry["trials"][entry["chosen"]]
        ratio = float(np.mean(list(best["time_ratio"].values())))
        values = ", ".join(f"{key} = {value}" for key, value in best["parameters"].items())
        rows.append((str(name), values or "defaults (no trial was better)", number_text(ratio, "{:.3f}")))
    return rows
