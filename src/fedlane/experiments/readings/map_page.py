"""The generated page of the map of readings, as Markdown."""

from collections import Counter

import pyarrow as pa

from fedlane.experiments.claims.verdicts import NOT_COMPUTED
from fedlane.experiments.readings.axes import AXES, PRESET
from fedlane.experiments.readings.favourable import favourable_section
from fedlane.experiments.readings.shares import Map, sentences, shares, shares_table

_INTRODUCTION = """\
The paper leaves out constants that its results depend on. Each reading below fills all of them in; the {count}
readings are spread evenly over the axes (a Latin hypercube, fixed before any result was computed). Every claim is
judged under every reading by the criteria of the results page: delays over {seeds} paired seeds, accuracy over
{learning_seeds}, on Fashion-MNIST. That a claim holds under a reading does not make it more likely that the authors
used that reading."""


def map_page(
    verdicts: Map, picture: str, schedule_seeds: int, learning_seeds: int, favourable: pa.Table | None = None
) -> str:
    """Return the page as Markdown.

    Args:
        verdicts: Verdicts by reading.
        picture: Path of the picture, relative to the page.
        schedule_seeds: Seeds of the delays.
        learning_seeds: Seeds of the accuracy.
        favourable: Verdicts under the most favourable reading on fresh seeds, from `favourable_table`.
    """
    rows = shares(verdicts)
    missing = sum(verdict.verdict == NOT_COMPUTED for of_reading in verdicts.values() for verdict in of_reading)
    lines = [
        "# The map of readings",
        "",
        _INTRODUCTION.format(count=len(verdicts), seeds=schedule_seeds, learning_seeds=learning_seeds),
        "",
        sentences(rows),
        "",
        f"![verdicts by claim and reading]({picture})",
        "",
        "## Claims",
        "",
        "Shares of the readings under which each claim was computed. Verdicts are corrected for the number of cases "
        "and claims by Holm's method, as on the results page: this was fixed before the results. It leaves little "
        "to be seen with 5 seeds, so the two columns *uncorrected* were added afterwards: there a claim holds if "
        "every case's own 95% interval lies on the claimed side, and is refuted if one lies wholly on the other. A "
        "claim with many cases is easily refuted so by chance: with 24 cases without any effect, in up to 45% of the "
        "readings. Shares have no population behind them: the levels are our choice, and each counts the same. The "
        "last column names the axes whose levels differ by at least 25 percentage points in the share of readings "
        "under which the claim holds (uncorrected), with the best and the worst level, where the difference exceeds "
        "chance (chi-squared test at 5%, corrected for all claims and axes). Some pairs of levels occur rarely, so an "
        "effect may belong to another axis.",
        "",
        shares_table(rows),
    ]
    if missing:
        reasons = Counter(
            verdict.detail
            for of_reading in verdicts.values()
            for verdict in of_reading
            if verdict.verdict == NOT_COMPUTED
        )
        told = "; ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
        lines += [f"{missing} of {len(rows) * len(verdicts)} cells are not computed: {told}.", ""]
    if favourable is not None:
        reading = next(reading for reading in verdicts if reading.name == favourable["reading"][0].as_py())
        lines += ["## The most favourable reading", "", favourable_section(favourable, reading, schedule_seeds)]
    lines += ["## Axes", "", "| axis | levels | preset `paper-fmnist` |", "|---|---|---|"]
    for axis, level in zip(AXES, PRESET.levels, strict=True):
        lines.append(f"| {axis.name} | {', '.join(axis.levels)} | {level} |")
    lines += ["", "## Readings", "", "| reading | " + " | ".join(axis.name for axis in AXES) + " |"]
    lines.append("|---" * (len(AXES) + 1) + "|")
    lines += [f"| {reading.name} | " + " | ".join(reading.levels) + " |" for reading in verdicts]
    return "\n".join(lines) + "\n"
