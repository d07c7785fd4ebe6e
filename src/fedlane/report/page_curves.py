"""The figures of a run over rounds, clients and channels, as means over seeds with their bounds."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fedlane.intervals import bounded_interval, measure_bounds
from fedlane.records import FloatArray, IntArray
from fedlane.report.packing import packed_doubles, packed_floats
from fedlane.report.run_arrays import RunArrays

Statistics = Callable[[FloatArray], tuple[FloatArray, FloatArray, FloatArray]]
"""Maps values (S, ...) of the seeds to a lower bound, a mean and an upper bound, each (...)."""
SHARES = frozenset(("quota", "participation", "selection"))
"""Columns of clients.parquet that are shares of rounds, with the bounds of any share, such as the accuracy."""


def run_curves(arrays: RunArrays, points: int) -> dict[str, Any]:
    """Curves against rounds: mean over seeds and 95% bounds. Rounds are numbered from 1 on the page."""
    rounds = arrays.shape[1]
    clock_s = np.nancumsum(arrays.delay_s, axis=1)
    tested = np.flatnonzero(~np.isnan(arrays.accuracy).any(axis=0)) if rounds else np.arange(0)
    shown = _thinned(np.arange(rounds), points)
    latest = np.arange(rounds) // arrays.client_every  # the last row of clients before or at each round
    queue = _largest(arrays.queue)[:, latest] if arrays.max_queue is None else arrays.max_queue
    curves = {
        "clock": _curve(shown, clock_s, mean_of("cumulative_delay_s")),
        "queue": _curve(shown, queue, mean_of("max_queue")),
    }
    if np.isfinite(arrays.epsilon).any():
        curves["epsilon"] = _curve(shown, _largest(arrays.epsilon)[:, latest], worst)
    if len(tested):
        tested = _thinned(tested, points)
        curves["accuracy"] = _curve(tested, arrays.accuracy, mean_of("accuracy"))
        curves["accuracy"]["clock_s"] = packed_doubles(clock_s[:, tested].mean(axis=0))
    return {**curves, "every": int(shown[1] - shown[0]) if len(shown) > 1 else 1}


def mean_of(measure: str) -> Statistics:
    """Lower bound, mean and upper bound of a measure over seeds, as in the run's summary."""
    return partial(bounded_interval, bounds=measure_bounds(measure))


def _curve(rounds: IntArray, values: FloatArray, bounds: Statistics) -> dict[str, Any]:
    low, mean, high = bounds(values[:, rounds]) if len(rounds) else (np.zeros(0),) * 3
    return {"round": packed_floats(rounds + 1.0), **packed_interval(low, mean, high)}


def packed_interval(low: FloatArray, mean: FloatArray, high: FloatArray) -> dict[str, Any]:
    """Values and their bounds; no bounds if they are all equal to the values, as for a single seed."""
    if all(np.array_equal(bound, mean, equal_nan=True) for bound in (low, high)):
        return {"mean": packed_doubles(mean), "low": None, "high": None}
    return {"mean": packed_doubles(mean), "low": packed_doubles(low), "high": packed_doubles(high)}


def _thinned(rounds: IntArray, points: int) -> IntArray:
    """At most ``points`` of the rounds, evenly spaced, including the last."""
    step = max(1, -(-len(rounds) // points))
    return rounds[(len(rounds) - 1) % step :: step] if len(rounds) else rounds


def _largest(values: FloatArray) -> FloatArray:
    """Maximum over the last axis, ignoring NaN; NaN if there is no value."""
    if values.shape[-1] == 0:
        return np.full(values.shape[:-1], np.nan)
    return np.where(np.isnan(values).all(axis=-1), np.nan, np.nanmax(np.nan_to_num(values, nan=-np.inf), axis=-1))


def span(values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Minimum, mean and maximum over seeds. An interval of the mean would suggest an epsilon that no client has."""
    return values.min(axis=0), values.mean(axis=0), values.max(axis=0)


def worst(values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Minimum over seeds, and twice the maximum: "the largest epsilon" is the largest of all seeds everywhere."""
    return values.min(axis=0), values.max(axis=0), values.max(axis=0)


def client_columns(arrays: RunArrays, every: int, *, by_formula: bool) -> dict[str, Any]:
    """Columns of clients.parquet: mean over seeds and 95% bounds; None if the run did not record the column.

    Args:
        arrays: the run.
        every: stride between the clients.
        by_formula: whether formula (6) is shown; older run folders have it for every mechanism.
    """
    result: dict[str, Any] = {}
    for key, values in arrays.clients.items():
        if not np.isfinite(values).any() or (key == "epsilon_paper" and not by_formula):
            result[key] = None
            continue
        bounds = span if key.startswith("epsilon") else mean_of("accuracy" if key in SHARES else key)
        result[key] = packed_interval(*bounds(values[:, ::every]))
    return result


def delay_parts(arrays: RunArrays, owner: IntArray, count: int, every: int) -> dict[str, Any]:
    """Mean download, compute and upload times, share of late uploads and number of uploads, by client or channel."""
    assigned = owner >= 0
    index = owner[assigned]
    uploads = np.bincount(index, minlength=count)

    def mean(values: FloatArray) -> FloatArray:
        finite = np.isfinite(values[assigned])
        total = np.bincount(index[finite], values[assigned][finite], minlength=count)
        number = np.bincount(index[finite], minlength=count)
        return np.where(number > 0, total / np.maximum(number, 1), np.nan)

    columns = {
        "download_s": mean(arrays.download_s),
        "compute_s": mean(arrays.compute_s),
        "upload_s": mean(arrays.upload_s),
        "late": mean(np.where(arrays.punctual, 0.0, 1.0)),
        "uploads": uploads,
    }
    return {name: packed_floats(values[::every]) for name, values in columns.items()}
