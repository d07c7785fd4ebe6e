"""A run's results: tables and a summary, saved to and loaded from a run folder."""

import contextlib
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import stdtrit

from fedlane.records import FloatArray
from fedlane.scenario import Scenario
from fedlane.simulation.setup import Setup
from fedlane.simulation.trace import Trace
from fedlane.validate import InputError

COLUMNS = {
    "rounds": ("replica", "seed", "round", "delay_s", "clock_s", "punctual", "accuracy", "loss"),
    "assignments": (
        "replica",
        "round",
        "client",
        "channel",
        "download_s",
        "compute_s",
        "upload_s",
        "delay_s",
        "punctual",
    ),
    "clients": (
        *("replica", "client", "x_m", "y_m", "quota", "participation", "selection", "uploads", "queue"),
        *("epsilon", "epsilon_paper"),
    ),
    "channels": ("replica", "channel", "x_m", "y_m"),
    "client_rounds": ("replica", "round", "client", "queue", "epsilon", "available"),
}
MEASURES = ("cumulative_delay_s", "mean_round_s", "late_share", "min_participation", "max_queue", "final_accuracy")


@dataclass(frozen=True)
class Run:
    """A run, finished or so far."""

    scenario: Scenario
    tables: Mapping[str, pa.Table]
    summary: Mapping[str, Any]

    @property
    def rounds(self) -> pa.Table:
        return self.tables["rounds"]

    @property
    def assignments(self) -> pa.Table:
        return self.tables["assignments"]

    @property
    def clients(self) -> pa.Table:
        return self.tables["clients"]

    @property
    def channels(self) -> pa.Table:
        return self.tables["channels"]

    @property
    def client_rounds(self) -> pa.Table:
        return self.tables["client_rounds"]

    def save(self, folder: str | Path) -> None:
        """Write the run folder, which must be new or empty."""
        RunFolder.create(folder).write(self)

    @classmethod
    def load(cls, folder: str | Path) -> "Run":
        """Read a run folder; one that is damaged or was not written by FedLane is an `InputError`."""
        path = Path(folder)
        if not path.is_dir():
            raise InputError(f"run folder {path} does not exist")
        for name in ("scenario.toml", "summary.json", "status.json", *(f"{table}.parquet" for table in COLUMNS)):
            if not (path / name).is_file():
                raise InputError(f"{path} is not a run folder: {name} is missing")
        loaded = {}
        for name, columns in COLUMNS.items():
            try:
                loaded[name] = pq.read_table(
                    path / f"{name}.parquet", page_checksum_verification=True, partitioning=None
                )
            except (OSError, pa.ArrowException) as error:
                raise InputError(f"{path / name}.parquet is damaged: {str(error).splitlines()[0]}") from error
            missing = [column for column in columns if column not in loaded[name].column_names]
            if missing:
                raise InputError(f"{path / name}.parquet is not FedLane's: column {missing[0]} is missing")
        try:
            summary = json.loads((path / "summary.json").read_text())
            complete = all(set(summary[measure]) >= {"mean", "low", "high"} for measure in MEASURES)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path / 'summary.json'} is damaged: {error}") from error
        if not complete:
            raise InputError(f"{path / 'summary.json'} is not FedLane's: a mean or bound is missing")
        return cls(scenario=Scenario.load(path / "scenario.toml"), tables=loaded, summary=summary)


class RunFolder:
    """A run's folder. Every write goes to a temporary name and is renamed, so that a reader never sees half a file."""

    def __init__(self, path: Path, made: Sequence[Path]) -> None:
        self.path = path
        self._made = made
        self._written = False

    @classmethod
    def create(cls, folder: str | Path) -> "RunFolder":
        """Make the folder, or take an empty one; refuse one that holds anything or cannot be written."""
        path = Path(folder)
        made = [parent for parent in (path, *path.parents) if not parent.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise InputError(f"output folder {path} is not empty")
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise InputError(f"output folder {path} cannot be written: {error.strerror or error}") from error
        return cls(path, made)

    def write(self, run: Run, *, interrupted: bool = False) -> None:
        """Write or rewrite everything; on failure nothing of this write stays."""
        try:
            with tempfile.TemporaryDirectory(dir=self.path, prefix=".writing-") as temporary:
                names = _write_files(run, Path(temporary), interrupted)
                for name in names:
                    (Path(temporary) / name).replace(self.path / name)
        except (OSError, pa.ArrowException) as error:
            self.abandon()
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
            raise InputError(f"output folder {self.path} cannot be written: {reason}") from error
        self._written = True

    def abandon(self) -> None:
        """Remove the folders that this run made, if nothing complete was ever written."""
        if not self._written:
            with contextlib.suppress(OSError):  # another run may use a parent by now
                for folder in self._made:
                    folder.rmdir()


def _write_files(run: Run, folder: Path, interrupted: bool) -> list[str]:
    """Write all files of a run into ``folder``; returns their names, the status last."""
    for name, table in run.tables.items():
        pq.write_table(table, folder / f"{name}.parquet", compression="zstd", write_page_checksum=True)
    (folder / "scenario.toml").write_text(run.scenario.to_toml())
    (folder / "summary.json").write_text(json.dumps(run.summary, indent=2) + "\n")
    done, rounds = run.summary["rounds"], run.scenario.rounds
    state = "finished" if done == rounds else "interrupted" if interrupted else "running"
    status = {"round": done, "rounds": rounds, "state": state}
    (folder / "status.json").write_text(json.dumps(status) + "\n")
    return [*(f"{name}.parquet" for name in run.tables), "scenario.toml", "summary.json", "status.json"]


def interval(values: FloatArray | None) -> dict[str, float | None]:
    """Mean over seeds and its 95% Student interval; no interval from one seed, nothing from None."""
    if values is None or len(values) == 0:
        return {"mean": None, "low": None, "high": None}
    mean = float(np.mean(values))
    if len(values) == 1:
        return {"mean": mean, "low": None, "high": None}
    half = float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def summarise(
    policy: str,
    parameters: Mapping[str, Any],
    trace: Trace,
    setup: Setup,
    quota: FloatArray,
    feasible_scale: FloatArray | None,
    elapsed_s: float,
) -> dict[str, Any]:
    """The summary of the rounds played so far: the contract's measures, and what a reader asks next."""
    from fedlane import __version__

    rounds = max(trace.rounds, 1)
    assigned, in_time = trace.counts(setup.problem.deadline_s)
    uploads = assigned.sum(axis=1)
    participation = in_time / rounds
    cumulative = trace.delay_s.sum(axis=1)
    measures: dict[str, FloatArray | None] = {
        "cumulative_delay_s": cumulative,
        "mean_round_s": cumulative / rounds,
        "late_share": 1.0 - in_time.sum(axis=1) / np.maximum(uploads, 1),
        "min_participation": participation.min(axis=1),
        "max_queue": trace.queue.max(axis=(1, 2), initial=0.0).astype(np.float64),
        "final_accuracy": None,
        "max_participation": participation.max(axis=1),
        "quota_shortfall": np.maximum(quota - participation, 0.0).max(axis=1),
        "feasible_scale": feasible_scale if feasible_scale is None or np.isfinite(feasible_scale).all() else None,
    }
    return {
        "policy": policy,
        "parameters": dict(parameters),
        "scenario": setup.scenario.name,
        "seeds": list(setup.seeds),
        "rounds": trace.rounds,
        **{name: interval(values) for name, values in measures.items()},
        "quota": {"smallest": float(quota.min()), "largest": float(quota.max())},
        "infeasible_seeds": _infeasible(setup.seeds, feasible_scale),
        "elapsed_s": elapsed_s,
        "version": __version__,
    }


def _infeasible(seeds: tuple[int, ...], scale: FloatArray | None) -> dict[str, float]:
    """Seeds on which no policy could serve the quotas, with the multiple of them that the best could serve."""
    return {} if scale is None else {str(seed): float(s) for seed, s in zip(seeds, scale, strict=True) if s < 1.0}
