"""Arrays packed for a page: base64 of little-endian typed arrays that a browser reads in place."""

import base64
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedlane.records import BoolArray, FloatArray, IntArray

Packed = dict[str, Any]

NOTHING = 65535
"""Code of NaN; of nobody in packed integers of two bytes (255 in one)."""
ENDLESS = 65534
STEPS = 65532


def packed_floats(values: ArrayLike) -> Packed:
    """float32, NaN included."""
    return _packed("f4", np.asarray(values, "<f4"))


def packed_indices(values: IntArray) -> Packed:
    """Indices, -1 for none: a byte each where they fit."""
    small = values.max(initial=0) < 255
    kind, none = ("u1", 255) if small else ("u2", NOTHING)
    return _packed(kind, np.where(values < 0, none, values).astype("<" + kind))


def packed_bits(values: BoolArray) -> Packed:
    """One bit each, the first one highest."""
    return {**_packed("bits", np.packbits(values)), "shape": list(values.shape)}


def packed_seconds(values: FloatArray) -> Packed:
    """Times of any magnitude in two bytes, evenly spaced in the logarithm; relative error below 1e-3."""
    usual = np.isfinite(values) & (values > 0)
    low, high = (np.log(values[usual].min()), np.log(values[usual].max())) if usual.any() else (0.0, 0.0)
    step = max((high - low) / STEPS, 1e-12)
    codes = np.zeros(values.shape, "<u2")
    codes[usual] = 1 + np.rint((np.log(values[usual]) - low) / step)
    codes[np.isnan(values)] = NOTHING
    codes[np.isposinf(values)] = ENDLESS
    return {**_packed("log", codes), "low": float(low), "step": float(step)}


def packed_levels(values: FloatArray) -> Packed:
    """Numbers from 0 up in two bytes, evenly spaced."""
    usual = np.isfinite(values)
    step = max(float(values[usual].max(initial=0.0)) / STEPS, 1e-12)
    codes = np.full(values.shape, NOTHING, "<u2")
    codes[usual] = np.rint(np.maximum(values[usual], 0.0) / step)
    return {**_packed("level", codes), "step": step}


def _packed(kind: str, array: "np.ndarray[Any, Any]") -> Packed:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
    return {"kind": kind, "shape": list(array.shape), "data": data}
