"""The paper's evaluation as cells: (task, policy, setting, reading), each with seeds, each computed once.

A cell's schedule is computed for many seeds at once and saved, one file a seed; what was learned from it likewise. What
is there is never computed again, so that a run that was killed goes on. Learning batches the seeds of many cells.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.files import READ_ERRORS, file_name, load_arrays, write_atomically
from fedlane.learning.schedule import Curves, LearningTask, Schedule, learn
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.scenario import Scenario
from fedlane.simulation.run import Simulation, learning_task
from fedlane.simulation.setup import prepare
from fedlane.validate import InputError

TASKS = {"fashion-mnist": "paper-fmnist", "cifar10": "paper-cifar10"}
SETTINGS: dict[str, dict[str, Any]] = {
    "base": {},
    "private": {"privacy.epsilon": 0.8, "learning.batch_size": 10},
    "epsilon-0.8": {"privacy.epsilon": 0.8},
    "nonuniform": {"privacy.epsilon": "nonuniform"},
    "same-interference": {"network.interference_db": [2.5, 2.5]},
    "long-deadline": {"network.deadline_s": 60.0},
    "softmax": {"learning.model": "softmax"},
    "softmax-slow": {"learning.model": "softmax", "learning.learning_rate": 0.005},
    **{f"tau-{tau}": {"learning.local_iterations": tau} for tau in (1, 2, 10)},
    **{f"clients-{clients}": {"network.clients": clients} for clients in (6, 20, 40)},
    **{f"channels-{channels}": {"network.channels": channels} for channels in (2, 6, 8)},
    **{f"degree-{degree:g}": {"data.noniid_degree": degree} for degree in (0.0, 0.5, 0.95)},
    **{f"deadline-{factor:g}": {"deadline factor": factor} for factor in (0.5, 0.75, 1.5, 2.0)},
}


@dataclass(frozen=True)
class Experiment:
    """One experiment: a task under a policy in a setting, by one reading of the paper."""

    task: str
    policy: str
    setting: str = "base"
    reading: str = "calibrated"
    """calibrated, or literal (the paper's own exploration bonus)."""

    @property
    def name(self) -> str:
        """As a folder's name."""
        return file_name(f"{self.task}_{self.setting}_{self.reading}_{self.policy}")

    def scenario(self, rounds: int | None = None) -> Scenario:
        """What is run."""
        preset = TASKS[self.task] + ("-literal" if self.reading == "literal" else "")
        scenario = Scenario.load(preset)
        changes = dict(SETTINGS[self.setting])
        factor = changes.pop("deadline factor", None)
        if factor is not None:
            changes["network.deadline_s"] = factor * scenario.network.deadline_s
        return scenario.with_values(changes if rounds is None else {**changes, "rounds": rounds})


@dataclass(frozen=True)
class Result:
    """One seed of a cell."""

    client: IntArray
    """(T, N): who used each channel, -1 for nobody."""
    punctual: BoolArray
    """(T, N)"""
    delay_s: FloatArray
    """(T,)"""
    queue: FloatArray
    """(T, U)"""
    quota: FloatArray
    """(U,): as the policy served it."""
    learned: Curves | None = None
    """Rows of one replica: tested rounds, accuracy and loss."""

    def share(self, of: str = "punctual") -> FloatArray:
        """(U,): the share of rounds in which each client was punctual, or "assigned"."""
        counted = self.client[self.punctual] if of == "punctual" else self.client[self.client >= 0]
        return np.bincount(counted, minlength=len(self.quota)) / len(self.delay_s)


class ResultStore:
    """Results on disk, one file for each (cell, seed) and kind: schedules, and what was learned from them."""

    def __init__(self, folder: Path, rounds: int = 500) -> None:
        self.folder, self.rounds = folder, rounds

    def _path(self, kind: str, cell: Experiment, seed: int) -> Path:
        return self.folder / f"{kind}-{self.rounds}" / cell.name / f"seed-{seed}.npz"

    def missing(self, kind: str, cell: Experiment, seeds: Iterable[int]) -> list[int]:
        """The seeds that are still to be computed."""
        return [seed for seed in seeds if not self._path(kind, cell, seed).is_file()]

    def read(self, kind: str, cell: Experiment, seed: int) -> dict[str, NDArray[Any]]:
        """What was written of a kind."""
        return _load(self._path(kind, cell, seed))

    def write(self, kind: str, cell: Experiment, seed: int, arrays: dict[str, NDArray[Any]]) -> None:
        _save(self._path(kind, cell, seed), arrays)

    def schedule(self, cell: Experiment, seeds: Sequence[int]) -> None:
        """Compute the schedules of a cell that are missing, all seeds at once."""
        todo = self.missing("schedule", cell, seeds)
        if not todo:
            return
        simulation = Simulation(cell.scenario(self.rounds), cell.policy, todo)
        simulation.play()
        trace = simulation.trace
        for r, seed in enumerate(todo):
            arrays = {
                "client": trace.client[r],
                "punctual": trace.punctual[r],
                "delay_s": trace.delay_s[r],
                "queue": trace.queue[r],
                "quota": simulation.quota[r],
            }
            _save(self._path("schedule", cell, seed), arrays)

    def result(self, cell: Experiment, seed: int) -> Result:
        """One seed of a cell, with what was learned if it is there."""
        kept = _load(self._path("schedule", cell, seed))
        path = self._path("learned", cell, seed)
        try:
            learned = Curves(weights=np.zeros((1, 0)), **_load(path)) if path.is_file() else None
            return Result(learned=learned, **kept)
        except TypeError as error:
            raise InputError(f"{cell.name}, seed {seed}: its files are not FedLane's ({error})") from error

    def to_learn(self, wanted: Sequence[tuple[Experiment, int]]) -> Schedule:
        """The schedules of many (cell, seed) as one, a replica each; all of one task, batch size and tau."""
        results = [self.result(cell, seed) for cell, seed in wanted]
        tasks = [_learning_task(cell, seed, self.rounds) for cell, seed in wanted]
        return Schedule(
            _joined(tasks),
            np.stack([result.client for result in results]),
            np.stack([result.punctual for result in results]),
            np.stack([result.delay_s for result in results]),
        )

    def keep(self, wanted: Sequence[tuple[Experiment, int]], curves: Curves) -> None:
        """Save what was learned, a replica of the curves for each (cell, seed)."""
        for r, (cell, seed) in enumerate(wanted):
            arrays = {
                "round": curves.round,
                "clock_s": curves.clock_s[r : r + 1],
                "accuracy": curves.accuracy[r : r + 1],
                "loss": curves.loss[r : r + 1],
            }
            _save(self._path("learned", cell, seed), arrays)

    def learn(
        self,
        wanted: Sequence[tuple[Experiment, int]],
        device: str = "cpu",
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        """Learn and keep."""
        self.keep(wanted, learn(self.to_learn(wanted), device, progress))


def batches(wanted: Iterable[tuple[Experiment, int]], most: int) -> list[list[tuple[Experiment, int]]]:
    """(cell, seed) in groups that can be learned as replicas of one federation, each of at most ``most``."""
    groups: dict[tuple[object, ...], list[tuple[Experiment, int]]] = {}
    for cell, seed in wanted:
        scenario = cell.scenario()
        kind = (cell.task, scenario.learning, scenario.network.clients, scenario.network.channels)
        groups.setdefault(kind, []).append((cell, seed))
    return [group[first : first + most] for group in groups.values() for first in range(0, len(group), most)]


def _learning_task(cell: Experiment, seed: int, rounds: int) -> LearningTask:
    return learning_task(prepare(cell.scenario(rounds), [seed]))


def _joined(tasks: Sequence[LearningTask]) -> LearningTask:
    """Tasks of one replica each as one task of many."""
    first, specs = tasks[0], [task.mechanism for task in tasks]
    spec = replace(
        specs[0],
        batch_size=np.concatenate([each.batch_size for each in specs]),
        sample_rate=np.concatenate([each.sample_rate for each in specs]),
        step_noise=np.concatenate([each.step_noise for each in specs]),
        upload_noise=np.concatenate([each.upload_noise for each in specs]),
    )
    return replace(
        first,
        mechanism=spec,
        label_counts=np.concatenate([task.label_counts for task in tasks]),
        seeds=np.concatenate([task.seeds for task in tasks]),
    )


def _save(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write a file as a whole, and its folder where there is none."""
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def _load(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise InputError(f"{path} is not there: it has not been computed yet")
    try:
        return load_arrays(path)
    except READ_ERRORS as error:
        raise InputError(f"{path} is damaged: remove it, and it is computed again ({error})") from error
