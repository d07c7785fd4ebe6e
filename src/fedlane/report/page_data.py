"""The data embedded in a report page: curves with intervals, figures per client, and rounds in detail."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedlane.intervals import student_interval
from fedlane.records import FloatArray, IntArray
from fedlane.report.packing import packed_bits, packed_floats, packed_indices, packed_levels, packed_seconds
from fedlane.report.run_arrays import CLIENT_COLUMNS, RunArrays, run_arrays
from fedlane.report.run_files import RunFiles, read_run
from fedlane.report.seed_measures import MEASURES
from fedlane.report.terminal import LOWER_BOUND_MECHANISMS
from fedlane.validate import InputError

BUDGET_BYTES = 4_300_000
"""Limit for all embedded data. Page, script and style add 0.1 MB."""
MAX_POINTS = 400
"""Maximum number of points of a curve."""
QUEUE_COLUMNS = 250
"""Number of rounds in the queue figure if embedding all rounds would exceed the limit."""
BASE64 = 4 / 3
"""Characters per byte."""


@dataclass(frozen=True)
class Detail:
    """The amount of detail that is embedded for the rounds."""

    seeds: int
    """Number of seeds embedded in the page."""
    every: int
    """Stride between embedded rounds."""
    queue_every: int
    """Stride between rounds of the queue figure."""


def page_data(folders: Sequence[Path]) -> dict[str, Any]:
    """Collect the data that a report page shows for some runs.

    Args:
        folders: run folders, finished or still being written.

    Returns:
        The data of the page, ready for JSON; pass it to `build_page`.

    Raises:
        InputError: no folder is given, or one is incomplete or damaged.
    """
    if not folders:
        raise InputError("a report needs at least one run folder")
    files = [read_run(folder) for folder in folders]
    names = run_names(files)
    budget = BUDGET_BYTES // len(files)
    return {"runs": [run_data(run, name, budget) for run, name in zip(files, names, strict=True)]}


def run_names(files: Sequence[RunFiles]) -> list[str]:
    """Unique names of runs: the policy, with the scenario, the folder's name or a number added where needed."""
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
    """Data of one run, with as much detail of its rounds as the budget allows."""
    arrays = run_arrays(files)
    replicas, rounds, clients, channels = arrays.shape
    listed = files.summary.get("seeds")
    seeds = listed[:replicas] if isinstance(listed, list) else []
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
        "per_client": _per_client(arrays, _privacy(files)),
        "parts": {
            "client": _parts(arrays, arrays.slot_client, clients),
            "channel": _parts(arrays, arrays.slot_channel, channels),
        },
        "detail": _detail(arrays, detail),
    }


def fitting(arrays: RunArrays, budget_bytes: int) -> Detail:
    """The most detail that fits the budget: first fewer seeds are embedded, then fewer rounds of one seed."""
    replicas, rounds, clients, channels = arrays.shape
    slots = arrays.slot_client.shape[2]
    index_bytes = 2 + (clients > 254) + (channels > 254)
    fixed = BASE64 * 4 * (3 * (len(CLIENT_COLUMNS) * clients + 5 * MAX_POINTS) + 5 * (clients + channels)) + 8_000

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
    """Assignments and delays in the rounds of the first seeds, their queues, and the positions."""
    embedded = slice(0, detail.seeds), slice(None, None, detail.every)
    available = arrays.available[embedded]
    return {
        "seeds": detail.seeds,
        "every": detail.every,
        "queue_every": detail.queue_every,
        "client": packed_indices(arrays.slot_client[embedded]),
        "channel": packed_indices(arrays.slot_channel[embedded]),
        "download_s": packed_seconds(arrays.download_s[embedded]),
        "compute_s": packed_seconds(arrays.compute_s[embedded]),
        "upload_s": packed_seconds(arrays.upload_s[embedded]),
        "punctual": packed_bits(arrays.punctual[embedded]),
        "available": None if available.all() else packed_bits(available),
        "queue": packed_levels(arrays.queue[: detail.seeds, :: detail.queue_every]),
        "delay_s": packed_floats(arrays.delay_s[: detail.seeds]),
        "accuracy": packed_floats(arrays.accuracy[: detail.seeds]) if np.isfinite(arrays.accuracy).any() else None,
        "client_xy_m": packed_floats(arrays.client_xy_m[: detail.seeds]),
        "channel_xy_m": packed_floats(arrays.channel_xy_m[: detail.seeds]),
    }


def _curves(arrays: RunArrays) -> dict[str, Any]:
    """Curves against rounds: mean over seeds and 95% bounds. Rounds are numbered from 1 on the page."""
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
    """At most MAX_POINTS of the rounds, evenly spaced, including the last."""
    step = max(1, -(-len(rounds) // MAX_POINTS))
    return rounds[(len(rounds) - 1) % step :: step] if len(rounds) else rounds


def _largest(values: FloatArray) -> FloatArray:
    """Maximum over the last axis, ignoring NaN; NaN if there is no value."""
    if values.shape[-1] == 0:
        return np.full(values.shape[:-1], np.nan)
    return np.where(np.isnan(values).all(axis=-1), np.nan, np.nanmax(np.nan_to_num(values, nan=-np.inf), axis=-1))


def span(values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Minimum, mean and maximum over seeds. An interval of the mean would suggest an epsilon that no client has."""
    return values.min(axis=0), values.mean(axis=0), values.max(axis=0)


def _per_client(arrays: RunArrays, privacy: Mapping[str, Any] | None) -> dict[str, Any]:
    """Columns of clients.parquet: mean over seeds and 95% bounds; None if the run did not record the column.

    Formula (6) is shown for the mechanism `paper` only; older run folders have it for every mechanism.
    """
    by_formula = privacy is not None and privacy["mechanism"] in LOWER_BOUND_MECHANISMS
    result: dict[str, Any] = {}
    for key, values in arrays.clients.items():
        if not np.isfinite(values).any() or (key == "epsilon_paper" and not by_formula):
            result[key] = None
            continue
        low, mean, high = span(values) if key.startswith("epsilon") else student_interval(values)
        result[key] = {"mean": packed_floats(mean), "low": packed_floats(low), "high": packed_floats(high)}
    return result


def _parts(arrays: RunArrays, owner: IntArray, count: int) -> dict[str, Any]:
    """Mean download, compute and upload times, share of late uploads and number of uploads, by client or channel."""
    assigned = owner >= 0
    index = owner[assigned]
    uploads = np.bincount(index, minlength=count)

    def mean(values: FloatArray) -> FloatArray:
        finite = np.isfinite(values[assigned])
        total = np.bincount(index[finite], values[assigned][finite], minlength=count)
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
    """Privacy mechanism and agreed budget, as far as the summary contains them."""
    privacy = files.summary.get("privacy")
    if not isinstance(privacy, dict):
        return None
    agreed, delta = privacy.get("epsilon_agreed"), privacy.get("delta")
    return {
        "mechanism": str(privacy.get("mechanism", "")),
        "per": str(privacy.get("per", "")),
        "epsilon": _number(agreed.get("largest") if isinstance(agreed, dict) else agreed, None),
        "delta": _number(delta.get("largest") if isinstance(delta, dict) else delta, None),
        "exhausted": _number(privacy.get("exhausted"), 0),
        "unreported": _number(privacy.get("unreported"), 0),
        "randomness": str(privacy.get("randomness", "")),
    }


def _measure(value: object) -> dict[str, float | None]:
    measure = value if isinstance(value, dict) else {}
    return {key: _number(measure.get(key), None) for key in ("mean", "low", "high")}


def _number(value: object, otherwise: Any) -> Any:
    """Return the value if it is a finite number, else ``otherwise``."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return value if usable else otherwise
