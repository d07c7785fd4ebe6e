"""The reading under which most claims hold, and its confirmation on fresh seeds.

The best of many readings looks better than it is, because it was chosen on the seeds that it is judged on. So it is
judged once more, by the same criteria, on seeds that no choice has seen.
"""

from dataclasses import replace

import pyarrow as pa

from fedlane.experiments.claims.verdicts import HOLDS, REFUTED
from fedlane.experiments.readings.axes import AXES, PRESET, PaperReading
from fedlane.experiments.readings.mapping import MapPlan
from fedlane.experiments.readings.shares import Map

FRESH_SEED = 1000
"""First of the seeds that confirm the choice."""
FAVOURABLE = "map-favourable"
"""Name of the table of the confirmation."""


def most_favourable(verdicts: Map) -> PaperReading:
    """Return the reading under which most claims hold; of several, the one that refutes fewest; then the first."""

    def rank(reading: PaperReading) -> tuple[int, int]:
        of_reading = [verdict.verdict for verdict in verdicts[reading]]
        return of_reading.count(HOLDS), -of_reading.count(REFUTED)

    return max(verdicts, key=rank)


def confirmation_plan(plan: MapPlan, reading: PaperReading) -> MapPlan:
    """Return the plan that judges one reading on as many fresh seeds."""
    return replace(plan, readings=(reading,), first_seed=FRESH_SEED)


def favourable_table(verdicts: Map, fresh: Map) -> pa.Table:
    """Return the verdicts under the most favourable reading, on the map's seeds and on fresh ones."""
    reading = next(iter(fresh))
    rows = [
        {"reading": reading.name, "number": old.number, "verdict": old.verdict, "fresh_verdict": new.verdict}
        for old, new in zip(verdicts[reading], fresh[reading], strict=True)
    ]
    return pa.Table.from_pylist(rows)


def favourable_section(table: pa.Table, reading: PaperReading, seeds: int) -> str:
    """Return the section on the most favourable reading, as Markdown."""
    rows = table.to_pylist()
    kept = [row["number"] for row in rows if row["verdict"] == row["fresh_verdict"] == HOLDS]
    lost = [row["number"] for row in rows if row["verdict"] == HOLDS != row["fresh_verdict"]]
    gained = [row["number"] for row in rows if row["fresh_verdict"] == HOLDS != row["verdict"]]
    refuted = [row["number"] for row in rows if row["fresh_verdict"] == REFUTED]
    differs = [
        f"{axis.name} {level} (not {ours})"
        for axis, level, ours in zip(AXES, reading.levels, PRESET.levels, strict=True)
        if level != ours
    ]
    changes = [
        f"{_listed(lost)} no longer {'holds' if len(lost) == 1 else 'hold'}" if lost else "",
        f"{_listed(gained)} {'holds' if len(gained) == 1 else 'hold'} in addition" if gained else "",
        f"{len(refuted)} {'is' if len(refuted) == 1 else 'are'} refuted ({_listed(refuted)})" if refuted else "",
    ]
    confirmed = f"{len(kept)} of these {len(kept) + len(lost)} claims hold again ({_listed(kept)})"
    return (
        f"Most claims hold under {reading.name}: {len(kept) + len(lost)} of {len(rows)}. It differs from the preset "
        f"`paper-fmnist` by {', '.join(differs)}, and is the preset `paper-fmnist-favourable`. It was chosen because "
        "the claims hold under it, not because the authors are known to have used it. Judged once more on seeds "
        f"{FRESH_SEED} to {FRESH_SEED + seeds - 1}, which the choice has not seen, "
        + "; ".join([confirmed, *filter(None, changes)])
        + ".\n"
    )


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(number) for number in numbers) if numbers else "none"
