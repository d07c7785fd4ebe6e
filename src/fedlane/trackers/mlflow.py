"""MLflow: one run of the experiment ``fedlane``; calls go to the given store alone, and telemetry stays off."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlane.trackers import PER_SEED, RoundRecord, flattened, headline
from fedlane.validate import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    from fedlane.scenario import Scenario

EXPERIMENT = "fedlane"
FOLDER = "fedlane.folder"
"""The tag by which a run that goes on is found again: its folder."""
FLUSH_S, BATCH, LONGEST = 2.0, 1000, 500
"""Metrics wait this long, MLflow takes so many at once, and parameters of so many characters."""
STATES = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MlflowTracker:
    """Means over seeds by their names, each seed's as ``seed-N/name``; the step is the round."""

    def __init__(self, uri: str | None, name: str, folder: Path) -> None:
        self.uri, self.name, self.folder = uri, name, folder
        self._client: MlflowClient | None = None
        self._run = ""
        self._seeds: tuple[int, ...] = ()
        self._known = -1
        self._waiting: list[Metric] = []
        self._flushed = 0.0

    def start(self, scenario: "Scenario", policy: str, seeds: Sequence[int], *, round: int = 0) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # its 7 take minutes to say that nobody answers
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._seeds = tuple(seeds) if 1 < len(seeds) <= PER_SEED else ()
        with self._errors():
            self._client = MlflowClient(tracking_uri=self.uri)
            found = self._client.get_experiment_by_name(EXPERIMENT)
            experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
            place = str(self.folder.resolve())
            earlier = self._client.search_runs([experiment]) if round else []
            same = [run.info.run_id for run in earlier if run.data.tags.get(FOLDER) == place]
            if same:
                self._run = same[0]
                self._client.update_run(self._run, status="RUNNING")
                # Rounds are the same the second time, so those that are there already are left out.
                steps = [metric.step for metric in self._client.get_metric_history(self._run, "delay_s")]
                self._known = max(steps, default=-1)
                return
            tags = {FOLDER: place, "fedlane.policy": policy}
            self._run = self._client.create_run(experiment, run_name=self.name, tags=tags).info.run_id
            values = {**flattened(scenario), "policy": policy, "seeds": ", ".join(map(str, seeds))}
            parameters = [Param(key, str(value)[:LONGEST] or "-") for key, value in values.items()]
            for start in range(0, len(parameters), 100):
                self._client.log_batch(self._run, params=parameters[start : start + 100])

    def round(self, record: RoundRecord) -> None:
        from mlflow.entities import Metric

        if record.round <= self._known:
            return
        now = int(1000 * time.time())
        for name, values in record.values().items():
            self._waiting.append(Metric(name, float(values.mean()), now, record.round))
            for seed, value in zip(self._seeds, values, strict=False):
                self._waiting.append(Metric(f"seed-{seed}/{name}", float(value), now, record.round))
        if time.monotonic() - self._flushed > FLUSH_S:
            self._flush()

    def end(self, summary: Mapping[str, Any] | None, state: str) -> None:
        if self._client is None or not self._run:
            return
        self._flush()
        with self._errors():
            if summary is not None and state == "finished":
                for name, value in headline(summary).items():
                    self._client.log_metric(self._run, f"summary/{name}", value)
            self._client.set_terminated(self._run, STATES[state])

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        with self._errors():
            for start in range(0, len(waiting), BATCH):
                assert self._client is not None
                self._client.log_batch(self._run, metrics=waiting[start : start + BATCH])
        self._flushed = time.monotonic()

    @contextmanager
    def _errors(self) -> "Iterator[None]":
        """A store that cannot be used is one clear line."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError, ImportError) as error:
            reason = str(error).split(". ")[0].splitlines()[0]
            raise InputError(f"MLflow at {self.uri or 'its default place'} cannot be used: {reason}") from error
