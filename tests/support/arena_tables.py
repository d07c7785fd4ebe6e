"""Leaderboard tables made by hand."""

import numpy as np
import pyarrow as pa

from fedlane.experiments.arena.arena_measures import MEASURES
from fedlane.experiments.arena.playing import CURVE_COLUMNS, leaderboard_schema


def entrant(policy, times, *, world="w", shortfall=0.0, league="delays", tuned=False, targets=None, accuracy=None):
    """Rows of an entrant, one per seed."""
    rows = []
    for seed, time_s in enumerate(times):
        measures = {**dict.fromkeys(MEASURES, None), "simulated_time_s": float(time_s), "shortfall": shortfall}
        measures |= {"min_participation": 0.2, "jain": 0.9, "late_share": 0.1, "energy_j": 5.0, "epsilon": 2.0}
        if targets is not None:
            measures |= {"time_to_target_s": targets[seed], "final_accuracy": accuracy or 0.7}
        head = {"world": world, "policy": policy, "tuned": tuned, "league": league, "seed": seed}
        rows.append({**head, **measures, "rounds": 100, "target_accuracy": 0.65, "parameters": policy})
    return rows


def leaderboard(*groups):
    """The table of some entrants."""
    return pa.Table.from_pylist([row for group in groups for row in group], leaderboard_schema())


def curves(table):
    """Straight curves for every entrant of a table."""
    rows = []
    for row in table.to_pylist():
        if row["seed"] == 0:
            for point in (50, 100):
                head = (row["world"], row["policy"], row["tuned"], row["league"], point)
                clock_s = row["simulated_time_s"] * point / 100
                rows.append(dict(zip(CURVE_COLUMNS, (*head, clock_s, row["final_accuracy"]), strict=True)))
    return pa.Table.from_pylist(rows)


def noisy(mean, seeds=6, spread=1.0, seed=0):
    """Times around a mean."""
    return mean + spread * np.random.default_rng(seed).standard_normal(seeds)
