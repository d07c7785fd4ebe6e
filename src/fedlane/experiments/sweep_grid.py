"""Grids of a sweep: their values, the product of all of them, and their columns."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from fedlane.scenario.text import to_toml
from fedlane.validate import InputError

GridValue = Any
"""A value of a grid: a plain TOML value."""
OTHER_OPTIONS = {"policy": "--policy", "seed": "--seeds", "seeds": "--seeds", "name": "--set"}
_OPENING, _CLOSING, _QUOTES = "[{", "]}", "\"'"


def parse_grids(settings: Sequence[str]) -> dict[str, list[GridValue]]:
    """Parse the options ``--grid KEY=V1,V2,...``.

    Values are separated by commas outside of brackets and quotes. Each is a TOML value; what is not one is a string.

    Raises:
        InputError: A setting is malformed, has no values, or names a key twice.
    """
    grid: dict[str, list[GridValue]] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InputError(f"--grid '{setting}' must have the form KEY=VALUE,VALUE,...")
        if key in grid:
            raise InputError(f"--grid names {key} twice: list all its values in one --grid")
        grid[key] = [_value(key, item) for item in _split(text)] if text.strip() else []
    return grid


def plain_grid(grid: Mapping[str, Any]) -> dict[str, list[GridValue]]:
    """Return a grid with lists of plain values; arrays, ranges and NumPy numbers are converted.

    Raises:
        InputError: A key's values are not a list.
    """
    plain: dict[str, list[GridValue]] = {}
    for key, values in grid.items():
        if isinstance(values, str) or not hasattr(values, "__iter__"):
            raise InputError(f"the grid of {key} must be a list of values, got {values!r}")
        plain[str(key)] = [value.item() if isinstance(value, np.generic) else value for value in values]
    return plain


def check_grid(grid: Mapping[str, Sequence[GridValue]]) -> None:
    """Raise `InputError` unless a grid has keys, and every key has values that are all different."""
    if not grid:
        raise InputError("the grid is empty: a sweep needs --grid KEY=VALUE,VALUE,... (compare needs none)")
    for key, values in grid.items():
        if key in OTHER_OPTIONS:
            raise InputError(f"--grid cannot vary {key}: use {OTHER_OPTIONS[key]}")
        if not values:
            raise InputError(f"--grid {key} has no values: write {key}=VALUE,VALUE,...")
        twice = next((value for i, value in enumerate(values) if value in values[:i]), None)
        if twice is not None:
            raise InputError(f"--grid {key} has the value {shown(twice)} twice")


def combinations(grid: Mapping[str, Sequence[GridValue]]) -> Iterator[dict[str, GridValue]]:
    """Yield the product of all grids; the last key varies fastest."""
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def grid_column(values: Sequence[GridValue]) -> "pa.Array[Any]":
    """Return a key's values as a column: of numbers if all are, otherwise of texts."""
    if all(isinstance(value, bool) for value in values):
        return pa.array(values, pa.bool_())
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return pa.array(values, pa.int64())
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return pa.array([float(value) for value in values], pa.float64())
    return pa.array([value if isinstance(value, str) else shown(value) for value in values], pa.string())


def shown(value: GridValue) -> str:
    """Return a value as text, as TOML writes it."""
    return to_toml({"value": value}).partition("=")[2].strip()


def _split(text: str) -> list[str]:
    """Split at commas that are outside of brackets and quotes."""
    items, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        else:
            depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and depth == 0 and not quote:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items]


def _value(key: str, text: str) -> GridValue:
    if not text:
        raise InputError(f"--grid {key} has an empty value between its commas")
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError, KeyError):
        return text
