"""What a report page shows of its runs: curves with intervals, per-client figures, and rounds in detail, small enough
to embed."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedlane.intervals import student_interval
from fedlane.records import FloatArray, IntArray
from fedlane.report.packing import packed_bits, packed_floats, packed_indices, packed_levels, packed_seconds
from fedlane.report.run_arrays import CLIENT_COLUMNS, RunArrays, run_arrays
from fedlane.report.run_files import RunFiles, read_run
from fedlane.validate import InputError

BUDGET_BYTES = 4_300_000
"""Of all embedded data; page, script and style add a tenth of a megabyte."""
POINTS = 400
"""Points of a curve at most."""
QUEUE_COLUMNS = 250
"""Rounds of the queues' picture, where all of them would take too much."""
MEASURES = (
    *("cumulative_delay_s", "mean_round_s", "late_share", "min_participation", "max_participation"),
    *("quota_shortfall", "max_queue", "final_accuracy"),
)
BASE64 = 4 / 3


@dataclass(frozen=True)
class Detail:
    """How much of each round is embedded."""

    seeds: int
    """The first so many."""
    every: int
    """Every so many rounds."""
    queue_every: int


def page_data(folders: Sequence[Path]) -> dict[str, Any]:
    """Everything that a page shows of these run folders, ready for JSON."""
    if not folders:
        raise InputError("a report needs at least one run folder")
    files = [read_run(folder) for folder in folders]
    names = run_names(files)
    budget = BUDGET_BYTES // len(files)
    return {"runs": [run_data(run, name, budget) for run, name in zip(files, names, strict=True)]}


def run_names(files: Sequence[RunFiles]) -> list[str]:
    """Each run's policy; with the folder's name where two runs share one, and a number where even that is shared."""
    policies = [str(run.summary.get("policy", run.folder)) for run in files]
    scenarios = {str(run.summary.get("scenario", "")) for run in files}
    names = []
    for run, policy in zip(files, policies, strict=True):
        name = policy if len(scenarios) == 1 else f"{policy}, {run.summary.get('scenario', '')}"
        names.append(f"{name} ({run.folder})" if policies.count(policy) > 1 and len(scenarios) == 1 else name)
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return unique


def run_data(files: RunFiles, name: str, budget_bytes: int) -> dict[str, Any]:
    """One run, its rounds in as much detail as the budget allows."""
    arrays = run_arrays(files)
    replicas, rounds, clients, channels = arrays.shape
    told = files.summary.get("seeds")
    seeds = told[:replicas] if isinstance(told, list) else []
    seeds = [*seeds, *range(len(seeds), replicas)]
    network = files.scenario.get("network")
    deadline_s = network.get("deadline_s") if isinstance(network, dict) else None
    detail = fitting(arrays, budget_bytes)
    return {
        "name": name,
        "folder": files.folder,
        "policy": str(files.summary.get("policy", "")),
        "scenario": str(files.summary.get("scenario", files.scenario.get("name", ""))),
        "version": str(files.summary.get("version", "")),
        "seeds": [str(seed) for seed in seeds],
        "rounds": rounds,
        "planned": _number(files.status.get("rounds"), rounds),
        "state": str(files.status.get("state", "unknown")),
        "written_s": files.written_s,
        "clients": clients,
        "channels": channels,
        "deadline_s": _number(deadline_s, None),
        "toml": files.toml,
        "measures": {key: _measure(files.summary.get(key)) for key in MEASURES},
        "privacy": _privacy(files),
        "curves": _curves(arrays),
        "per_client": _per_client(arrays),
        "parts": {
            "client": _parts(arrays, arrays.slot_client, clients),
            "channel": _parts(arrays, arrays.slot_channel, channels),
        },
        "detail": _detail(arrays, detail),
    }


def fitting(arrays: RunArrays, budget_bytes: int) -> Detail:
    """The most detail within the budget: all seeds if possible, then fewer, then fewer rounds of one."""
    replicas, rounds, clients, channels = arrays.shape
    slots = arrays.slot_client.shape[2]
    index_bytes = 2 + (clients > 254) + (channels > 254)
    fixed = BASE64 * 4 * (3 * (len(CLIENT_COLUMNS) * clients + 5 * POINTS) + 5 * (clients + channels)) + 8_000

    def seed_bytes(every: int, queue_every: int) -> float:
        kept = -(-rounds // every)
        per_round = slots * (index_bytes + 6 + 1 / 8) + clients / 8
        queues = -(-rounds // queue_every) * clients * 2
        return BASE64 * (kept * per_round + 8 * rounds + queues + 8 * (clients + channels)) + 400

    left = max(budget_bytes - fixed, 0.0)
    every = queue_every = 1
    if replicas * seed_bytes(1, 1) > left:
        queue_every = max(1, -(-rounds // QUEUE_COLUMNS))
    while seed_bytes(every, queue_every) > left and every < rounds:
        every, queue_every = 2 * every, max(queue_every, 2 * every)
    return Detail(max(1, min(replicas, int(left / seed_bytes(every, queue_every)))), every, queue_every)


def _detail(arrays: RunArrays, detail: Detail) -> dict[str, Any]:
    """Rounds of the first seeds: who, where, how long; queues; positions."""
    some = slice(0, detail.seeds), slice(None, None, detail.every)
    available = arrays.available[some]
    return {
        "seeds": detail.seeds,
        "every": detail.every,
        "queue_every": detail.queue_every,
        "client": packed_indices(arrays.slot_client[some]),
        "channel": packed_indices(arrays.slot_channel[some]),
        "download_s": packed_seconds(arrays.download_s[some]),
        "compute_s": packed_seconds(arrays.compute_s[some]),
        "upload_s": packed_seconds(arrays.upload_s[some]),
        "punctual": packed_bits(arrays.punctual[some]),
        "available": None if available.all() else packed_bits(available),
        "queue": packed_levels(arrays.queue[: detail.seeds, :: detail.queue_every]),
        "delay_s": packed_floats(arrays.delay_s[: detail.seeds]),
        "accuracy": packed_floats(arrays.accuracy[: detail.seeds]) if np.isfinite(arrays.accuracy).any() else None,
        "client_xy_m": packed_floats(arrays.client_xy_m[: detail.seeds]),
        "channel_xy_m": packed_floats(arrays.channel_xy_m[: detail.seeds]),
    }


def _curves(arrays: RunArrays) -> dict[str, Any]:
    """Curves against rounds, mean over seeds and 95% bounds; ``round`` counts from 1 as people do."""
    rounds = arrays.shape[1]
    clock_s = np.nancumsum(arrays.delay_s, axis=1)
    tested = np.flatnonzero(~np.isnan(arrays.accuracy).any(axis=0)) if rounds else np.arange(0)
    shown = _thinned(np.arange(rounds))
    curves = {"clock": _curve(shown, clock_s), "queue": _curve(shown, _largest(arrays.queue))}
    if np.isfinite(arrays.epsilon).any():
        curves["epsilon"] = _curve(shown, _largest(arrays.epsilon), span)
    if len(tested):
        tested = _thinned(tested)
        curves["accuracy"] = _curve(tested, arrays.accuracy)
        curves["accuracy"]["clock_s"] = packed_floats(clock_s[:, tested].mean(axis=0))
    return {**curves, "every": int(shown[1] - shown[0]) if len(shown) > 1 else 1}


def _curve(
    rounds: IntArray,
    values: FloatArray,
    bounds: Callable[[FloatArray], tuple[FloatArray, FloatArray, FloatArray]] = student_interval,
) -> dict[str, Any]:
    low, mean, high = bounds(values[:, rounds]) if len(rounds) else (np.zeros(0),) * 3
    return {
        "round": packed_floats(rounds + 1.0),
        "mean": packed_floats(mean),
        "low": packed_floats(low),
        "high": packed_floats(high),
    }


def _thinned(rounds: IntArray) -> IntArray:
    """At most POINTS of them, evenly spaced, the last one among them."""
    step = max(1, -(-len(rounds) // POINTS))
    return rounds[(len(rounds) - 1) % step :: step] if len(rounds) else rounds


def _largest(values: FloatArray) -> FloatArray:
    """Over the last axis; NaN where there is nothing."""
    if values.shape[-1] == 0:
        return np.full(values.shape[:-1], np.nan)
    return np.where(np.isnan(values).all(axis=-1), np.nan, np.nanmax(np.nan_to_num(values, nan=-np.inf), axis=-1))


def span(values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Smallest, mean and largest over seeds: an interval of means would promise an epsilon that nobody has."""
    return values.min(axis=0), values.mean(axis=0), values.max(axis=0)


def _per_client(arrays: RunArrays) -> dict[str, Any]:
    """Each column of clients.parquet: mean over seeds and 95% bounds; None where nothing is known."""
    result: dict[str, Any] = {}
    for key, values in arrays.clients.items():
        if not np.isfinite(values).any():
            result[key] = None
            continue
        low, mean, high = span(values) if key.startswith("epsilon") else student_interval(values)
        result[key] = {"mean": packed_floats(mean), "low": packed_floats(low), "high": packed_floats(high)}
    return result


def _parts(arrays: RunArrays, owner: IntArray, count: int) -> dict[str, Any]:
    """Mean download, compute and upload time, share late and number of uploads by client or by channel, all seeds."""
    known = owner >= 0
    index = owner[known]
    uploads = np.bincount(index, minlength=count)

    def mean(values: FloatArray) -> FloatArray:
        finite = np.isfinite(values[known])
        total = np.bincount(index[finite], values[known][finite], minlength=count)
        number = np.bincount(index[finite], minlength=count)
        return np.where(number > 0, total / np.maximum(number, 1), np.nan)

    return {
        "download_s": packed_floats(mean(arrays.download_s)),
        "compute_s": packed_floats(mean(arrays.compute_s)),
        "upload_s": packed_floats(mean(arrays.upload_s)),
        "late": packed_floats(mean(np.where(arrays.punctual, 0.0, 1.0))),
        "uploads": packed_floats(uploads),
    }


def _privacy(files: RunFiles) -> dict[str, Any] | None:
    """Mechanism and agreed terms, as far as the summary names them."""
    told = files.summary.get("privacy")
    if not isinstance(told, dict):
        return None
    agreed, delta = told.get("epsilon_agreed"), told.get("delta")
    return {
        "mechanism": str(told.get("mechanism", "")),
        "per": str(told.get("per", "")),
        "epsilon": _number(agreed.get("largest") if isinstance(agreed, dict) else agreed, None),
        "delta": _number(delta.get("largest") if isinstance(delta, dict) else delta, None),
        "exhausted": _number(told.get("exhausted"), 0),
        "randomness": str(told.get("randomness", "")),
    }


def _measure(told: object) -> dict[str, float | None]:
    known = told if isinstance(told, dict) else {}
    return {key: _number(known.get(key), None) for key in ("mean", "low", "high")}


def _number(value: object, otherwise: Any) -> Any:
    """A finite number, or what to show instead."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return value if usable else otherwise
