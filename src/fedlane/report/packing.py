"""Packing of arrays for a page: base64 of little-endian typed arrays, which a browser reads without parsing."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedlane.records import BoolArray, FloatArray, IntArray

Packed = dict[str, Any]

NOTHING = 65535
"""Code for NaN, and for "none" in two-byte indices (255 in one-byte indices)."""
STEPS = 65532
"""Number of steps between the smallest and the largest packed value."""


def packed_floats(values: ArrayLike) -> Packed:
    """Pack numbers as float32; NaN is kept."""
    return _packed("f4", np.asarray(values, "<f4"))


def packed_doubles(values: ArrayLike) -> Packed:
    """Pack numbers as float64, for values that are also shown elsewhere and must be rounded to the same text."""
    return _packed("f8", np.asarray(values, "<f8"))


def packed_indices(values: IntArray) -> Packed:
    """Pack indices, with -1 for none, in one byte each if they fit and in two otherwise."""
    small = values.max(initial=0) < 255
    kind, none = ("u1", 255) if small else ("u2", NOTHING)
    return _packed(kind, np.where(values < 0, none, values).astype("<" + kind))


def packed_bits(values: BoolArray) -> Packed:
    """Pack booleans as bits, most significant bit first."""
    return {**_packed("bits", np.packbits(values)), "shape": list(values.shape)}


def packed_levels(values: FloatArray) -> Packed:
    """Pack numbers that are not negative in two bytes each, evenly spaced."""
    regular = np.isfinite(values)
    step = max(float(values[regular].max(initial=0.0)) / STEPS, 1e-12)
    codes = np.full(values.shape, NOTHING, "<u2")
    codes[regular] = np.rint(np.maximum(values[regular], 0.0) / step)
    return {**_packed("level", codes), "step": step}


def embedded(data: Mapping[str, Any]) -> str:
    """Return JSON that is safe inside a script element: nothing in it can end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _packed(kind: str, array: "np.ndarray[Any, Any]") -> Packed:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
    return {"kind": kind, "shape": list(array.shape), "data": data}
