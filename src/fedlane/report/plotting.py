"""Figures for papers from the results of runs, comparisons and sweeps."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from fedlane.files import write_atomically
from fedlane.report.plot_data import load_plot_data, table_data
from fedlane.report.plot_drawing import KINDS, WIDTHS_IN, draw_plot
from fedlane.report.plot_layout import plot_layout
from fedlane.report.plot_request import PlotRequest
from fedlane.validate import InputError, unknown


def plot(
    source: str | Path | Sequence[str | Path] | pa.Table,
    out: str | Path,
    *,
    x: str | None = None,
    y: str | None = None,
    color: str | None = None,
    facet: str | None = None,
    width: str = "column",
    log: str = "",
) -> list[str]:
    """Draw results to a PDF, SVG or PNG file; docs/figures.md shows what x, y, color and facet do.

    Args:
        source: A run folder, several of them, a folder written by `fedlane compare`, the folder of a sweep, or a table
            with one row per cell and seed.
        out: The file to write; its ending chooses the format.
        x: Key on the x axis, or a column of rounds.parquet. Default for runs: ``clock_s``.
        y: Measure, or a column of rounds.parquet. Default for runs: ``accuracy``. A key, with a measure as ``color``,
            gives a heat map.
        color: Key whose values have different colours. Default: what differs between the runs, the policy first.
        facet: Key whose values have different panels.
        width: ``column`` (3.5 in) or ``full`` (7.16 in).
        log: Axes with a logarithmic scale: ``x``, ``y`` or ``xy``.

    Returns:
        Remarks for the caption: the number of seeds behind the intervals, and what was left out.

    Raises:
        InputError: A name or a file is wrong, or runs with different settings would be averaged.

    Examples:
        >>> import pyarrow as pa
        >>> from fedlane.report import plot
        >>> table = pa.table({
        ...     "policy": ["lane"] * 4, "seed": [0, 1, 0, 1], "privacy.epsilon": [1.0, 1.0, 8.0, 8.0],
        ...     "final_accuracy": [0.50, 0.54, 0.71, 0.73],
        ... })
        >>> plot(table, "epsilon.pdf", x="privacy.epsilon", y="final_accuracy")
        ['bands: 95% intervals over 2 seeds']
    """
    path = Path(out)
    kind = check_options(path, width, log)
    if isinstance(source, pa.Table):
        data = table_data(source)
    else:
        folders = [source] if isinstance(source, str | Path) else list(source)
        data = load_plot_data([Path(folder) for folder in folders])
    layout = plot_layout(data, PlotRequest(x, y, color, facet))
    try:
        write_atomically(path, draw_plot(layout, kind, width, log))
    except OSError as error:
        raise InputError(f"figure {path} cannot be written: {error.strerror}") from error
    return list(layout.remarks)


def check_options(path: Path, width: str, log: str) -> str:
    """Return the format that a file's ending names; raise `InputError` if it, the width or ``log`` is unknown."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise InputError(f"figure {path} must end in .pdf, .svg or .png")
    if width not in WIDTHS_IN:
        raise unknown("width", width, WIDTHS_IN)
    if log not in ("", "x", "y", "xy"):
        raise InputError(f"log must be x, y or xy, got '{log}'")
    return kind
