"""The work of `fedlane reproduce` on the engine: schedules of an experiment, and learning from a piece.

Results travel as tables with one row per seed and come to rest in the `ResultStore`, one file per seed: a schedule is
the same in any batch of seeds, so that each can be kept, exported and reused alone.
"""

import base64
import io
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedlane.experiments.engine.cells import Cell
from fedlane.experiments.engine.computing import Runner, compute
from fedlane.experiments.engine.measuring import one_thread
from fedlane.experiments.engine.work_batches import FinishedBatch, WorkBatch, digest
from fedlane.experiments.store import Experiment, ResultStore, SeededExperiment, schedule_arrays
from fedlane.learning.schedule import Schedule, learn
from fedlane.scenario import Scenario
from fedlane.simulation.simulation import Simulation
from fedlane.validate import InputError

SEEDS_PER_BATCH = 100
"""Largest number of seeds that are scheduled together."""
_HERE = "fedlane.experiments.figure_work"
Arrays = Mapping[str, NDArray[Any]]


def schedule(values: Mapping[str, Any]) -> pa.Table:
    """Play the schedules of some seeds; ``values`` are ``scenario``, ``policy`` and ``seeds``."""
    simulation = Simulation(Scenario.from_values(values["scenario"]), values["policy"], values["seeds"])
    simulation.play()
    return arrays_table([schedule_arrays(simulation, r) for r in range(len(values["seeds"]))])


def curves(values: Mapping[str, Any]) -> pa.Table:
    """Train from a schedule on one thread; ``values`` are ``schedule`` (the file, in base 64) and ``device``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.npz"
        path.write_bytes(base64.b64decode(values["schedule"]))
        joint = Schedule.load(path)
    with one_thread(True):
        learned = learn(joint, values["device"])
    rows = range(len(joint.client))
    return arrays_table([_curves_of(learned, r) for r in rows])


def _curves_of(learned: Any, r: int) -> dict[str, NDArray[Any]]:
    named = {name: getattr(learned, name)[r : r + 1] for name in ("clock_s", "accuracy", "loss")}
    return {"round": learned.round, **named}


def arrays_table(rows: Sequence[Arrays]) -> pa.Table:
    """Return a table with one row per set of named arrays, each array in NumPy's own format."""

    def encoded(array: NDArray[Any]) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        return buffer.getvalue()

    return pa.table({name: pa.array([encoded(row[name]) for row in rows], pa.binary()) for name in rows[0]})


def table_arrays(table: pa.Table) -> list[dict[str, NDArray[Any]]]:
    """Return the sets of arrays that `arrays_table` put into a table."""
    return [
        {name: np.load(io.BytesIO(content), allow_pickle=False) for name, content in row.items()}
        for row in table.to_pylist()
    ]


class FigureResults:
    """Takes the engine's results and writes them to the store of `fedlane reproduce`.

    Args:
        store: The store.
        kind: Kind of the results, ``schedule`` or ``learned``.
        members: For each batch, by key, the experiments and seeds of its rows.
    """

    def __init__(self, store: ResultStore, kind: str, members: Mapping[str, Sequence[SeededExperiment]]) -> None:
        self.store, self.kind, self.members = store, kind, members

    def keys(self) -> set[str]:
        """Return no keys: batches are made of missing results only."""
        return set()

    def write(self, key: str, content: bytes) -> None:
        """Store one file per row."""
        rows = table_arrays(pq.read_table(pa.BufferReader(content)))
        for (experiment, seed), arrays in zip(self.members[key], rows, strict=True):
            self.store.write(self.kind, experiment, seed, arrays)


def compute_missing(
    store: ResultStore,
    kind: str,
    batches: Mapping[str, tuple[WorkBatch, Sequence[SeededExperiment]]],
    runner: Runner,
    on_finished: Callable[[FinishedBatch], None],
) -> None:
    """Compute batches of missing results and store them.

    Raises:
        InputError: A batch failed. The others are stored.
    """
    members = {key: rows for key, (_, rows) in batches.items()}
    keeper = FigureResults(store, kind, members)
    report = compute([batch for batch, _ in batches.values()], keeper, runner, on_finished)
    for key, line in report.failures.items():
        experiment, seed = members[key][0]
        raise InputError(f"{experiment.name}, seed {seed}: {line}")


def schedule_batches(
    store: ResultStore, wanted: Iterable[tuple[Experiment, Sequence[int]]]
) -> dict[str, tuple[WorkBatch, Sequence[SeededExperiment]]]:
    """Return batches of the missing schedules of some experiments, each with its seeds."""
    batches: dict[str, tuple[WorkBatch, Sequence[SeededExperiment]]] = {}
    for experiment, seeds in wanted:
        missing, scenario = store.missing("schedule", experiment, seeds), experiment.scenario(store.rounds)
        for first in range(0, len(missing), SEEDS_PER_BATCH):
            part = [int(seed) for seed in missing[first : first + SEEDS_PER_BATCH]]
            description = Cell(scenario, experiment.policy, tuple(part), learning=False).description()
            key = digest({**description, "seeds": part, "experiment": experiment.name})
            values = {"scenario": scenario.model_dump(mode="json"), "policy": experiment.policy, "seeds": part}
            batches[key] = WorkBatch(key, f"{_HERE}:schedule", values), [(experiment, seed) for seed in part]
    return batches


def piece_batches(
    store: ResultStore, pieces: Sequence[Sequence[SeededExperiment]], device: str
) -> dict[str, tuple[WorkBatch, Sequence[SeededExperiment]]]:
    """Return one batch for each piece to be learned; it carries the piece's schedules."""
    batches: dict[str, tuple[WorkBatch, Sequence[SeededExperiment]]] = {}
    for piece in pieces:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "schedule.npz"
            store.joint_schedule(piece).save(path)
            content = base64.b64encode(path.read_bytes()).decode()
        key = digest({"rows": [[experiment.name, int(seed)] for experiment, seed in piece], "device": device})
        values = {"schedule": content, "device": device}
        batches[key] = WorkBatch(key, f"{_HERE}:curves", values, needs_gpu=device == "cuda"), piece
    return batches
