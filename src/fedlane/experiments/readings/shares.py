"""What the map of readings says: shares of verdicts by claim and by level, and two sentences to quote."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy.stats import chi2_contingency

from fedlane.experiments.claims import CLAIMS, Verdict
from fedlane.experiments.claims.verdicts import DEPENDS, HOLDS, NOT_COMPUTED, NOT_DECIDED, REFUTED, VERDICTS
from fedlane.experiments.readings.axes import AXES, PaperReading

COUNTED = (*VERDICTS, NOT_COMPUTED)
NEARLY_ALL = 0.9
"""Share of readings that counts as nearly all."""
LARGE_EFFECT = 0.25
"""Difference between two levels of an axis, in the share of readings under which a claim holds, that is reported."""
CHANCE = 0.05 / (34 * len(AXES))
"""Largest p-value of a reported difference (chi-squared test), corrected for all claims and axes."""

Map = Mapping[PaperReading, Sequence[Verdict]]
"""Verdicts on all claims by reading."""


@dataclass(frozen=True)
class ClaimShares:
    """One claim over all readings.

    Attributes:
        number: The claim's number.
        claim: Its text.
        counts: Number of readings by verdict.
        uncorrected: Number of readings by verdict without a correction for the number of cases.
        deciding: Axes on which the verdict depends most, each with its best and its worst level, most important first.
    """

    number: int
    claim: str
    counts: Mapping[str, int]
    uncorrected: Mapping[str, int]
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
        plain = [verdicts[reading][first.number - 1].uncorrected for reading in readings]
        counts, uncorrected = ({verdict: row.count(verdict) for verdict in COUNTED} for row in (of_claim, plain))
        text = f"{first.figure}: {first.claim}"
        rows.append(ClaimShares(first.number, text, counts, uncorrected, _deciding(readings, plain)))
    return rows


def _deciding(readings: Sequence[PaperReading], of_claim: Sequence[str]) -> list[str]:
    """Axes whose levels differ most in the share of readings under which a claim holds, by more than chance."""
    effects = []
    for k, axis in enumerate(AXES):
        counts = {level: np.zeros(2) for level in axis.levels}  # how often the claim holds, and how often not
        for reading, verdict in zip(readings, of_claim, strict=True):
            if verdict != NOT_COMPUTED:
                counts[reading.levels[k]][int(verdict != HOLDS)] += 1
        seen = {level: pair for level, pair in counts.items() if pair.sum()}
        table = np.array(list(seen.values()))
        if len(seen) < 2 or not table.sum(axis=0).all():
            continue
        by_level = {level: float(pair[0] / pair.sum()) for level, pair in seen.items()}
        best, worst = max(by_level, key=by_level.__getitem__), min(by_level, key=by_level.__getitem__)
        chance = float(chi2_contingency(table, correction=False).pvalue)
        if by_level[best] - by_level[worst] >= LARGE_EFFECT and chance < CHANCE:
            text = f"{axis.name} ({best}: {by_level[best]:.0%}, {worst}: {by_level[worst]:.0%})"
            effects.append((by_level[best] - by_level[worst], text))
    return [text for _, text in sorted(effects, reverse=True)]


def shares_table(rows: Sequence[ClaimShares]) -> str:
    """Return the shares as a Markdown table."""
    lines = [
        "| # | claim | holds | refuted | holds for some V or rule | not decided | readings | holds, uncorrected "
        "| refuted, uncorrected | depends most on |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        numbers = [
            f"{row.share(verdict):.0%}" if row.judged else "" for verdict in (HOLDS, REFUTED, DEPENDS, NOT_DECIDED)
        ]
        plain = [f"{row.uncorrected[verdict] / row.judged:.0%}" if row.judged else "" for verdict in (HOLDS, REFUTED)]
        cells = [str(row.number), row.claim, *numbers, str(row.judged), *plain, "; ".join(row.deciding[:2])]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def sentences(rows: Sequence[ClaimShares]) -> str:
    """Return sentences to quote: which claims hold or are refuted under nearly all, most or no readings."""
    judged = [row for row in rows if row.judged]
    count = max((row.judged for row in judged), default=0)
    return (
        f"Over {count} readings of what the paper leaves out, {_ends(judged, [row.counts for row in judged])} "
        "With so few seeds, the correction leaves most cells undecided, so that holding under no reading is often "
        "a lack of evidence. By each case's own 95% interval, without a correction, "
        f"{_ends(judged, [row.uncorrected for row in judged])}"
    )


def _ends(rows: Sequence[ClaimShares], counts: Sequence[Mapping[str, int]]) -> str:
    """Which claims hold under nearly all readings, under none or under some, and which are refuted under most."""
    held = {row.number: of_row[HOLDS] / row.judged for row, of_row in zip(rows, counts, strict=True)}
    lost = {row.number: of_row[REFUTED] / row.judged for row, of_row in zip(rows, counts, strict=True)}
    nearly_all = [number for number, share in held.items() if share >= NEARLY_ALL]
    none = [number for number, share in held.items() if share == 0]
    between = [f"{number} ({share:.0%})" for number, share in held.items() if 0 < share < NEARLY_ALL]
    most = [f"{number} ({share:.0%})" for number, share in lost.items() if share > 0.5]
    return (
        f"{_claims(nearly_all)} under at least {NEARLY_ALL:.0%} of the readings, and {_claims(none)} under none; "
        f"the share of readings under which each of the others holds is: {', '.join(between) if between else 'none'}. "
        f"Refuted under more than half of the readings: {', '.join(most) if most else 'none'}."
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
    for name in ("number", "verdict", "uncorrected", "effect", "low", "high", "detail"):
        columns[name] = [getattr(verdict, name) for _, verdict in cells]
    return pa.table(columns)


def shown_verdict(verdict: Verdict) -> str:
    """Return the verdict of a cell; where the correction leaves it undecided, what its own intervals say."""
    if verdict.verdict != NOT_DECIDED or verdict.uncorrected == NOT_DECIDED:
        return verdict.verdict
    return f"{verdict.uncorrected}, uncorrected"


def map_of(table: pa.Table) -> Map:
    """Return the map that `map_table` stored."""
    verdicts: dict[PaperReading, list[Verdict]] = {}
    for row in table.to_pylist():
        reading = PaperReading(row["reading"], tuple(row[axis.name] for axis in AXES))
        claim = CLAIMS[row["number"] - 1]
        head = row["number"], claim.figure, claim.text, claim.measure
        effect = row["effect"], row["low"], row["high"]
        verdict = Verdict(*head, *effect, row["verdict"], 0, row["detail"], row["uncorrected"])
        verdicts.setdefault(reading, []).append(verdict)
    return verdicts
