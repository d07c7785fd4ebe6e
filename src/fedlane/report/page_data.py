"""The data embedded in a report page: curves with intervals, figures per client, and rounds in detail."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedlane.intervals import interval, measure_bounds
from fedlane.records import FloatArray
from fedlane.report.comparison_files import NAME as COMPARISON
from fedlane.report.packing import embedded, packed_bits, packed_doubles, packed_floats, packed_indices, packed_levels
from fedlane.report.page_city import cities
from fedlane.report.page_curves import client_columns, delay_parts, run_curves
from fedlane.report.page_fit import BUDGET_BYTES, PAGE_BYTES, Detail, Thinning, fitting, shortened, thinning
from fedlane.report.page_movement import movement
from fedlane.report.page_predictions import MEASURE as COVERAGE
from fedlane.report.page_predictions import coverage_curve, embedded_predictions
from fedlane.report.run_arrays import RunArrays, index_size, run_arrays
from fedlane.report.run_files import RunFiles, read_run
from fedlane.report.run_labels import (
    differences,
    natural_key,
    run_names,
    scenario_differences,
    scenario_digest,
    seeds_text,
    shared_policy,
)
from fedlane.report.seed_measures import ENERGY, MEASURES, PROBLEM_SHORTFALL, problem_shortfall, quota_slack
from fedlane.report.terminal import LOWER_BOUND_MECHANISMS
from fedlane.targets import target_measure, time_to_accuracy
from fedlane.validate import InputError

SHOWN = (*MEASURES, ENERGY, COVERAGE)
"""Measures of a run's summary that a page shows, if the run has them."""
MAX_TARGETS = 4
"""Maximum number of different target accuracies on a page."""


def page_data(folders: Sequence[Path]) -> dict[str, Any]:
    """Collect the data that a report page shows for some runs.

    Runs keep the order in which they are given, which for a comparison is that of its policies. An alphabetical order,
    as a shell's ``*`` gives it, becomes a natural one by label: V=2 before V=10.

    Args:
        folders: run folders, finished or still being written.

    Returns:
        The data of the page, ready for JSON; pass it to `build_page`.

    Raises:
        InputError: no folder is given, one is incomplete or damaged, or the page would exceed its size.
    """
    if not folders:
        raise InputError("a report needs at least one run folder")
    files = [read_run(folder) for folder in folders]
    runs = list(zip(run_names(files), files, strict=True))
    compared = any((folder.parent / COMPARISON).is_file() for folder in folders)
    if list(folders) == sorted(folders) and not compared:
        runs.sort(key=lambda run: natural_key(run[0]))
    listed, numbers = cities(run for _, run in runs)
    budget = (BUDGET_BYTES - len(embedded({"cities": listed}))) // len(files)
    clients = max(index_size(run.tables["clients"], "client") for run in files)
    channels = max(index_size(run.tables["channels"], "channel") for run in files)
    thin = thinning(clients, channels, budget)
    targets = sorted({target for run in files if (target := _target(run)) is not None}, reverse=True)
    data = {
        "runs": [
            {**run_data(run, name, budget, thin, targets[:MAX_TARGETS]), "city": number}
            for (name, run), number in zip(runs, numbers, strict=True)
        ],
        "cities": listed,
        "policy": shared_policy(files),
        "differences": differences(files),
        "scenario_differences": scenario_differences(files),
        "targets": targets[:MAX_TARGETS],
        "targets_omitted": len(targets[MAX_TARGETS:]),
        "client_every": thin.client_every,
        "channel_every": thin.channel_every,
    }
    if (size := len(embedded(data))) > BUDGET_BYTES:
        raise InputError(
            f"the page of these {len(files)} runs would take {(size + PAGE_BYTES - BUDGET_BYTES) / 1e6:.1f} MB, "
            f"more than the limit of {PAGE_BYTES / 1e6:.1f} MB: give fewer runs"
        )
    return data


def run_data(
    files: RunFiles, name: str, budget_bytes: int, thin: Thinning | None = None, targets: Sequence[float] = ()
) -> dict[str, Any]:
    """Data of one run, with as much detail of its rounds as the budget allows.

    Args:
        files: the run's files.
        name: the run's label.
        budget_bytes: limit for the run's data.
        thin: strides of the clients and channels, by default those of a page with this run only.
        targets: accuracies for which to report the time.
    """
    arrays = run_arrays(files)
    replicas, rounds, clients, channels = arrays.shape
    thin = thin or thinning(clients, channels, budget_bytes)
    listed = files.summary.get("seeds")
    seeds = listed[:replicas] if isinstance(listed, list) else []
    seeds = [*seeds, *range(len(seeds), replicas)]
    deadline_s = _section(files, "network").get("deadline_s")
    toml = shortened(files.toml, budget_bytes)
    detail = fitting(arrays, budget_bytes, thin, toml)
    return {
        "name": name,
        "folder": files.folder,
        "policy": str(files.summary.get("policy", "")),
        "scenario": str(files.summary.get("scenario", files.scenario.get("name", ""))),
        "digest": scenario_digest(files),
        "version": str(files.summary.get("version", "")),
        "seeds": [str(seed) for seed in seeds[: detail.seeds]],
        "seed_count": replicas,
        "seeds_text": seeds_text(seeds),
        "rounds": rounds,
        "planned": _number(files.status.get("rounds"), rounds),
        "state": str(files.status.get("state", "unknown")),
        "written_s": files.written_s,
        "clients": clients,
        "channels": channels,
        "deadline_s": _number(deadline_s, None),
        "toml": toml,
        "toml_shortened": toml != files.toml,
        "caution": str(files.summary.get("caution", "")),
        "remark": str(files.summary.get("remark", "")),
        "target": _target(files),
        "times": _times(arrays, targets),
        "measures": {key: _measure(files.summary.get(key)) for key in (*MEASURES, ENERGY, COVERAGE)}
        | _shortfall(files),
        "battery_j": _number(_section(files, "energy").get("battery_j"), None),
        "slack": quota_slack(files.summary),
        "privacy": _privacy(files),
        "epsilon_largest": _finite_largest(arrays.clients["epsilon"]),
        "below_quota": _below_quota(arrays),
        "curves": run_curves(arrays, detail.points) | coverage_curve(arrays, _number(deadline_s, None)),
        "per_client": client_columns(arrays, thin.client_every, by_formula=_by_formula(files)),
        "parts": {
            "client": delay_parts(arrays, arrays.slot_client, clients, thin.client_every),
            "channel": delay_parts(arrays, arrays.slot_channel, channels, thin.channel_every),
        },
        "detail": _detail(arrays, detail, _number(deadline_s, None), positions=_has_positions(files)),
        "movement": movement(arrays, detail, _area_m(files)),
    }


def _area_m(files: RunFiles) -> float | None:
    """The side of the square in which clients move; None if it is unknown, or they move in a city."""
    network = _section(files, "network")
    area_m: float | None = _number(network.get("area_m"), None)
    return None if network.get("model") == "city" else area_m


def _section(files: RunFiles, name: str) -> dict[str, Any]:
    """A section of the run's scenario; empty if there is none."""
    section = files.scenario.get(name)
    return section if isinstance(section, dict) else {}


def _target(files: RunFiles) -> float | None:
    """The target accuracy that a run was saved with."""
    target = _number(_section(files, "learning").get("target_accuracy"), None)
    return float(target) if target is not None and 0 < target <= 1 else None


def _times(arrays: RunArrays, targets: Sequence[float]) -> list[dict[str, Any]]:
    """The time to each target as the run's summary defines it; empty if no accuracy was recorded."""
    if np.isnan(arrays.accuracy).all():
        return []
    clock_s = np.nancumsum(arrays.delay_s, axis=1)
    return [target_measure(time_to_accuracy(arrays.accuracy, clock_s, target), target) for target in targets]


def _shortfall(files: RunFiles) -> dict[str, Any]:
    """The shortfall from the problem's quotas, which are the same for all policies."""
    values = problem_shortfall(files.tables, files.summary)
    return {PROBLEM_SHORTFALL: interval(values[np.isfinite(values)], measure_bounds(PROBLEM_SHORTFALL))}


def _has_positions(files: RunFiles) -> bool:
    """Whether the run's network has positions; links of given or measured rates have none, whatever the tables say."""
    network = _section(files, "network")
    return "rates_mbps" not in network and network.get("model") not in ("fixed", "trace")


def _below_quota(arrays: RunArrays) -> int | None:
    """Number of clients whose mean participation over seeds is below their mean quota; None without quotas."""
    quota = arrays.clients["quota"]
    if not np.isfinite(quota).any():
        return None
    return int((arrays.clients["participation"].mean(axis=0) < quota.mean(axis=0)).sum())


def _finite_largest(values: FloatArray) -> float | None:
    """The largest value; None if there is none, and if it is infinite."""
    finite = values[~np.isnan(values)]
    return _number(float(finite.max()), None) if len(finite) else None


def _detail(arrays: RunArrays, detail: Detail, deadline_s: float | None, *, positions: bool) -> dict[str, Any]:
    """Assignments, delays, clock and accuracy in the rounds of the first seeds, their queues, and the positions."""
    cut = slice(0, detail.seeds), slice(None, None, detail.every)
    shown = np.arange(0, arrays.shape[1], detail.every) // arrays.client_every
    available, present = (array[: detail.seeds, shown] for array in (arrays.available, arrays.present))
    energy_j = arrays.energy_j[cut]
    clock_s = np.nancumsum(arrays.delay_s, axis=1)
    known = positions and bool(np.isfinite(arrays.client_xy_m).all() and np.isfinite(arrays.channel_xy_m).all())
    queue = arrays.queue[: detail.seeds]
    return {
        "seeds": detail.seeds,
        "every": detail.every,
        "queue_every": detail.queue_every,
        "client": packed_indices(arrays.slot_client[cut]),
        "channel": packed_indices(arrays.slot_channel[cut]),
        "download_s": packed_floats(arrays.download_s[cut]),
        "compute_s": packed_floats(arrays.compute_s[cut]),
        "upload_s": packed_floats(arrays.upload_s[cut]),
        "punctual": packed_bits(arrays.punctual[cut]),
        "predicted": embedded_predictions(arrays, detail, deadline_s),
        "energy_j": packed_floats(energy_j) if np.isfinite(energy_j).any() else None,
        "available": None if available.all() else packed_bits(available),
        "present": None if present.all() else packed_bits(present),
        "queue": packed_levels(queue[:, :: detail.queue_every // arrays.client_every]),
        "queue_largest": [_finite_largest(values) for values in queue],
        "delay_s": packed_floats(arrays.delay_s[cut]),
        "clock_s": packed_doubles(clock_s[cut]),
        "accuracy": packed_doubles(_latest(arrays.accuracy)[cut]) if np.isfinite(arrays.accuracy).any() else None,
        "client_xy_m": packed_floats(arrays.client_xy_m[: detail.seeds]) if known else None,
        "channel_xy_m": packed_floats(arrays.channel_xy_m[: detail.seeds]) if known else None,
    }


def _latest(values: FloatArray) -> FloatArray:
    """Each value, or where it is NaN the last one before it along the second axis."""
    rounds = np.arange(values.shape[1])
    at = np.maximum.accumulate(np.where(np.isnan(values), -1, rounds), axis=1)
    return np.where(at >= 0, np.take_along_axis(values, np.maximum(at, 0), axis=1), np.nan)


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


def _by_formula(files: RunFiles) -> bool:
    """Whether the paper's formula (6) is shown: for the mechanism `paper` only."""
    privacy = _privacy(files)
    return privacy is not None and privacy["mechanism"] in LOWER_BOUND_MECHANISMS


def _measure(value: object) -> dict[str, float | None]:
    measure = value if isinstance(value, dict) else {}
    return {key: _number(measure.get(key), None) for key in ("mean", "low", "high")}


def _number(value: object, otherwise: Any) -> Any:
    """Return the value if it is a finite number, else ``otherwise``."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return value if usable else otherwise
