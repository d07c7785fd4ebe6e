"""The pictures of a leaderboard: a curve per world, and the average ranks of a league."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fedlane.experiments.arena.critical_difference import CriticalDifference
from fedlane.experiments.arena.entrants import LEAGUES, YARDSTICK
from fedlane.experiments.arena.sentences import OURS
from fedlane.experiments.arena.standings import Standing
from fedlane.report.figures import COLOURS
from fedlane.report.svg_charts import ChartLine, line_chart, rank_chart


def world_chart(curves: pa.Table, standings: Sequence[Standing]) -> str:
    """Draw the curves of one world: accuracy over simulated time if models were trained, else time over rounds.

    The first two of the league that knows delays, the first of every other league, `lane`, and yardsticks (dashed) are
    coloured; the others are pale.

    Args:
        curves: The content of ``curves.parquet``.
        standings: The standings of that world.
    """
    world = standings[0].world
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in curves.to_pylist():
        if row["world"] == world:
            rows.setdefault(f"{row['policy']} (tuned)" if row["tuned"] else row["policy"], []).append(row)
    learned = {label: [row for row in own if row["accuracy"] is not None] for label, own in rows.items()}
    trained = sum(bool(points) for points in learned.values()) > len(rows) / 2
    colours = dict(zip(highlighted(standings), COLOURS, strict=False))
    dashed = {standing.label for standing in standings if standing.league == YARDSTICK}
    lines = []
    for label in [*colours, *(label for label in rows if label not in colours)]:
        points = (learned if trained else rows).get(label)
        if not points:
            continue
        x = [row["clock_s" if trained else "round"] for row in points]
        y = [row["accuracy" if trained else "clock_s"] for row in points]
        lines.append(ChartLine(label, x, y, colours.get(label), label in dashed))
    axes = ("simulated time (s)", "test accuracy") if trained else ("round", "simulated time (s)")
    return line_chart(lines, *axes, f"{world}: {axes[1]} by {axes[0]}, means over seeds")


def highlighted(standings: Sequence[Standing]) -> list[str]:
    """Return the labels whose curves have a colour."""
    first = next(iter(LEAGUES))
    labels = [s.label for s in standings if s.league == first and s.rank is not None][:2]
    labels += [s.label for s in standings if s.league not in (first, YARDSTICK) and s.rank == 1]
    labels += [s.label for s in standings if s.policy == OURS]
    labels += [s.label for s in standings if s.league == YARDSTICK]
    return list(dict.fromkeys(labels))[: len(COLOURS)]


def ranks_chart(ranks: CriticalDifference) -> str:
    """Draw the average ranks of a league and its critical difference."""
    return rank_chart(ranks.labels, ranks.ranks, ranks.groups(), ranks.distance)
