"""The command `fedlane plot`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedlane.cli.options import QuietOption
from fedlane.cli.session import messages, print_notes, screen


class FigureWidth(StrEnum):
    """The width of a figure."""

    column = "column"
    full = "full"


class LogAxes(StrEnum):
    """Axes with a logarithmic scale."""

    x = "x"
    y = "y"
    xy = "xy"


def plot(
    folder: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run folders, a folder written by compare, or a sweep's.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Figure to write: .pdf, .svg or .png.")],
    x: Annotated[
        str | None, typer.Option("--x", metavar="KEY", help="Key on the x axis (default for runs: clock_s).")
    ] = None,
    y: Annotated[
        str | None, typer.Option("--y", metavar="MEASURE", help="Measure on the y axis (default for runs: accuracy).")
    ] = None,
    color: Annotated[
        str | None, typer.Option("--color", metavar="KEY", help="Key that the colours show (default: what differs).")
    ] = None,
    facet: Annotated[str | None, typer.Option("--facet", metavar="KEY", help="Key with a panel per value.")] = None,
    width: Annotated[
        FigureWidth, typer.Option("--width", help="One column (3.5 in) or the full width of a page (7.16 in).")
    ] = FigureWidth.column,
    log: Annotated[LogAxes | None, typer.Option("--log", help="Draw these axes with a logarithmic scale.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Draw results as a figure for a paper, with 95% intervals over seeds.

    A KEY is policy, a policy's parameter, seed, or a scenario value such as privacy.epsilon. A MEASURE is a column of
    rounds.parquet or a measure of summary.json. A KEY as --y and a MEASURE as --color give a heat map.
    """
    from fedlane.report.plotting import plot as draw

    with messages.status("Drawing the figure"):
        remarks = draw(folder, out, x=x, y=y, color=color, facet=facet, width=width, log=log or "")
    if not quiet:
        screen.print(f"Wrote {out}", highlight=False, markup=False, soft_wrap=True)
        print_notes(remarks)
