"""The picture of the map of readings: a row for each claim, a column for each reading, coloured by the verdict."""

from collections.abc import Sequence
from pathlib import Path

from fedlane.validate import InputError

COLOURS = {
    "holds": "#0072B2",
    "holds, uncorrected": "#9CCBE6",
    "refuted": "#D55E00",
    "refuted, uncorrected": "#F5C09B",
    "depends on the reading": "#F0E442",
    "not decided": "#BBBBBB",
    "not computed": "#FFFFFF",
}
"""Colours of the verdicts, distinct for colour-blind readers and in print. Uncorrected verdicts are pale."""


def draw_verdict_map(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[str]], stem: Path
) -> list[Path]:
    """Draw a map to STEM.png and STEM.pdf, and return the files.

    Args:
        rows: Labels of the claims.
        columns: Labels of the readings.
        cells: Verdict of each claim under each reading, a list per claim.
        stem: Path without suffix.

    Raises:
        InputError: A file cannot be written.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    names = list(COLOURS)
    values = [[names.index(verdict) for verdict in row] for row in cells]
    figure = Figure(figsize=(6.0 + 0.13 * len(columns), 1.4 + 0.21 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(values, cmap=ListedColormap(list(COLOURS.values())), vmin=-0.5, vmax=len(names) - 0.5, aspect="auto")
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    axes.set_xticks(range(len(columns)), columns, fontsize=5, rotation=90)
    axes.set_xticks([x - 0.5 for x in range(1, len(columns))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(rows))], minor=True)
    axes.grid(which="minor", color="white", linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.set_xlabel("reading")
    shown = [name for name in names if any(name in row for row in cells)]
    patches = [Patch(facecolor=COLOURS[name], edgecolor="#888888", label=name) for name in shown]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(shown), fontsize="small", frameon=False)
    written = [stem.with_suffix(suffix) for suffix in (".png", ".pdf")]
    try:
        for path in written:
            figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"figure {stem} cannot be written: {error.strerror}") from error
    return written
