"""The results of a run, and the folder they are saved to and loaded from."""

import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from safetensors.numpy import save as model_bytes

from fedlane.files import read_regular
from fedlane.parquet_tables import by_replica, column_floats, count_replicas
from fedlane.privacy.run_ledger import NAME as LEDGER
from fedlane.records import FloatArray
from fedlane.scenario import Scenario
from fedlane.scenario.run_settings import RunSettings
from fedlane.scenario.text import to_toml
from fedlane.simulation.checkpoint import NAME as CHECKPOINT
from fedlane.simulation.checkpoint import Checkpoint
from fedlane.simulation.folder_files import COLUMNS as COLUMNS
from fedlane.simulation.folder_files import EXTRA as EXTRA
from fedlane.simulation.folder_files import MEASURES as MEASURES
from fedlane.simulation.folder_files import MODEL, check_files, read_ledger, read_model, read_summary, table_columns
from fedlane.simulation.provenance import NAME as PROVENANCE
from fedlane.simulation.provenance import read_provenance
from fedlane.simulation.run_display import data_frame, run_html, run_text
from fedlane.simulation.segments import remove_segments
from fedlane.simulation.table_parts import stored_tables, write_table
from fedlane.targets import time_to_accuracy
from fedlane.validate import InputError


@dataclass(frozen=True)
class Run:
    """The results of a run, or of its rounds so far. docs/run-folder.md describes every column and key.

    Attributes:
        scenario: The scenario, including the policy's resolved parameters.
        tables: The tables by name.
        summary: Mean and 95% interval over seeds of every measure, and general facts about the run.
        model: The global model's tensors by name; with several replicas, names begin with ``replicaN.``
        ledger: The run's ledger, which lists every charged upload; empty without a mechanism.
        settings: BatchPolicy, seeds, learning and device; None for a real federation and in old folders.
        provenance: Command, date, versions, commit, device and host class of every session; empty in old folders.

    Examples:
        >>> from fedlane import simulate
        >>> run = simulate("quickstart", rounds=20, learning=False)
        >>> run.assignments.column_names[:4], run.assignments.num_rows
        (['replica', 'round', 'client', 'channel'], 80)
    """

    scenario: Scenario
    tables: Mapping[str, pa.Table]
    summary: Mapping[str, Any]
    model: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    ledger: str = ""
    settings: RunSettings | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rounds(self) -> pa.Table:
        """One row per replica and round."""
        return self.tables["rounds"]

    @property
    def assignments(self) -> pa.Table:
        """One row per replica, round and assigned client."""
        return self.tables["assignments"]

    @property
    def clients(self) -> pa.Table:
        """One row per replica and client."""
        return self.tables["clients"]

    @property
    def channels(self) -> pa.Table:
        """One row per replica and channel."""
        return self.tables["channels"]

    @property
    def client_rounds(self) -> pa.Table:
        """One row per replica, round and client; of large fleets every k-th round, see docs/run-folder.md."""
        return self.tables["client_rounds"]

    def __repr__(self) -> str:
        """The run in a few lines."""
        return run_text(self.summary, self.scenario.rounds)

    def _repr_html_(self) -> str:
        """The run as a table, for notebooks."""
        return run_html(self.summary, self.scenario.rounds)

    def to_pandas(self, table: str = "rounds") -> Any:
        """Return a table as a pandas DataFrame; every row has its ``seed``.

        Args:
            table: ``rounds``, ``assignments``, ``clients``, ``channels`` or ``client_rounds``; ``positions`` of clients
                that move; ``coverage`` of a city, which is the same for all seeds.

        Raises:
            InputError: There is no such table, or pandas is not installed.
        """
        return data_frame(self.tables, table, self.summary["seeds"])

    def time_to_accuracy(self, target: float) -> FloatArray:
        """Simulated time until the model reaches an accuracy.

        Args:
            target: Accuracy between 0 and 1, to be reached by the mean of three successive evaluations.

        Returns:
            (R,): seconds; NaN where the accuracy is never reached.
        """
        replicas = count_replicas(self.rounds)
        accuracy, clock_s = (
            by_replica(self.rounds, column_floats(self.rounds, name), replicas) for name in ("accuracy", "clock_s")
        )
        pairs = zip(accuracy, clock_s, strict=True)
        return np.array([time_to_accuracy(curve[None], clock[None], target)[0] for curve, clock in pairs])

    def save(self, folder: str | Path) -> None:
        """Write the run folder.

        Args:
            folder: A folder that is empty or does not exist.

        Raises:
            InputError: If the folder is not empty or cannot be written.
        """
        target = RunFolder.create(folder)
        target.write(self)
        if self.ledger:
            (target.path / LEDGER).write_text(self.ledger, encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "Run":
        """Read a run folder.

        Args:
            folder: The folder.

        Raises:
            InputError: If the folder is damaged or was not written by FedLane.
        """
        path = Path(folder)
        check_files(path)
        loaded = stored_tables(path, table_columns(path))
        return cls(
            scenario=Scenario.load(path / "scenario.toml"),
            tables=loaded,
            summary=read_summary(path / "summary.json"),
            model=read_model(path / MODEL),
            ledger=read_ledger(path / LEDGER),
            settings=RunSettings.load(path / "scenario.toml"),
            provenance=read_provenance(path),
        )


class RunFolder:
    """A run's folder. Files are written under a temporary name and renamed, so that a reader never sees a partial file.

    Args:
        path: The folder.
        created: Folders that were created for this run, innermost first.
        new: Whether the folder holds no earlier run.
    """

    def __init__(self, path: Path, created: Sequence[Path] = (), *, new: bool = False) -> None:
        self.path = path
        self._created, self._new = created, new
        self._written = False

    @classmethod
    def create(cls, folder: str | Path) -> "RunFolder":
        """Create the folder, or use an empty one; raise `InputError` if it is not empty or cannot be written."""
        path = Path(folder)
        created = [parent for parent in (path, *path.parents) if not parent.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise InputError(f"output folder {path} is not empty")
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise InputError(f"output folder {path} cannot be written: {error.strerror or error}") from error
        return cls(path, created, new=True)

    def write(self, run: Run, *, checkpoint: Checkpoint | None = None, interrupted: bool = False) -> None:
        """Write or rewrite all files; a failed write leaves the earlier files unchanged.

        Args:
            run: The results.
            checkpoint: The state to resume from; without one, an earlier checkpoint is removed.
            interrupted: Whether the user interrupted the run.
        """
        try:
            with tempfile.TemporaryDirectory(dir=self.path, prefix=".writing-") as temporary:
                names = _write_files(run, Path(temporary), interrupted)
                if checkpoint is not None:
                    with (Path(temporary) / CHECKPOINT).open("wb") as file:
                        checkpoint.write(file)
                    names.insert(1, CHECKPOINT)  # after the scenario, without which it cannot be resumed
                for name in names:
                    (Path(temporary) / name).replace(self.path / name)
        except (OSError, pa.ArrowException) as error:
            self.abandon()
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
            saved = f"; its first {rounds} rounds are saved" if (rounds := self.rounds_saved()) else ""
            raise InputError(f"output folder {self.path} cannot be written: {reason}{saved}") from error
        self._written = True
        if checkpoint is None:
            (self.path / CHECKPOINT).unlink(missing_ok=True)

    def remove_segments(self) -> None:
        """Remove the segments of a finished run, whose rows are in its tables."""
        remove_segments(self.path)

    def rounds_saved(self) -> int:
        """Return the number of rounds that the folder's files hold."""
        try:
            return int(json.loads(read_regular(self.path / "status.json"))["round"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def abandon(self) -> None:
        """Remove the folders created for this run, unless results have been written to them."""
        if self._new and not self._written:
            self.remove_segments()
            with contextlib.suppress(OSError):  # another run may use a parent folder by now
                for folder in self._created:
                    folder.rmdir()


def _write_files(run: Run, folder: Path, interrupted: bool) -> list[str]:
    """Write all files of a run into ``folder`` and return their names, the scenario first and the status last."""
    for name in run.tables:
        write_table(run.tables, name, folder)
    if run.model:
        (folder / MODEL).write_bytes(model_bytes(dict(run.model)))
    values = run.scenario.model_dump() | ({} if run.settings is None else {"run": run.settings.model_dump()})
    (folder / "scenario.toml").write_text(to_toml(values), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(run.summary, indent=2, allow_nan=False) + "\n")
    done, rounds = run.summary["rounds"], run.scenario.rounds
    state = "finished" if done == rounds else "interrupted" if interrupted else "running"
    status = {"round": done, "rounds": rounds, "state": state}
    (folder / "status.json").write_text(json.dumps(status) + "\n")
    extra = [MODEL] if run.model else []
    if run.provenance:
        (folder / PROVENANCE).write_text(json.dumps(run.provenance, indent=2) + "\n", encoding="utf-8")
        extra.append(PROVENANCE)
    return ["scenario.toml", *(f"{name}.parquet" for name in run.tables), *extra, "summary.json", "status.json"]
