"""The experiments of the paper's evaluation, and the store that keeps their results on disk.

An experiment is a task, a policy, a setting and a reading of the paper. Its schedules are computed for many seeds at
once and saved in one file per seed, as are the learning curves. Existing files are not computed again, so an
interrupted run continues where it stopped. Learning batches the seeds of many experiments.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.experiments.experiment_settings import SETTINGS as SETTINGS
from fedlane.experiments.experiment_settings import with_setting
from fedlane.experiments.readings.axes import PaperReading
from fedlane.experiments.readings.design import reading_named, stored_design
from fedlane.files import READ_ERRORS, file_name, load_arrays, write_atomically
from fedlane.learning.schedule import Curves, LearningTask, Schedule, learn
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.scenario import Scenario
from fedlane.scheduling.registry import policies, split_name
from fedlane.simulation.run import Simulation, learning_task
from fedlane.simulation.setup import prepare
from fedlane.validate import InputError

TASKS = {"fashion-mnist": "paper-fmnist", "cifar10": "paper-cifar10"}
"""Preset of each task."""
READINGS = ("calibrated", "literal", *(reading.name for reading in stored_design()))
"""Readings of the paper: its exploration bonus scaled or as printed (reading 11), and those of the map of readings."""


@dataclass(frozen=True)
class Experiment:
    """A task run with a policy in a setting, under one reading of the paper."""

    task: str
    policy: str
    setting: str = "base"
    reading: str = "calibrated"
    """`calibrated`, `literal` for the exploration bonus as printed in the paper (reading 11), or one of the map's."""

    @property
    def name(self) -> str:
        """Name of the experiment's folder in a store."""
        return file_name(f"{self.task}_{self.setting}_{self.reading}_{_stored_policy(self.policy)}")

    def scenario(self, rounds: int | None = None) -> Scenario:
        """Scenario of the experiment, with its reading's number of rounds unless ``rounds`` is given."""
        scenario = Scenario.load(TASKS[self.task] + ("-literal" if self.reading == "literal" else ""))
        if self.reading not in ("calibrated", "literal"):
            scenario = scenario.with_values(reading_named(self.reading).values())
        scenario = with_setting(scenario, self.setting)
        return scenario if rounds is None else scenario.with_values({"rounds": rounds})


def _stored_policy(label: str) -> str:
    """Return a policy's name in a store, which tells versions of its results apart.

    What stores have under the name `lane` is of the rule that is called `lane-2026` now.
    """
    name = split_name(label)[0]
    version = getattr(policies().get(name), "version", 1)
    stored = label.replace("lane-2026", "lane", 1) if name == "lane-2026" else label
    return stored if version == 1 else f"{stored}_v{version}"


def under(experiment: Experiment, reading: PaperReading | None) -> Experiment:
    """Return a calibrated experiment under a reading of the map, or the experiment itself without one."""
    if reading is None or experiment.reading != "calibrated":
        return experiment
    return replace(experiment, policy=reading.policy(experiment.policy), reading=reading.name)


SeededExperiment = tuple[Experiment, int]
"""An experiment and one of its seeds."""


@dataclass(frozen=True)
class Result:
    """Results of an experiment for one seed."""

    client: IntArray
    """(T, N): client that used each channel, -1 for an idle channel."""
    punctual: BoolArray
    """(T, N): whether that client met the deadline."""
    delay_s: FloatArray
    """(T,): duration of each round."""
    queue: FloatArray
    """(T, U): virtual queues after each round."""
    quota: FloatArray
    """(U,): quotas used by the policy, slack included."""
    learned: Curves | None = None
    """Learning curves of one replica; None if no model has been trained from the schedule."""

    def share(self, of: str = "punctual") -> FloatArray:
        """(U,): share of rounds in which each client was punctual, or assigned if ``of`` is "assigned"."""
        counted = self.client[self.punctual] if of == "punctual" else self.client[self.client >= 0]
        return np.bincount(counted, minlength=len(self.quota)) / len(self.delay_s)


class ResultStore:
    """Results on disk: one file per kind (`schedule`, `learned`, ...), experiment and seed."""

    def __init__(self, folder: Path, rounds: int = 500) -> None:
        self.folder, self.rounds = folder, rounds

    def _path(self, kind: str, experiment: Experiment, seed: int) -> Path:
        return self.folder / f"{kind}-{self.rounds}" / experiment.name / f"seed-{seed}.npz"

    def missing(self, kind: str, experiment: Experiment, seeds: Iterable[int]) -> list[int]:
        """Seeds without a stored result of this kind."""
        return [seed for seed in seeds if not self._path(kind, experiment, seed).is_file()]

    def read(self, kind: str, experiment: Experiment, seed: int) -> dict[str, NDArray[Any]]:
        """Read the arrays of one stored result."""
        return _load(self._path(kind, experiment, seed))

    def write(self, kind: str, experiment: Experiment, seed: int, arrays: dict[str, NDArray[Any]]) -> None:
        """Store the arrays of one result."""
        _save(self._path(kind, experiment, seed), arrays)

    def schedule(self, experiment: Experiment, seeds: Sequence[int]) -> None:
        """Compute the missing schedules of an experiment, all seeds at once."""
        missing = self.missing("schedule", experiment, seeds)
        if not missing:
            return
        simulation = Simulation(experiment.scenario(self.rounds), experiment.policy, missing)
        simulation.play()
        for r, seed in enumerate(missing):
            _save(self._path("schedule", experiment, seed), schedule_arrays(simulation, r))

    def result(self, experiment: Experiment, seed: int) -> Result:
        """Read the results of one seed, including the learning curves if they are stored."""
        schedule = _load(self._path("schedule", experiment, seed))
        path = self._path("learned", experiment, seed)
        try:
            learned = None
            if path.is_file():
                curves = check_curves(_load(path), 1, self.rounds)
                learned = Curves(weights=np.zeros((1, 0)), **curves)
            return Result(learned=learned, **_checked_schedule(schedule, self.rounds))
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"{experiment.name}, seed {seed}: not a file written by FedLane ({error})") from error

    def joint_schedule(self, wanted: Sequence[SeededExperiment]) -> Schedule:
        """Join stored schedules into one, with one replica each; all must have the same task, batch size and tau."""
        results = [self.result(experiment, seed) for experiment, seed in wanted]
        tasks = [_learning_task(experiment, seed, self.rounds) for experiment, seed in wanted]
        return Schedule(
            _joined(tasks),
            np.stack([result.client for result in results]),
            np.stack([result.punctual for result in results]),
            np.stack([result.delay_s for result in results]),
        )

    def save_curves(self, wanted: Sequence[SeededExperiment], curves: Curves) -> None:
        """Save learning curves; replica r belongs to ``wanted[r]``."""
        for r, (experiment, seed) in enumerate(wanted):
            arrays = {
                "round": curves.round,
                "clock_s": curves.clock_s[r : r + 1],
                "accuracy": curves.accuracy[r : r + 1],
                "loss": curves.loss[r : r + 1],
            }
            _save(self._path("learned", experiment, seed), arrays)

    def learn(
        self,
        wanted: Sequence[SeededExperiment],
        device: str = "cpu",
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        """Train from stored schedules as one batch, and save the curves."""
        self.save_curves(wanted, learn(self.joint_schedule(wanted), device, progress))


def schedule_arrays(simulation: Simulation, r: int) -> dict[str, NDArray[Any]]:
    """Return what is stored of the schedule of replica ``r``."""
    trace = simulation.trace
    return {
        "client": trace.client[r],
        "punctual": trace.punctual[r],
        "delay_s": trace.delay_s[r],
        "queue": trace.queue[r],
        "quota": simulation.quota[r],
    }


def check_curves(arrays: Mapping[str, NDArray[Any]], replicas: int, rounds: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of learning curves; raise `InputError` unless they fit together.

    Args:
        arrays: Arrays by name: round (K,), and clock_s, accuracy and loss (R, K).
        replicas: R.
        rounds: Number of rounds of the schedule that the curves belong to.
    """
    tested = arrays["round"]
    if tested.ndim != 1 or tested.dtype.kind != "i" or not np.all((tested >= 0) & (tested < rounds)):
        raise InputError(f"round must hold whole numbers from 0 to {rounds - 1}")
    shape = (replicas, len(tested))
    return {"round": tested, **{name: _plain(arrays, name, "f", shape) for name in ("clock_s", "accuracy", "loss")}}


def _checked_schedule(arrays: Mapping[str, NDArray[Any]], rounds: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of a stored schedule; raise `InputError` unless they fit together."""
    channels, clients = arrays["client"].shape[-1:], arrays["quota"].shape[-1:]
    checked = {
        "client": _plain(arrays, "client", "i", (rounds, *channels)),
        "punctual": _plain(arrays, "punctual", "b", (rounds, *channels)),
        "delay_s": _plain(arrays, "delay_s", "f", (rounds,)),
        "queue": _plain(arrays, "queue", "f", (rounds, *clients)),
        "quota": _plain(arrays, "quota", "f", clients),
    }
    client = checked["client"]
    if not clients or client.min(initial=-1) < -1 or client.max(initial=-1) >= clients[0]:
        raise InputError("client names a client that does not exist")
    if np.any(checked["punctual"] & (client < 0)):
        raise InputError("punctual is true on a channel without a client")
    return checked


def _plain(arrays: Mapping[str, NDArray[Any]], name: str, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array, whose type must have one of NumPy's kinds and which must have a shape."""
    array = arrays[name]
    if array.shape != shape or array.dtype.kind != kind:
        raise InputError(f"{name} must have the shape {shape} and the kind '{kind}', got {array.dtype} {array.shape}")
    return array


def batches(wanted: Iterable[SeededExperiment], max_size: int) -> list[list[SeededExperiment]]:
    """Group experiments that can be trained as replicas of one federation, at most ``max_size`` per group."""
    groups: dict[tuple[object, ...], list[SeededExperiment]] = {}
    for experiment, seed in wanted:
        scenario = experiment.scenario()
        samples = scenario.data.samples_per_client
        kind = (experiment.task, samples, scenario.learning, scenario.network.clients, scenario.network.channels)
        groups.setdefault(kind, []).append((experiment, seed))
    return [group[first : first + max_size] for group in groups.values() for first in range(0, len(group), max_size)]


def _learning_task(experiment: Experiment, seed: int, rounds: int) -> LearningTask:
    return learning_task(prepare(experiment.scenario(rounds), [seed]))


def _joined(tasks: Sequence[LearningTask]) -> LearningTask:
    """Join tasks of one replica each into one task of many replicas."""
    first, specs = tasks[0], [task.mechanism for task in tasks]
    mechanism = replace(
        specs[0],
        batch_size=np.concatenate([spec.batch_size for spec in specs]),
        sample_rate=np.concatenate([spec.sample_rate for spec in specs]),
        step_noise=np.concatenate([spec.step_noise for spec in specs]),
        upload_noise=np.concatenate([spec.upload_noise for spec in specs]),
    )
    return replace(
        first,
        mechanism=mechanism,
        label_counts=np.concatenate([task.label_counts for task in tasks]),
        seeds=np.concatenate([task.seeds for task in tasks]),
    )


def _save(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write a file atomically, and create its folder if needed."""
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        if not path.is_file():
            raise InputError(f"{path} does not exist: it has not been computed yet")
        return load_arrays(path)
    except InputError:
        raise
    except READ_ERRORS as error:
        raise InputError(f"{path} is damaged ({error}): remove it to compute it again") from error
