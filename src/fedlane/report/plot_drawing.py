"""Drawing a figure for print, in the colours of the report page, with the same bytes for the same data."""

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlane.report.figures import COLOURS
from fedlane.report.plot_layout import PlotLayout, PlotPanel, Series
from fedlane.validate import InputError

if TYPE_CHECKING:  # matplotlib is imported when a figure is drawn
    from matplotlib.figure import Figure

WIDTHS_IN = {"column": 3.5, "full": 7.16}
"""Widths of a figure in inches: one column and the full width of a two-column paper."""
KINDS = ("pdf", "svg", "png")
RUN_COLOURS = tuple(COLOURS[k] for k in (0, 2, 3, 4, 7, 5, 6))
"""Colours of runs in the order of the report page (assets/format.js)."""
DASHES = ("-", (0, (4, 2.5)), (0, (1.3, 1.8)), (0, (6, 2, 1.3, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, MUTED, RULE, MISSING = "#16202b", "#53606f", "#e2e6ea", "#e9eef3"
"""Text, axes, grid and missing cells, as on the page."""
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 7.5,
    "axes.titlepad": 3,
    "axes.labelpad": 2.5,
    "axes.linewidth": 0.6,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "legend.borderaxespad": 0.2,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "fedlane",
    "savefig.dpi": 300,
}
NO_DATE = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
MOST_NUMBERED = 8
"""Largest number of rows and columns of a heat map with a number in each cell, and of ticks at the data's places."""


def draw_plot(layout: PlotLayout, kind: str, width: str = "column", log: str = "") -> bytes:
    """Draw a figure.

    Args:
        layout: The figure.
        kind: Format: ``pdf`` (fonts embedded), ``svg`` (text as outlines) or ``png`` (300 dpi).
        width: ``column`` or ``full``.
        log: Axes with a logarithmic scale: ``x``, ``y``, ``xy`` or none.

    Returns:
        The content of the file. It has no date: the same data give the same bytes.
    """
    import matplotlib

    _check_log(layout, log)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the user's settings must not change the figure
        matplotlib.rcParams.update(STYLE)
        figure = _figure(layout, WIDTHS_IN[width], log)
        content = io.BytesIO()
        figure.savefig(content, format=kind, metadata=NO_DATE[kind])
    return content.getvalue()


def _check_log(layout: PlotLayout, log: str) -> None:
    """Raise `InputError` if a logarithmic axis would have to show 0 or less."""
    for axis, part in (("x", "x"), ("y", "mean")):
        if axis not in log:
            continue
        if layout.kind == "heat" or (axis == "x" and layout.columns):
            raise InputError("categories have no logarithmic scale")
        if any((getattr(series, part) <= 0).any() for panel in layout.panels for series in panel.series):
            raise InputError(f"a logarithmic {axis} axis needs values greater than 0")


def _figure(layout: PlotLayout, width_in: float, log: str) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    count = len(layout.panels)
    columns = min(count, 2 if width_in < 5 else 4)
    if layout.kind == "heat" and width_in < 5:
        columns = min(count, 1 if len(layout.columns) > 4 else 2)
    rows = -(-count // columns)
    spacing = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.04, hspace=0.04)
    figure = Figure(figsize=(width_in, _height_in(layout, width_in, rows, columns)), layout=spacing)
    FigureCanvasAgg(figure)  # gives the size of texts
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    _fill(figure, grid, layout)
    for number, axes in enumerate(grid.ravel()):
        axes.set_visible(number < count)
        if number + columns >= count and number < count:  # the lowest panel of its column
            axes.tick_params(labelbottom=True)
    if layout.kind != "heat":
        _scale(grid, layout, log)
        _categories(figure, grid, layout)
        if layout.legend is not None:
            _legend(figure, grid, layout)
    _axis_labels(figure, grid, layout, count)
    return figure


def _height_in(layout: PlotLayout, width_in: float, rows: int, columns: int) -> float:
    panel_in = width_in / columns
    if layout.kind == "heat":
        return rows * min(max(0.6 + 0.28 * len(layout.rows), 1.3), 0.95 * panel_in + 0.4)
    lines = len({series.label for panel in layout.panels for series in panel.series})
    legend_in = 0.0 if layout.legend is None else 0.15 * (1 + lines * columns // (4 if width_in < 5 else 8))
    return rows * min(max(0.62 * panel_in, 1.35), 2.6) + legend_in + 0.15


def _fill(figure: "Figure", grid: Any, layout: PlotLayout) -> None:
    """Draw the content of every panel."""
    if layout.kind == "heat":
        _draw_heat_maps(figure, grid, layout)
        return
    places = sorted({series.place for panel in layout.panels for series in panel.series})
    spread = 0.0 if layout.kind != "points" or layout.legend is None else 0.6 / len(places)
    for axes, panel in zip(grid.ravel(), layout.panels, strict=False):
        axes.grid(axis="y" if layout.kind == "points" else "both")
        axes.set_title(panel.title)
        for series in panel.series:
            if layout.kind == "points":
                _draw_points(axes, series, spread * (places.index(series.place) - (len(places) - 1) / 2))
            else:
                _draw_line(axes, series, marked=layout.kind == "line")


def run_style(number: int, dash: int = 0) -> tuple[str, Any, str]:
    """Colour, dashes and marker of the run with this number; after seven runs the dashes change, as on the page.

    Args:
        number: Index of the run's colour.
        dash: Index of the run among those of this colour.
    """
    turn, place = divmod(number, len(RUN_COLOURS))
    return RUN_COLOURS[place], DASHES[(turn + dash) % len(DASHES)], MARKERS[(place + dash) % len(MARKERS)]


def _draw_line(axes: Any, series: Series, *, marked: bool) -> None:
    colour, dashes, marker = run_style(*series.place)
    if (series.seeds > 1).any():
        axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.16, linewidth=0)
    style = {"marker": marker, "markeredgecolor": "white", "markeredgewidth": 0.4} if marked else {}
    axes.plot(series.x, series.mean, color=colour, linestyle=dashes, label=series.label, **style)


def _draw_points(axes: Any, series: Series, offset: float) -> None:
    colour, _, marker = run_style(*series.place)
    style = {"markeredgecolor": "white", "markeredgewidth": 0.4, "markersize": 4.5, "elinewidth": 1.0, "capsize": 2}
    ends = [series.mean - series.low, series.high - series.mean]
    axes.errorbar(series.x + offset, series.mean, ends, fmt=marker, color=colour, label=series.label, **style)


def _draw_heat_maps(figure: "Figure", grid: Any, layout: PlotLayout) -> None:
    """Draw heat maps that share one scale from white to the page's first colour and on to dark."""
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    shades = LinearSegmentedColormap.from_list("fedlane", ["#ffffff", COLOURS[0], "#00263b"])
    colours = shades.with_extremes(bad=MISSING)
    values = np.concatenate([panel.cells.ravel() for panel in layout.panels if panel.cells is not None])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    scale = Normalize(low - 0.05 * (high - low), high if high > low else low + 1.0)
    numbered = max(len(layout.columns), len(layout.rows)) <= MOST_NUMBERED
    for axes, panel in zip(grid.ravel(), layout.panels, strict=False):
        assert panel.cells is not None, "a heat map has cells"
        image = axes.pcolormesh(np.ma.masked_invalid(panel.cells), cmap=colours, norm=scale, rasterized=False)
        image.set_edgecolor("white")
        image.set_linewidth(0.6)
        axes.set_title(panel.title)
        axes.set_xticks(np.arange(len(layout.columns)) + 0.5, layout.columns)
        axes.set_yticks(np.arange(len(layout.rows)) + 0.5, layout.rows)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if numbered:
            _number_cells(axes, panel, high - low, scale, colours)
    bar = figure.colorbar(
        image, ax=list(grid.ravel()), label=layout.legend, fraction=0.05, pad=0.02, aspect=22 * grid.shape[0]
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2)


def _number_cells(axes: Any, panel: PlotPanel, span: float, scale: Any, colours: Any) -> None:
    """Write each cell's value into it, in white on dark cells."""
    cells = panel.cells
    assert cells is not None, "a heat map has cells"
    decimals = 0 if span >= 50 else 1 if span >= 2 else 2 if span >= 0.2 else 3
    size = 6.5 if cells.shape[1] <= 6 else 5.5
    for row, column in np.argwhere(np.isfinite(cells)):
        value = cells[row, column]
        luminance = float(np.dot(np.asarray(colours(scale(value)))[:3] ** 2.2, (0.2126, 0.7152, 0.0722)))
        ink = "white" if luminance < 0.25 else INK
        place = {"ha": "center", "va": "center", "fontsize": size, "color": ink}
        axes.text(column + 0.5, row + 0.5, f"{value:.{decimals}f}", **place)


def _scale(grid: Any, layout: PlotLayout, log: str) -> None:
    """Choose the scales and the ticks of both axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    first = grid[0, 0]
    for axis, name in ((first.xaxis, "x"), (first.yaxis, "y")):
        if name not in log:
            axis.set_major_locator(MaxNLocator(5 if grid.shape[1] == 1 else 4))
            continue
        (first.set_xscale if name == "x" else first.set_yscale)("log")
        low, high = axis.get_view_interval()
        places = sorted({x for panel in layout.panels for series in panel.series for x in series.x.tolist()})
        if name == "x" and layout.kind == "line" and len(places) <= MOST_NUMBERED:
            axis.set_ticks(places)
        elif high / low < 1000:  # few powers of ten are in sight: label places between them
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 100 else (1.0, 3.0)))
        axis.set_minor_locator(NullLocator())
        if high / low < 1e5:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _categories(figure: "Figure", grid: Any, layout: PlotLayout) -> None:
    """Name the categories on the x axis; long names are turned so that they do not overlap."""
    if not layout.columns:
        return
    width_pt = 72 * figure.get_size_inches()[0] / grid.shape[1] - 30
    room = width_pt / len(layout.columns) / 3.9  # characters at 7 pt
    turned = max(map(len, layout.columns)) > room
    style = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if turned else {}
    for axes in grid.ravel():
        axes.set_xticks(range(len(layout.columns)), layout.columns, **style)
        axes.set_xlim(-0.5, len(layout.columns) - 0.5)


def _legend(figure: "Figure", grid: Any, layout: PlotLayout) -> None:
    """Put one legend above the panels, in as many columns as fit the width."""
    entries: dict[str, Any] = {}
    for axes in grid.ravel():
        handles, labels = axes.get_legend_handles_labels()
        for label, handle in zip(labels, handles, strict=True):
            entries.setdefault(label, handle)
    order = sorted(entries, key=lambda label: _place_of(label, layout))
    title = None if layout.legend in ("policy", "run") else layout.legend
    for columns in range(len(order), 0, -1):
        legend = figure.legend(
            [entries[label] for label in order], order, title=title, loc="outside upper center", ncols=columns
        )
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def _place_of(label: str, layout: PlotLayout) -> tuple[int, int]:
    return next(s.place for panel in layout.panels for s in panel.series if s.label == label)


def _axis_labels(figure: "Figure", grid: Any, layout: PlotLayout, count: int) -> None:
    """Label the axes: each once for the whole figure."""
    if count == 1:
        grid[0, 0].set_xlabel(layout.x_label)
        grid[0, 0].set_ylabel(layout.y_label)
    else:
        figure.supxlabel(layout.x_label, fontsize=8, color=INK)
        figure.supylabel(layout.y_label, fontsize=8, color=INK)
