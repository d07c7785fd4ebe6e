"""What a reader of the leaderboard must know: the facts of the run, and how its numbers are computed."""

import pyarrow as pa

from fedlane.experiments.arena.arena_measures import SERVED_SHARE
from fedlane.experiments.arena.entrants import OPTIMUM, YARDSTICK
from fedlane.experiments.arena.standings import TOLERANCE

FINAL_SEEDS = range(5000, 5020)
"""Seeds of the published leaderboard, used once, after everything else was frozen."""
NOTES = f"""
Simulated time is the sum of all rounds' durations. Ranks are by its mean, within a league, among entrants that meet
the quotas.

Shortfall is the mean over clients of what a client's share of punctual rounds lacks of {SERVED_SHARE:g} times its
quota, whatever the policy's own slack. An entrant meets the quotas if its shortfall exceeds the smallest one of all
ranked entrants in that world by at most {TOLERANCE:g}; the others are listed apart, because a policy that starves
clients is fast. Where quotas are small, this rule is coarse: with 1,000 clients and 100 channels the lowered quota is
below 0.09, so an entrant may meet the quotas on average while it never serves some clients (see the smallest
participation).

Differences to the fastest are paired by seed, with 95% Student intervals; p-values are two-sided and corrected by
Holm's method for the comparisons of one league in one world. The fastest is chosen by the same data, so its lead is
slightly overstated.

Average ranks: in each world, entrants that do not meet the quotas follow the others, by shortfall. Friedman's test and
Nemenyi's critical difference take the worlds as independent samples, which chosen presets are not; they describe how
consistent the order is. A policy and its tuned form count as two entrants. The time relative to the fastest is the
geometric mean over the worlds in which the entrant meets the quotas, so that entrants that fail in different worlds
cannot be compared by it.

Time to target is the median over seeds; a seed that never reaches the target counts as infinite. Epsilon is the largest
of all clients; losses that a policy uses are paid from the same budget.

A policy named without remark has its published defaults; `lane` and `lane-2026` have FedLane's own, which were
developed by hand on other seeds of some of these worlds. Policies that choose clients only get channels by max-min
matching on their own estimates. Tuning prefers values that serve the quotas in more worlds, and among those the
fastest, so tuned values may take longer than the defaults.

Yardsticks are not ranked. `genie` knows the true delay distributions and `clairvoyant` the delays of the coming round.
The optimum is the exact smallest long-run mean round at {SERVED_SHARE:g} of the quotas, times the number of rounds, on
seeds whose quotas can be served; it exists for small static networks with independent rounds. Its row is the mean over
these seeds only, so that other rows must not be divided by it. Other worlds have no
bound, because none is exact. A short run may be faster than the optimum while quotas are not served yet.
"""


def facts(table: pa.Table) -> str:
    """Say in one sentence what was played."""
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
    lines.append(f"The optimum is shown for {', '.join(optimum)}." if optimum else "No world here has the optimum.")
    targets = {row["world"]: row["target_accuracy"] for row in rows if row["target_accuracy"]}
    if targets:
        stated = ", ".join(f"{world} {accuracy:g}" for world, accuracy in targets.items())
        lines.append(f"Target accuracies, stated beforehand: {stated}.")
    return lines
