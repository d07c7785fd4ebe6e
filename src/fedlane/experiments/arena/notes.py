"""Notes for readers of the leaderboard: what was played, and how the numbers are computed."""

import pyarrow as pa

from fedlane.experiments.arena.arena_measures import SERVED_SHARE
from fedlane.experiments.arena.entrants import OPTIMUM, YARDSTICK
from fedlane.experiments.arena.standings import TOLERANCE

FINAL_SEEDS = range(5000, 5020)
"""Seeds of the published leaderboard, used once, after everything else was frozen."""
NOTES = f"""
Simulated time is the sum of the durations of all rounds. Entrants that meet the quotas are ranked within their league
by its mean over seeds.

A client's shortfall is the amount by which its share of punctual rounds falls below {SERVED_SHARE:g} times its quota,
regardless of the policy's own slack; an entrant's shortfall is the mean over clients. An entrant meets the quotas if
its shortfall exceeds the smallest one of all ranked entrants in that world by at most {TOLERANCE:g}. The other entrants
are listed separately, because a policy can be fast by starving clients. Where quotas are small, this rule is coarse:
with 1,000 clients and 100 channels, the lowered quota is below 0.09, so an entrant may meet the quotas on average
although it never serves some clients (see the smallest participation).

Differences from the fastest are paired by seed and have 95% Student intervals. Their p-values are two-sided and
corrected by Holm's method for the comparisons of one league in one world; a difference is called significant at the
level of 5%. The fastest entrant is chosen from the same data, so its lead is slightly overstated.

For the average ranks, entrants that do not meet the quotas are placed after the others in each world, in order of
shortfall. Friedman's test and Nemenyi's critical difference assume that the worlds are independent samples. Our presets
were chosen and are not, so these figures only describe how consistent the order is. A policy and its tuned form count
as two entrants. The time relative to the fastest is the geometric mean over the worlds in which the entrant meets the
quotas, so it cannot be used to compare entrants that fail in different worlds.

Time to target is the median over seeds; a seed that never reaches the target counts as infinite. Epsilon is the largest
value of all clients; the losses that a policy uses are paid from the same budget.

A policy without the remark "tuned" has its published defaults; `lane` and `lane-2026` have FedLane's own defaults,
which were developed by hand on other seeds of some of these worlds. If a policy chooses clients only, channels are
assigned by max-min matching on the policy's own estimates. Tuning prefers values that serve the quotas in more worlds,
and the fastest among those, so tuned values may take longer than the defaults.

Yardsticks are not ranked. `genie` knows the true delay distributions, and `clairvoyant` knows the delays of the coming
round. The optimum is the smallest possible long-run mean duration of a round at {SERVED_SHARE:g} of the quotas,
computed exactly, times the number of rounds. It exists for small static networks with independent rounds, on seeds
whose quotas can be served. Its row is the mean over these seeds only, so other rows must not be divided by it. For the
other worlds no bound is shown, because none is exact. A short run may be faster than the optimum, because its quotas
may not be served yet.
"""


def facts(table: pa.Table) -> str:
    """Return one sentence that says what was played."""
    rows = table.to_pylist()
    worlds, seeds, rounds = (sorted({row[name] for row in rows}) for name in ("world", "seed", "rounds"))
    entrants = {(row["policy"], row["tuned"]) for row in rows if row["league"] != YARDSTICK}
    span = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    final = "the final seeds" if seeds == list(FINAL_SEEDS) else "not the final seeds, which are 5000 to 5019"
    between = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds from {seeds[0]} to {seeds[-1]}"
    places = f"{len(worlds)} world{'s' * (len(worlds) != 1)}"
    return f"{len(entrants)} entrants in {places}, {span} rounds, {between} ({final})."


def notes(table: pa.Table) -> list[str]:
    """Return the notes on measures, ranks, tests and yardsticks."""
    lines = [" ".join(paragraph.split()) for paragraph in NOTES.strip().split("\n\n")]
    rows = table.select(["world", "policy", "target_accuracy"]).to_pylist()
    optimum = list(dict.fromkeys(row["world"] for row in rows if row["policy"] == OPTIMUM))
    lines.append(f"The optimum is shown for {', '.join(optimum)}." if optimum else "The optimum is not available here.")
    targets = {row["world"]: row["target_accuracy"] for row in rows if row["target_accuracy"]}
    if targets:
        stated = ", ".join(f"{world} {accuracy:g}" for world, accuracy in targets.items())
        lines.append(f"The target accuracies, fixed in advance, are: {stated}.")
    return lines
