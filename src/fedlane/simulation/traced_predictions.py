"""The predictions of a trace: their arrays, and the number of uploads that they cover."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedlane.delay_predictions import NAMES, covered, ordered_or_none
from fedlane.records import IntArray
from fedlane.validate import InputError

if TYPE_CHECKING:
    from fedlane.simulation.trace import Trace


def prediction_arrays(replicas: int, rounds: int, channels: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of predictions, unset."""
    return {name: np.full((replicas, rounds, channels), np.nan, np.float32) for name in NAMES}


def covered_uploads(arrays: Mapping[str, NDArray[Any]], deadline_s: float, rows: slice = slice(None)) -> IntArray:
    """Count the uploads in their predicted intervals, for each replica and round.

    Args:
        arrays: Arrays (R, S, N) of a trace that have a channel axis, by name; see `Trace.window`.
        deadline_s: The deadline in seconds.
        rows: Rows of the second axis, by default all.
    """
    low_s, _, high_s = (arrays[name][:, rows] for name in NAMES)
    download_s, compute_s, upload_s = (arrays[name][:, rows] for name in ("download_s", "compute_s", "upload_s"))
    inside = covered(low_s, high_s, download_s + compute_s + upload_s, arrays["punctual"][:, rows], deadline_s)
    return inside.sum(axis=2)


def predicted_uploads(trace: "Trace") -> IntArray:
    """Count the uploads that have a prediction, in each replica (R,).

    A federation's rounds that a crash cut off have none, and only a federation has such rounds.
    """
    if trace.predicted_low_s is None or trace.segments is not None:
        return trace.counts()[0].sum(axis=1)
    return np.isfinite(trace.predicted_low_s).sum(axis=(1, 2))


def check_predictions(trace: "Trace", deadline_s: float) -> None:
    """Raise `InputError` unless the predictions of a trace from a file, if it has any, can be those of a run."""
    window = trace.window()
    if trace.covered is None or np.isnan(window[NAMES[0]]).all():
        return
    if not ordered_or_none(*(window[name][trace.client >= 0] for name in NAMES)).all():
        raise InputError(f"trace.{NAMES[0]}, {NAMES[1]} and {NAMES[2]} must be at least 0 and in order")
    counted = covered_uploads(window, deadline_s)
    if np.any(trace.covered < 0) or not np.array_equal(trace.covered[:, trace.first :], counted):
        raise InputError("trace.covered does not agree with the predictions")
