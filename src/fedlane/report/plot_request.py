"""The names that a user gives to the parts of a figure: checked, and completed with defaults."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedlane.report.plot_data import NUMERIC_KEYS, PlotData
from fedlane.validate import InputError, nearest


@dataclass(frozen=True)
class PlotRequest:
    """The names that a user gave to the parts of a figure; None where the default is used."""

    x: str | None = None
    y: str | None = None
    color: str | None = None
    facet: str | None = None


def check_name(kind: str, name: str, known: Iterable[str], data: PlotData) -> None:
    """Raise `InputError` if a key or measure is unknown; the message suggests a similar name or lists the names."""
    names = list(known)
    if name in names:
        return
    listed = names if kind == "measure" else ["policy", "seed", *varying_keys(data, range(data.rows))]
    if name == "feasible_scale":
        raise InputError("feasible_scale describes the network, not a policy; summary.json has its mean over seeds")
    hint = _similar(name, names) or f": choose from {', '.join(dict.fromkeys(n for n in listed if n in names))}"
    raise InputError(f"unknown {kind} '{name}'{hint}")


def _similar(name: str, names: Sequence[str]) -> str:
    """Suggest the names of which a part was given, or the name that was mistyped; an empty text without any."""
    part = [f"'{other}'" for other in names if name.casefold() in other.casefold()]
    return f" (did you mean {' or '.join(part[:4])}?)" if part else nearest(name, names)


def varying_keys(data: PlotData, rows: Sequence[int] | range) -> list[str]:
    """Names of keys that differ between rows, without seeds, the runs' names and values that follow from others.

    A run's scenario also holds its policy's parameters, under ``policies.``; in a sweep, these are keys of the grid.
    """
    ignored = ("seed", "run")
    derived = "policies." if data.curves else ()
    return [
        name
        for name, values in data.keys.items()
        if name not in ignored and not name.startswith(derived) and len({values[row] for row in rows}) > 1
    ]


def _learns_numbers(data: PlotData) -> bool:
    """Whether the runs have losses but no accuracy, because numbers are learned."""
    has = {name: any(np.isfinite(c).any() for c in data.curves.get(name, [])) for name in ("accuracy", "loss")}
    return has["loss"] and not has["accuracy"]


def with_defaults(data: PlotData, request: PlotRequest) -> PlotRequest:
    """Fill in the defaults of x, y and colour, after a check of x and y."""
    x, y = request.x, request.y
    if not data.curves and (x is None or y is None):
        raise InputError("a sweep needs both --x (a key) and --y (a measure)")
    y = y or ("accuracy" if not _learns_numbers(data) else "loss")
    if y in data.keys and y not in data.measures:
        if request.color not in data.measures:
            raise InputError(
                f"--y must be a measure, got the key '{y}'; a heat map over two keys takes the measure as --color"
            )
        x = x or ""
    else:
        check_name("measure", y, [*data.curves, *data.measures], data)
        x = x or ("clock_s" if y in data.curves else "policy")
    if y in data.curves and x not in data.curves:
        check_name("key", x, [*data.curves, *data.keys], data)
        raise InputError(
            f"{y} is recorded in every round: draw it over clock_s or round, "
            f"or draw a measure of whole runs over {x}, for example final_accuracy"
        )
    if y not in data.curves:
        if x in data.curves and x not in data.keys:
            raise InputError(f"{y} is a measure of whole runs: draw it over a key such as policy, not over {x}")
        check_name("key", x, data.keys, data)
    request = replace(request, x=x, y=y)
    return request if request.color is not None else replace(request, color=_default_color(data, request))


def _default_color(data: PlotData, request: PlotRequest) -> str | None:
    """The key that tells the lines of a figure apart: the policy if that is enough, else another key that differs."""
    rows = range(data.rows)
    candidates = line_settings(with_short_policies(data, request), rows, request).apart
    if check_points(data, rows, request) is not None:
        candidates = list(dict.fromkeys([*candidates, "policy", *varying_keys(data, rows)]))
        if request.y in data.curves:
            candidates.append("run")
    for name in candidates:
        if name in data.keys and name not in (request.x, request.facet):
            chosen = replace(request, color=name)
            if check_points(with_short_policies(data, chosen), rows, chosen) is None:
                return name
    return None


@dataclass(frozen=True)
class LineSettings:
    """Settings that differ between points which would otherwise form one line.

    Attributes:
        apart: Keys whose values belong to different lines, the policy first.
        along: Keys with another value at every value of x, so that they change along the line.
    """

    apart: list[str]
    along: list[str]


def line_settings(data: PlotData, rows: Iterable[int], request: PlotRequest) -> LineSettings:
    """Settings other than x, colour and facet that differ between points of one colour in one panel.

    A measure of whole runs at V=1 of one policy and at V=10 of another must not be joined by a line. A policy's
    parameters follow from the policy, and the scenario's name says nothing that its values do not say.
    """
    x = request.x or ""
    if request.y in data.curves or x not in data.keys or x == "run":
        return LineSettings([], [])
    lines: dict[tuple[object, ...], list[int]] = {}
    shown = [name for name in (request.color, request.facet) if name in data.keys]
    for row in rows:
        if data.keys[x][row] is not None:
            lines.setdefault(tuple(data.keys[name or ""][row] for name in shown), []).append(row)
    apart: list[str] = []
    along: list[str] = []
    for members in lines.values():
        for name in varying_keys(data, members):
            if name in (x, *shown, "scenario") or _follows_from_policy(data, name, members):
                continue
            pairs = {(data.keys[x][row], data.keys[name][row]) for row in members}
            paired = name != "policy" and len(pairs) == len({pair[0] for pair in pairs}) == len({p[1] for p in pairs})
            (along if paired else apart).append(name)
    names = dict.fromkeys(apart)
    return LineSettings(sorted(names, key=lambda name: name != "policy"), [n for n in along if n not in names])


def _follows_from_policy(data: PlotData, name: str, rows: Sequence[int]) -> bool:
    """Whether a key is a property of the policy, such as a parameter, with one value for each policy."""
    if "policy" not in data.keys or name == "policy" or "." in name or name in NUMERIC_KEYS:
        return False
    pairs = {(data.keys["policy"][row], data.keys[name][row]) for row in rows}
    return len(pairs) == len({policy for policy, _ in pairs})


def check_points(data: PlotData, rows: Sequence[int] | range, request: PlotRequest) -> InputError | None:
    """Return an error if rows that differ in more than their seed would share a point of the figure."""
    names = [name for name in (request.x, request.color, request.facet) if name in data.keys]
    points: dict[tuple[object, ...], list[int]] = {}
    for row in rows:
        points.setdefault(tuple(data.keys[name or ""][row] for name in names), []).append(row)
    for members in points.values():
        different = varying_keys(data, members)
        if different:
            listed = ", ".join(different[:3])
            return InputError(f"runs that differ in {listed} would share a point: use --color or --facet with it")
        seeds = [data.keys["seed"][row] for row in members]
        if len(set(seeds)) < len(seeds):
            twice = next(seed for seed in seeds if seeds.count(seed) > 1)
            return InputError(f"seed {twice:g} is given twice with the same settings")
    return None


def with_short_policies(data: PlotData, request: PlotRequest) -> PlotData:
    """Remove from the policies' names the parameters that an axis, a colour or a panel shows."""
    used = {request.x, request.y, request.color, request.facet}
    if "policy" not in data.keys:
        return data
    names = [value if value is None else _without(str(value), used) for value in data.keys["policy"]]
    return replace(data, keys={**data.keys, "policy": names})


def _without(policy: str, names: set[str | None]) -> str:
    head, colon, inline = policy.rpartition(":")
    if not colon or "=" not in inline:
        return policy
    kept = [item for item in inline.split(",") if item.partition("=")[0].strip() not in names]
    return f"{head}:{','.join(kept)}" if kept else head
