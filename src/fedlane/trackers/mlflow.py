"""MLflow tracker. It contacts only the given store and disables MLflow's telemetry."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlane.records import RoundRecord
from fedlane.trackers.values import PER_SEED, flattened, headline
from fedlane.validate import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    from fedlane.scenario import Scenario

EXPERIMENT = "fedlane"
FOLDER = "fedlane.folder"
"""Tag with the run's folder, by which a resumed run is found."""
FLUSH_S = 2.0
"""Seconds between uploads of metrics."""
METRICS_PER_CALL, PARAMETERS_PER_CALL = 1000, 100
"""MLflow's limits for one call."""
MAX_PARAMETER_LENGTH = 500
"""Longer parameter values are cut off."""
STATES = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MlflowTracker:
    """Logs to one run of the MLflow experiment ``fedlane``; the step is the round.

    Means over seeds have their measure's name, values of a single seed are called ``seed-N/name``.

    Args:
        uri: MLflow tracking URI; None for MLflow's default.
        name: Name of the MLflow run.
        folder: The run's folder.
    """

    def __init__(self, uri: str | None, name: str, folder: Path) -> None:
        self.uri, self.name, self.folder = uri, name, folder
        self._client: MlflowClient | None = None
        self._run = ""
        self._seeds: tuple[int, ...] = ()
        self._last_logged = -1
        self._waiting: list[Metric] = []
        self._flushed = 0.0

    def start(self, scenario: "Scenario", policy: str, seeds: Sequence[int], *, round: int = 0) -> None:
        """Create the MLflow run, or find the run that is being resumed."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # 7 by default, which takes minutes
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._seeds = tuple(seeds) if 1 < len(seeds) <= PER_SEED else ()
        with self._errors():
            self._client = MlflowClient(tracking_uri=self.uri)
            existing = self._client.get_experiment_by_name(EXPERIMENT)
            experiment = existing.experiment_id if existing else self._client.create_experiment(EXPERIMENT)
            folder = str(self.folder.resolve())
            earlier = self._client.search_runs([experiment]) if round else []
            resumed = [run.info.run_id for run in earlier if run.data.tags.get(FOLDER) == folder]
            if resumed:
                self._run = resumed[0]
                self._client.update_run(self._run, status="RUNNING")
                # Rounds replayed after a crash give the same values, so those already logged are skipped.
                steps = [metric.step for metric in self._client.get_metric_history(self._run, "delay_s")]
                self._last_logged = max(steps, default=-1)
                return
            tags = {FOLDER: folder, "fedlane.policy": policy}
            self._run = self._client.create_run(experiment, run_name=self.name, tags=tags).info.run_id
            values = {**flattened(scenario), "policy": policy, "seeds": ", ".join(map(str, seeds))}
            parameters = [Param(key, str(value)[:MAX_PARAMETER_LENGTH] or "-") for key, value in values.items()]
            for start in range(0, len(parameters), PARAMETERS_PER_CALL):
                self._client.log_batch(self._run, params=parameters[start : start + PARAMETERS_PER_CALL])

    def round(self, record: RoundRecord) -> None:
        """Log one round; metrics are uploaded every `FLUSH_S` seconds."""
        from mlflow.entities import Metric

        if record.round <= self._last_logged:
            return
        now = int(1000 * time.time())
        for name, values in record.values().items():
            self._waiting.append(Metric(name, float(values.mean()), now, record.round))
            for seed, value in zip(self._seeds, values, strict=False):
                self._waiting.append(Metric(f"seed-{seed}/{name}", float(value), now, record.round))
        if time.monotonic() - self._flushed > FLUSH_S:
            self._flush()

    def end(self, summary: Mapping[str, Any] | None, state: str) -> None:
        """Upload the remaining metrics and the summary, and set the MLflow run's status."""
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
            for start in range(0, len(waiting), METRICS_PER_CALL):
                assert self._client is not None
                self._client.log_batch(self._run, metrics=waiting[start : start + METRICS_PER_CALL])
        self._flushed = time.monotonic()

    @contextmanager
    def _errors(self) -> "Iterator[None]":
        """Raise a one-line `InputError` if the store cannot be used."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError, ImportError) as error:
            reason = str(error).split(". ")[0].splitlines()[0]
            raise InputError(f"MLflow at {self.uri or 'its default location'} cannot be used: {reason}") from error
