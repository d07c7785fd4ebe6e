"""What a figure shows: which rows of the data form a line, a point, a panel or a cell of a heat map."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedlane.intervals import bounded_interval, measure_bounds
from fedlane.records import FloatArray
from fedlane.report.measure_labels import measure_label
from fedlane.report.plot_data import PlotData, Value
from fedlane.report.plot_request import (
    PlotRequest,
    check_name,
    check_points,
    line_settings,
    with_defaults,
    with_short_policies,
)
from fedlane.report.plot_rows import MeasuredRows
from fedlane.validate import InputError

MAX_POINTS = 400
"""Largest number of points of a curve."""
Kind = Literal["curves", "line", "points", "heat"]


@dataclass(frozen=True)
class Series:
    """One line or set of points with 95% intervals over seeds: K points.

    Attributes:
        label: Text in the legend.
        colour: Index of the colour.
        dash: Index of the dashes and the marker among the lines of this colour.
        x: (K,): positions; the index of the category if the x axis has categories.
        low: (K,): lower bound.
        mean: (K,): mean over seeds.
        high: (K,): upper bound.
        seeds: (K,): number of seeds.
    """

    label: str
    colour: int
    x: FloatArray
    low: FloatArray
    mean: FloatArray
    high: FloatArray
    seeds: FloatArray
    dash: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Colour and dashes, which give the order of the lines in the legend."""
        return self.colour, self.dash


@dataclass(frozen=True)
class PlotPanel:
    """One set of axes: its series, or the cells (rows, columns) of a heat map."""

    title: str
    series: tuple[Series, ...] = ()
    cells: FloatArray | None = None


@dataclass(frozen=True)
class PlotLayout:
    """A figure, ready to be drawn.

    Attributes:
        kind: Curves over rounds, a line over a numeric key, points over categories, or a heat map.
        panels: The panels.
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        legend: Title of the legend, or label of the colours of a heat map; None without a legend.
        columns: Names of the categories on the x axis, if it has categories.
        rows: Names of the categories on the y axis of a heat map.
        remarks: What a reader of the figure must know.
    """

    kind: Kind
    panels: tuple[PlotPanel, ...]
    x_label: str
    y_label: str
    legend: str | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def plot_layout(data: PlotData, request: PlotRequest) -> PlotLayout:
    """Arrange data as a figure.

    Args:
        data: The data.
        request: Names of keys and measures.

    Raises:
        InputError: A name is unknown, the data lacks a value, or runs with different settings would share a point.
    """
    request = with_defaults(data, request)
    data = with_short_policies(data, request)
    x, y, color = request.x or "", request.y or "", request.color
    for name in filter(None, (color, request.facet)):
        if not (name == color and y in data.keys and name in data.measures):
            check_name("key", name, data.keys, data)
    if y in data.keys:
        return _heat_map(data, request)
    if y in data.curves:
        rows = MeasuredRows(data, y, np.array([np.isfinite(curve).any() for curve in data.curves[y]]))
        return _arranged(rows.having(request), request, "curves", _curve_series)
    rows = MeasuredRows(data, y, np.isfinite(data.measures[y])).having(request)
    numeric = all(isinstance(data.keys[x][row], float) for row in rows.index)
    if not numeric and color is None and x in ("policy", "run"):
        request = replace(request, color=x)
    return _arranged(rows, request, "line" if numeric and x != "seed" else "points", _key_series)


SeriesMaker = Callable[[PlotData, Sequence[int], PlotRequest, Sequence[Value]], "tuple[FloatArray, list[FloatArray]]"]


def _arranged(rows: MeasuredRows, request: PlotRequest, kind: Kind, make: SeriesMaker) -> PlotLayout:
    """Split rows into panels and series."""
    data, x, y = rows.data, request.x or "", request.y or ""
    _refuse_mixed(rows, request)
    colours = _values(data, rows.index, request.color)
    settings = line_settings(data, rows.index, request)
    groups = _groups(data, rows.index, settings.apart)
    categories = _values(data, rows.index, x) if kind == "points" else []
    panels = []
    for facet in _values(data, rows.index, request.facet):
        series = []
        for colour, value in enumerate(colours):
            members = [r for r in rows.index if _is(data, r, request.facet, facet)]
            members = [r for r in members if _is(data, r, request.color, value)]
            for dash, (group, rows_of_group) in enumerate(groups.items()):
                if joined := [r for r in members if r in rows_of_group]:
                    label = ", ".join(filter(None, (text_of(value), group)))
                    line = _series(label, colour, *make(data, joined, request, categories), y)
                    series.append(replace(line, dash=dash))
        panels.append(PlotPanel(_title(request.facet, facet), tuple(series)))
    repeated = request.color == x and kind == "points"  # the axis already names what the colours show
    return PlotLayout(
        kind=kind,
        panels=tuple(panels),
        x_label=measure_label(x).with_unit if x in data.curves else x,
        y_label=measure_label(y).with_unit,
        legend=None if len(groups) == 1 and (repeated or len(colours) == 1) else request.color,
        columns=tuple(map(text_of, categories)),
        remarks=(*rows.remarks, *(f"{name} changes with {x}" for name in settings.along), *_seed_remarks(panels, kind)),
    )


def _groups(data: PlotData, rows: Sequence[int], names: Sequence[str]) -> dict[str, set[int]]:
    """Rows by the text of their values of some keys; one group with an empty text without keys."""
    members: dict[tuple[Value | None, ...], set[int]] = {}
    for row in rows:
        members.setdefault(tuple(data.keys[name][row] for name in names), set()).add(row)

    def text(name: str, value: Value | None) -> str:
        shown = "none" if value is None else text_of(value)
        return shown if name == "policy" else f"{name}={shown}"

    ascending = sorted(members, key=lambda values: [v if isinstance(v, float) else 0.0 for v in values])
    return {", ".join(map(text, names, values)): members[values] for values in ascending}


def _curve_series(
    data: PlotData, members: Sequence[int], request: PlotRequest, categories: Sequence[Value]
) -> tuple[FloatArray, list[FloatArray]]:
    """Rounds in which every seed has a value: the mean of x over seeds, and the values of y by round."""
    x, y = ([data.curves[name or ""][row] for row in members] for name in (request.x, request.y))
    rounds = min(map(len, x))
    across = np.stack([curve[:rounds] for curve in x])
    values = np.stack([curve[:rounds] for curve in y])
    complete = np.flatnonzero(np.isfinite(across).all(axis=0) & np.isfinite(values).all(axis=0))
    if not len(complete):
        raise InputError(f"no round has a value of {request.y} for every seed")
    kept = complete[np.unique(np.linspace(0, len(complete) - 1, MAX_POINTS).round().astype(int))]
    return across[:, kept].mean(axis=0), list(values[:, kept].T)


def _key_series(
    data: PlotData, members: Sequence[int], request: PlotRequest, categories: Sequence[Value]
) -> tuple[FloatArray, list[FloatArray]]:
    """Each value of the key x, in ascending order or as a category, and the measure's values there."""
    shown = data.keys[request.x or ""]
    values = data.measures[request.y or ""]
    present = _values(data, members, request.x)
    positions = [categories.index(value) if categories else float(value or 0.0) for value in present]
    return np.array(positions, np.float64), [
        values[[row for row in members if shown[row] == value]] for value in present
    ]


def _series(label: str, colour: int, x: FloatArray, values: Sequence[FloatArray], measure: str) -> Series:
    bounds, scale = measure_bounds(measure), measure_label(measure).scale
    low, mean, high = np.array([bounded_interval(point, bounds) for point in values]).T * scale
    return Series(label, colour, x, low, mean, high, np.array([len(point) for point in values], np.float64))


def _heat_map(data: PlotData, request: PlotRequest) -> PlotLayout:
    """Means over seeds for every pair of values of two keys."""
    x, y, measure = request.x or "", request.y or "", request.color or ""
    rows = MeasuredRows(data, measure, np.isfinite(data.measures[measure])).having(replace(request, color=None))
    _refuse_mixed(rows, replace(request, color=y))
    columns, lines = (_values(data, rows.index, name) for name in (x, y))
    scale = measure_label(measure).scale
    members: dict[tuple[Value | None, ...], list[int]] = {}
    panel_values = data.keys.get(request.facet or "", [""] * data.rows)
    for r in rows.index:
        members.setdefault((data.keys[x][r], data.keys[y][r], panel_values[r]), []).append(r)
    panels = []
    for facet in _values(data, rows.index, request.facet):
        cells = np.full((len(lines), len(columns)), np.nan)
        for at in np.ndindex(cells.shape):
            averaged = members.get((columns[at[1]], lines[at[0]], facet))
            if averaged:
                cells[at] = scale * data.measures[measure][averaged].mean()
        panels.append(PlotPanel(_title(request.facet, facet), cells=cells))
    names = [tuple(map(text_of, values)) for values in (columns, lines)]
    remark = f"means over {_range([len(averaged) for averaged in members.values()])}"
    label = measure_label(measure).with_unit
    return PlotLayout("heat", tuple(panels), x, y, label, names[0], names[1], (*rows.remarks, remark))


def _refuse_mixed(rows: MeasuredRows, request: PlotRequest) -> None:
    error = check_points(rows.data, rows.index, request)
    if error is not None:
        raise error


def _values(data: PlotData, rows: Sequence[int], name: str | None) -> list[Value]:
    """Different values of a key: numbers in ascending order, texts as they appear; one empty text without a key."""
    if name is None or name not in data.keys:
        return [""]
    values = list(dict.fromkeys(value for value in (data.keys[name][row] for row in rows) if value is not None))
    return sorted(values) if all(isinstance(value, float) for value in values) else values


def _is(data: PlotData, row: int, name: str | None, value: Value) -> bool:
    return name is None or name not in data.keys or data.keys[name][row] == value


def text_of(value: Value) -> str:
    """A key's value as text."""
    return f"{value:g}" if isinstance(value, float) else value


def _title(key: str | None, value: Value) -> str:
    if key is None:
        return ""
    return text_of(value) if key in ("policy", "run", "scenario") else f"{key} = {text_of(value)}"


def _seed_remarks(panels: Sequence[PlotPanel], kind: Kind) -> list[str]:
    counts = [int(count) for panel in panels for series in panel.series for count in series.seeds]
    if max(counts) == 1:
        return ["one seed: no interval"]
    shape = "bars" if kind == "points" else "bands"
    single = "; points of one seed have no interval" if min(counts) == 1 else ""
    return [f"{shape}: 95% intervals over {_range(counts)}{single}"]


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{high} seed{'s' if high > 1 else ''}" if low == high else f"{low} to {high} seeds"
