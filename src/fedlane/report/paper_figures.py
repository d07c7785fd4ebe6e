"""Figures of the paper's evaluation: panels of curves or bars with 95% intervals, as PNG, PDF and Parquet files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedlane.intervals import student_interval
from fedlane.records import FloatArray
from fedlane.report.figures import COLOURS
from fedlane.validate import InputError

DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Line:
    """One curve or set of bars: x (K,), values (S, K) of S seeds. Colour and dash are indices."""

    x: FloatArray
    values: FloatArray
    colour: int
    dash: int = 0


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Line]
    bars: bool = False
    marks: Mapping[str, FloatArray] | None = None
    """Further values (K,) drawn as short black lines, for example quotas."""
    log: bool = False


def draw(panels: Sequence[Panel], stem: Path, columns: int = 2) -> list[Path]:
    """Draw panels, ``columns`` per row, to STEM.png and STEM.pdf, and write their numbers to STEM.parquet."""
    from matplotlib.figure import Figure

    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.3 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(grid.ravel(), panels, strict=False):
        _bars(axes, panel) if panel.bars else _curves(axes, panel)
        axes.set_title(panel.title, fontsize="medium")
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label)
        axes.grid(alpha=0.3)
        if panel.log:
            axes.set_xscale("log")
            axes.set_yscale("log")
    for axes in grid.ravel()[len(panels) :]:
        axes.set_visible(False)
    entries = {}
    for axes in grid.ravel()[: len(panels)]:
        handles, labels = axes.get_legend_handles_labels()
        entries.update(dict(zip(labels, handles, strict=True)))
    _add_legend(figure, entries)
    written = []
    try:
        for suffix in (".png", ".pdf"):
            figure.savefig(stem.with_suffix(suffix), dpi=150)
            written.append(stem.with_suffix(suffix))
        pq.write_table(numbers(panels), stem.with_suffix(".parquet"), compression="zstd")
    except OSError as error:
        raise InputError(f"figure {stem} cannot be written: {error.strerror}") from error
    return [*written, stem.with_suffix(".parquet")]


def _add_legend(figure: Any, entries: Mapping[str, Any]) -> None:
    """Add a legend below the panels, in as many columns (at most 6) as fit the figure's width."""
    for columns in range(min(6, len(entries)), 0, -1):
        legend = figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside lower center",
            ncols=columns,
            fontsize="small",
            frameon=False,
        )
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def numbers(panels: Sequence[Panel]) -> pa.Table:
    """Table of the drawn numbers: panel, line, x, mean, low, high, seeds."""
    columns: dict[str, list[Any]] = {key: [] for key in ("panel", "line", "x", "mean", "low", "high", "seeds")}
    for panel in panels:
        for name, line in panel.lines.items():
            low, mean, high = student_interval(line.values)
            count = len(line.x)
            columns["panel"] += [f"{panel.title}: {panel.y_label} against {panel.x_label}".removeprefix(": ")] * count
            columns["line"] += [name] * count
            columns["seeds"] += [len(line.values)] * count
            for key, values in (("x", line.x), ("mean", mean), ("low", low), ("high", high)):
                columns[key] += np.asarray(values, np.float64).tolist()
    return pa.table(columns)


def _curves(axes: Any, panel: Panel) -> None:
    for name, line in panel.lines.items():
        low, mean, high = student_interval(line.values)
        colour = COLOURS[line.colour % len(COLOURS)]
        axes.plot(line.x, mean, color=colour, linestyle=DASHES[line.dash], linewidth=1.4, label=name)
        axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)


def _bars(axes: Any, panel: Panel) -> None:
    width = 0.8 / max(len(panel.lines), 1)
    for number, (name, line) in enumerate(panel.lines.items()):
        low, mean, high = student_interval(line.values)
        place = np.arange(len(line.x)) + (number - (len(panel.lines) - 1) / 2) * width
        error = [mean - low, high - mean]
        colour = COLOURS[line.colour % len(COLOURS)]
        axes.bar(place, mean, width, yerr=error, color=colour, error_kw={"linewidth": 0.8}, label=name)
    for name, values in (panel.marks or {}).items():
        axes.hlines(values, np.arange(len(values)) - 0.45, np.arange(len(values)) + 0.45, color="black", label=name)
    first = next(iter(panel.lines.values()))
    axes.set_xticks(np.arange(len(first.x)), [f"{x:g}" for x in first.x])
