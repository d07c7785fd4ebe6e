"""What the map of readings says: shares of verdicts by claim and by level, and two sentences to quote."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fedlane.experiments.claims import CLAIMS, Verdict
from fedlane.experiments.claims.verdicts import DEPENDS, HOLDS, NOT_COMPUTED, NOT_DECIDED, REFUTED, VERDICTS
from fedlane.experiments.readings.axes import AXES, PaperReading

COUNTED = (*VERDICTS, NOT_COMPUTED)
NEARLY_ALL = 0.9
"""Share of readings that counts as nearly all."""
LARGE_EFFECT = 0.25
"""Difference between two levels of an axis, in the share of readings under which a claim holds, that is reported."""

Map = Mapping[PaperReading, Sequence[Verdict]]
"""Verdicts on all claims by reading."""


@dataclass(frozen=True)
class ClaimShares:
    """One claim over all readings.

    Attributes:
        number: The claim's number.
        claim: Its text.
        counts: Number of readings by verdict.
        deciding: Axes on which the verdict depends most, each with its best and its worst level, most important first.
    """

    number: int
    claim: str
    counts: Mapping[str, int]
    deciding: Sequence[str]

    @property
    def judged(self) -> int:
        """Number of readings under which the claim was computed."""
        return sum(count for verdict, count in self.counts.items() if verdict != NOT_COMPUTED)

    def share(self, verdict: str) -> float:
        """Share of the computed readings that have a verdict; NaN if none was computed."""
        return self.counts[verdict] / self.judged if self.judged else float("nan")


def shares(verdicts: Map) -> list[ClaimShares]:
    """Count the verdicts on each claim."""
    readings = list(verdicts)
    rows = []
    for first in verdicts[readings[0]]:
        of_claim = [verdicts[reading][first.number - 1].verdict for reading in readings]
        counts = {verdict: of_claim.count(verdict) for verdict in COUNTED}
        rows.append(ClaimShares(first.number, f"{first.figure}: {first.claim}", counts, _deciding(readings, of_claim)))
    return rows


def _deciding(readings: Sequence[PaperReading], of_claim: Sequence[str]) -> list[str]:
    """Axes whose levels differ most in the share of readings under which a claim holds."""
    effects = []
    for k, axis in enumerate(AXES):
        by_level: dict[str, float] = {}
        for level in axis.levels:
            computed = [
                verdict == HOLDS
                for reading, verdict in zip(readings, of_claim, strict=True)
                if reading.levels[k] == level and verdict != NOT_COMPUTED
            ]
            if computed:
                by_level[level] = float(np.mean(computed))
        if len(by_level) > 1:
            best, worst = max(by_level, key=by_level.__getitem__), min(by_level, key=by_level.__getitem__)
            text = f"{axis.name} ({best}: {by_level[best]:.0%}, {worst}: {by_level[worst]:.0%})"
            effects.append((by_level[best] - by_level[worst], text))
    return [text for effect, text in sorted(effects, reverse=True) if effect >= LARGE_EFFECT]


def shares_table(rows: Sequence[ClaimShares]) -> str:
    """Return the shares as a Markdown table."""
    lines = [
        "| # | claim | holds | refuted | holds for some V or rule | not decided | readings | depends most on |",
        "|--:|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        numbers = [
            f"{row.share(verdict):.0%}" if row.judged else "" for verdict in (HOLDS, REFUTED, DEPENDS, NOT_DECIDED)
        ]
        deciding = "; ".join(row.deciding[:2])
        cells = [str(row.number), row.claim, *numbers, str(row.judged), deciding]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def sentences(rows: Sequence[ClaimShares]) -> str:
    """Return two sentences: which claims hold under nearly all readings, and which under none."""
    judged = [row for row in rows if row.judged]
    nearly_all = [row.number for row in judged if row.share(HOLDS) >= NEARLY_ALL]
    none = [row.number for row in judged if row.counts[HOLDS] == 0]
    between = [f"{row.number} ({row.share(HOLDS):.0%})" for row in judged if row.number not in {*nearly_all, *none}]
    count = max((row.judged for row in judged), default=0)
    return (
        f"Over {count} readings of what the paper leaves out, {_claims(nearly_all)} under at least {NEARLY_ALL:.0%} of "
        f"the readings, and {_claims(none)} under none. "
        f"The verdict on the other {len(between)} depends on the reading; "
        f"the share of readings under which each holds is: {', '.join(between) if between else 'none'}."
    )


def _claims(numbers: Sequence[int]) -> str:
    if not numbers:
        return "no claim holds"
    listed = ", ".join(str(number) for number in numbers)
    return f"claim {listed} holds" if len(numbers) == 1 else f"claims {listed} hold"


def map_table(verdicts: Map) -> pa.Table:
    """Return every cell of the map: reading, the level on each axis, claim, verdict, effect and its interval."""
    cells = [(reading, verdict) for reading, of_reading in verdicts.items() for verdict in of_reading]
    columns: dict[str, list[object]] = {"reading": [reading.name for reading, _ in cells]}
    for k, axis in enumerate(AXES):
        columns[axis.name] = [reading.levels[k] for reading, _ in cells]
    for name in ("number", "verdict", "effect", "low", "high", "detail"):
        columns[name] = [getattr(verdict, name) for _, verdict in cells]
    return pa.table(columns)


def map_of(table: pa.Table) -> Map:
    """Return the map that `map_table` stored."""
    verdicts: dict[PaperReading, list[Verdict]] = {}
    for row in table.to_pylist():
        reading = PaperReading(row["reading"], tuple(row[axis.name] for axis in AXES))
        claim = CLAIMS[row["number"] - 1]
        head = row["number"], claim.figure, claim.text, claim.measure
        effect = row["effect"], row["low"], row["high"]
        verdicts.setdefault(reading, []).append(Verdict(*head, *effect, row["verdict"], 0, row["detail"]))
    return verdicts
