"""Packing of arrays for a page: base64 of little-endian typed arrays, which a browser reads without parsing."""

import base64
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedlane.records import BoolArray, FloatArray, IntArray

Packed = dict[str, Any]

NOTHING = 65535
"""Code for NaN, and for "none" in two-byte indices (255 in one-byte indices)."""
INFINITE = 65534
"""Code for infinity."""
STEPS = 65532
"""Number of steps between the smallest and the largest packed value."""


def packed_floats(values: ArrayLike) -> Packed:
    """Pack numbers as float32; NaN is kept."""
    return _packed("f4", np.asarray(values, "<f4"))


def packed_indices(values: IntArray) -> Packed:
    """Pack indices, with -1 for none, in one byte each if they fit and in two otherwise."""
    small = values.max(initial=0) < 255
    kind, none = ("u1", 255) if small else ("u2", NOTHING)
    return _packed(kind, np.where(values < 0, none, values).astype("<" + kind))


def packed_bits(values: BoolArray) -> Packed:
    """Pack booleans as bits, most significant bit first."""
    return {**_packed("bits", np.packbits(values)), "shape": list(values.shape)}


def packed_seconds(values: FloatArray) -> Packed:
    """Pack times in two bytes each, evenly spaced in the logarithm; the relative error is below 1e-3."""
    regular = np.isfinite(values) & (values > 0)
    low, high = (np.log(values[regular].min()), np.log(values[regular].max())) if regular.any() else (0.0, 0.0)
    step = max((high - low) / STEPS, 1e-12)
    codes = np.zeros(values.shape, "<u2")
    codes[regular] = 1 + np.rint((np.log(values[regular]) - low) / step)
    codes[np.isnan(values)] = NOTHING
    codes[np.isposinf(values)] = INFINITE
    return {**_packed("log", codes), "low": float(low), "step": float(step)}


def packed_levels(values: FloatArray) -> Packed:
    """Pack numbers that are not negative in two bytes each, evenly spaced."""
    regular = np.isfinite(values)
    step = max(float(values[regular].max(initial=0.0)) / STEPS, 1e-12)
    codes = np.full(values.shape, NOTHING, "<u2")
    codes[regular] = np.rint(np.maximum(values[regular], 0.0) / step)
    return {**_packed("level", codes), "step": step}


def _packed(kind: str, array: "np.ndarray[Any, Any]") -> Packed:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
    return {"kind": kind, "shape": list(array.shape), "data": data}
