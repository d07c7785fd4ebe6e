"""Standings: who serves the quotas, who is fastest among those, and whether differences are more than chance.

In each world, an entrant *meets the quotas* if its mean shortfall exceeds the smallest one among all ranked entrants of
that world by at most `TOLERANCE`. Entrants that meet the quotas are ranked within their league by mean simulated time;
the others are listed apart. Each ranked entrant is compared with the fastest one of its league, paired by seed: a 95%
Student interval of the mean, and a two-sided p-value that Holm's method corrects for the comparisons in that league and
world. The fastest is chosen by the same data, so its own advantage is slightly overstated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from fedlane.experiments.arena.arena_measures import MEASURES
from fedlane.experiments.arena.entrants import LEAGUES, YARDSTICK
from fedlane.experiments.claims.cases import Differs, holm
from fedlane.intervals import interval, measure_bounds
from fedlane.records import FloatArray

TOLERANCE = 0.02
"""Largest excess of the mean shortfall over the smallest one in a world."""
LEVEL = 0.05
Measure = Mapping[str, float | None]
"""Mean, low and high of a 95% interval; None where there is none."""


@dataclass(frozen=True)
class Difference:
    """How much longer an entrant takes than the fastest of its league.

    Attributes:
        mean: Mean over seeds, as a share of the fastest's mean time.
        low: Lower end of its 95% interval; None for a single seed.
        high: Upper end.
        p_value: Two-sided p-value after Holm's correction; None for a single seed.
    """

    mean: float
    low: float | None
    high: float | None
    p_value: float | None

    @property
    def decided(self) -> bool:
        """Whether the difference is more than chance at the level of 5%."""
        return self.p_value is not None and self.p_value < LEVEL


@dataclass(frozen=True)
class Standing:
    """An entrant in a world.

    Attributes:
        world: The world.
        policy: The policy's name.
        tuned: Whether its parameters come from tuning.
        league: Its league, or `YARDSTICK`.
        parameters: The policy with its parameters.
        values: (S,) by measure: one value per seed, NaN where there is none.
        seeds: The seeds.
        meets: Whether it meets the quotas; None for a yardstick.
        rank: Rank in its league by simulated time; None if it is not ranked.
        target_rank: Rank in its league by the median time to the target accuracy; None if the target is not reached.
        difference: Difference to the fastest of its league; None for the fastest and for those that are not ranked.
    """

    world: str
    policy: str
    tuned: bool
    league: str
    parameters: str
    values: Mapping[str, FloatArray]
    seeds: tuple[int, ...]
    meets: bool | None = None
    rank: int | None = None
    target_rank: int | None = None
    difference: Difference | None = None

    @property
    def label(self) -> str:
        """The name, with a remark if the parameters are tuned."""
        return f"{self.policy} (tuned)" if self.tuned else self.policy

    def mean(self, measure: str) -> float:
        """Mean over the seeds that have the measure; NaN if none has."""
        values = self.values[measure][~np.isnan(self.values[measure])]
        return float(values.mean()) if len(values) else np.nan

    def measure(self, name: str) -> Measure:
        """Mean and 95% interval of a measure."""
        return interval(self.values[name][~np.isnan(self.values[name])], measure_bounds(name))

    @property
    def time_to_target_s(self) -> float:
        """Median time to the target accuracy; infinite if half of the seeds or more do not reach it, NaN if unknown."""
        if np.isnan(self.values["final_accuracy"]).all():
            return np.nan
        times = self.values["time_to_target_s"]
        return float(np.median(np.where(np.isnan(times), np.inf, times)))

    @property
    def reached(self) -> int:
        """Number of seeds that reach the target accuracy."""
        return int((~np.isnan(self.values["time_to_target_s"])).sum())


def standings(table: pa.Table) -> list[Standing]:
    """Judge a leaderboard's numbers.

    Args:
        table: The content of ``leaderboard.parquet``.

    Returns:
        World by world; in each, league by league, ranked entrants first by rank, then those that do not meet the quotas
        by shortfall; yardsticks last.
    """
    judged = []
    for members in _by_world(table).values():
        ranked = [standing for standing in members if standing.league != YARDSTICK]
        limit = TOLERANCE + min((standing.mean("shortfall") for standing in ranked), default=np.nan)
        ranked = [replace(s, meets=bool(s.mean("shortfall") <= limit + 1e-12)) for s in ranked]
        for league in LEAGUES:
            judged += _league([standing for standing in ranked if standing.league == league])
        yardsticks = [standing for standing in members if standing.league == YARDSTICK]
        judged += sorted(yardsticks, key=lambda standing: standing.mean("simulated_time_s"))
    return judged


def _by_world(table: pa.Table) -> dict[str, list[Standing]]:
    """Return the entrants of every world, not judged yet, in the order of the table."""
    rows: dict[tuple[str, str, bool], list[dict[str, object]]] = {}
    for row in table.to_pylist():
        rows.setdefault((row["world"], row["policy"], row["tuned"]), []).append(row)
    worlds: dict[str, list[Standing]] = {}
    for (world, policy, tuned), own in rows.items():
        own = sorted(own, key=lambda row: int(str(row["seed"])))
        values = {name: np.array([row[name] for row in own], np.float64) for name in MEASURES}
        seeds = tuple(int(str(row["seed"])) for row in own)
        head = own[0]
        standing = Standing(world, policy, tuned, str(head["league"]), str(head["parameters"]), values, seeds)
        worlds.setdefault(world, []).append(standing)
    return worlds


def _league(members: Sequence[Standing]) -> list[Standing]:
    """Rank the entrants of a league in a world; those that do not meet the quotas come last."""
    serving = sorted((s for s in members if s.meets), key=lambda s: s.mean("simulated_time_s"))
    failing = sorted((s for s in members if not s.meets), key=lambda s: s.mean("shortfall"))
    if not serving:
        return failing
    times = [s.mean("simulated_time_s") for s in serving]
    targets = [s.time_to_target_s for s in serving]
    differences = differences_to_first(serving)
    return [
        replace(
            standing,
            rank=1 + sum(other < time for other in times),
            target_rank=None if not np.isfinite(target) else 1 + sum(other < target for other in targets),
            difference=difference,
        )
        for standing, time, target, difference in zip(serving, times, targets, differences, strict=True)
    ] + failing


def differences_to_first(members: Sequence[Standing]) -> list[Difference | None]:
    """Compare all but the first with the first, by the simulated times on the seeds that both have."""
    first, cases = members[0], []
    for other in members[1:]:
        common = sorted(set(first.seeds) & set(other.seeds))
        times = [s.values["simulated_time_s"][[s.seeds.index(seed) for seed in common]] for s in (first, other)]
        cases.append(Differs(other.label, (times[1] - times[0]) / times[0].mean()))
    several = all(len(case.values) > 1 for case in cases)
    p_values = holm([min(1.0, 2.0 * case.p_holds) for case in cases]) if several else [None] * len(cases)
    compared: list[Difference | None] = [None]
    for case, p_value in zip(cases, p_values, strict=True):
        if p_value is None:
            compared.append(Difference(float(case.values.mean()), None, None, None))
        else:
            compared.append(Difference(*case.interval, p_value))
    return compared
