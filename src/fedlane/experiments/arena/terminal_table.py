"""The leaderboard in the terminal and as JSON."""

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from fedlane.experiments.arena.arena_measures import MEASURES
from fedlane.experiments.arena.critical_difference import critical_difference
from fedlane.experiments.arena.entrants import LEAGUES
from fedlane.experiments.arena.leaderboard_tables import LEAGUE_COLUMNS, NONE, league_rows
from fedlane.experiments.arena.standings import Standing


def league_tables(standings: Sequence[Standing]) -> list[Table]:
    """Return a table for each league that has entrants; it counts the worlds that the page names."""
    tables, worlds = [], len({standing.world for standing in standings})
    for league in LEAGUES:
        rows = league_rows(standings, league, critical_difference(standings, league))
        if rows:
            table = Table(title=f"League {league}")
            for column in LEAGUE_COLUMNS:
                table.add_column(column, overflow="fold")
            for label, rank, won, failed, ratio in rows:
                table.add_row(label, rank, _count(won, worlds), _count(failed, worlds), ratio)
            tables.append(table)
    return tables


def _count(names: str, worlds: int) -> str:
    """Return how many worlds a cell of the league's table names."""
    return NONE if names == NONE else f"{len(names.split(', '))} of {worlds}"


def leaderboard_json(standings: Sequence[Standing]) -> dict[str, Any]:
    """Return the standings as plain values: one entry per world and entrant."""
    return {"standings": [_entry(standing) for standing in standings]}


def _entry(standing: Standing) -> dict[str, Any]:
    target_s, difference = standing.time_to_target_s, standing.difference
    return {
        "world": standing.world,
        "policy": standing.policy,
        "tuned": standing.tuned,
        "league": standing.league,
        "parameters": standing.parameters,
        "meets_quotas": standing.meets,
        "rank": standing.rank,
        "target_rank": standing.target_rank,
        **{name: dict(standing.measure(name)) for name in MEASURES if name != "time_to_target_s"},
        "median_time_to_target_s": target_s if math.isfinite(target_s) else None,
        "reached": standing.reached,
        "difference": None
        if difference is None
        else {"mean": difference.mean, "low": difference.low, "high": difference.high, "p_value": difference.p_value},
    }
