"""Saved schedules: the schedule of all rounds is computed first, and the models are trained from it later.

For most policies the model does not influence the schedule. The schedule can then be computed on one machine, and the
models trained on another with a GPU, PyTorch and NumPy. The data set must be installed there or come with the package.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.files import READ_ERRORS, load_arrays
from fedlane.learning.datasets import dataset_info, load_dataset
from fedlane.learning.federation import PLAIN, FederationBatch
from fedlane.learning.models import dataset_model
from fedlane.learning.optimization import Optimization
from fedlane.learning.schedule_checks import LATER, checked_optimization, checked_rounds, checked_task
from fedlane.records import BoolArray, FloatArray, IntArray, MechanismSpec
from fedlane.validate import InputError, check_proximal

_STORED = tuple(field.name for field in fields(MechanismSpec) if field.name != "loss_query")
"""Fields of a mechanism that a schedule stores. A schedule that depends on losses is not stored."""


@dataclass(frozen=True)
class LearningTask:
    """Everything that R federations need for learning, as plain values."""

    dataset: str
    model: str
    learning_rate: float
    evaluate_every: int
    mechanism: MechanismSpec
    label_counts: IntArray
    """(R, U, M): training samples of each class at each client."""
    seeds: IntArray
    """(R,)"""
    optimization: Optimization = PLAIN
    """Optimisers, aggregation and learning-rate schedule; files of 0.1.0 have none of it."""
    digest: str = ""
    """SHA-256 of a user's data set; empty for a built-in one."""
    natural: bool = False
    """Whether the clients are those that come with the data."""

    def federation(self, device: str) -> FederationBatch:
        """Return the federations in their state before the first round.

        Raises:
            InputError: The model, the data set or the device is unknown, or the mechanism does not fit the data.
        """
        info, per_record = dataset_info(self.dataset), self.mechanism.clip_norm is not None
        if info.digest != self.digest:
            raise InputError(f"data.dataset '{self.dataset}' has changed since the schedule was made")
        model = dataset_model(self.model, info, per_record=per_record)
        seeds = [int(seed) for seed in self.seeds]
        data = load_dataset(self.dataset)
        if not self.natural:
            data = replace(data, train=replace(data.train, clients=None))
        try:
            return FederationBatch(
                model, data, self.label_counts, seeds, self.mechanism, self.learning_rate, device, self.optimization
            )
        except InputError:
            raise
        except ValueError as error:  # values of a file that do not fit together
            raise InputError(f"the learning task is inconsistent: {error}") from error

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return every value as a named array; an infinite clip norm means no clipping.

        The digest and natural clients are left out where there are none: older versions read such files.
        """
        left_out = {"mechanism", "optimization", *(name for name in LATER if not getattr(self, name))}
        arrays = {f.name: np.asarray(getattr(self, f.name)) for f in fields(self) if f.name not in left_out}
        arrays |= {
            f"optimization.{f.name}": np.asarray(getattr(self.optimization, f.name)) for f in fields(Optimization)
        }
        spec = {f"mechanism.{name}": getattr(self.mechanism, name) for name in _STORED}
        spec["mechanism.clip_norm"] = np.inf if self.mechanism.clip_norm is None else self.mechanism.clip_norm
        return {**arrays, **{name: np.asarray(value) for name, value in spec.items()}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "LearningTask":
        """Return the task that `to_arrays` wrote.

        Raises:
            KeyError: A value is missing.
            InputError: A value has the wrong type or shape, or is out of bounds.
        """
        values = checked_task(arrays)
        spec = {name: values.pop(f"mechanism.{name}") for name in _STORED}
        if np.isinf(spec["clip_norm"]):
            spec["clip_norm"] = None
        optimization = checked_optimization(arrays)
        check_proximal(optimization.proximal, values["learning_rate"])
        return cls(mechanism=MechanismSpec(**spec), optimization=optimization, **values)


@dataclass(frozen=True)
class Schedule:
    """Which client used which channel in every round, whether it was punctual, and the learning task.

    Attributes:
        task: The learning task of the federations.
        client: (R, T, N) client on each channel, -1 where the channel was idle.
        punctual: (R, T, N) whether that client met the deadline.
        delay_s: (R, T) duration of each round in seconds.

    Examples:
        >>> from fedlane import Scenario, Simulation
        >>> simulation = Simulation(Scenario.load("quickstart").with_values({"rounds": 5}), "lane", seeds=[0])
        >>> while not simulation.finished:
        ...     outcome = simulation.step()
        >>> simulation.schedule().client.shape
        (1, 5, 4)
    """

    task: LearningTask
    client: IntArray
    punctual: BoolArray
    delay_s: FloatArray

    def save(self, path: str | Path) -> None:
        """Write the schedule to a `.npz` file.

        Args:
            path: File to write; an existing one is overwritten.

        Raises:
            InputError: If the file cannot be written.
        """
        task = {f"task.{name}": array for name, array in self.task.to_arrays().items()}
        rounds = {"client": self.client, "punctual": self.punctual, "delay_s": self.delay_s}
        try:
            with Path(path).open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **task, **rounds)
        except OSError as error:
            raise InputError(f"schedule {path} cannot be written: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | Path) -> "Schedule":
        """Read a schedule that `save` wrote.

        Args:
            path: File to read.

        Returns:
            The schedule.

        Raises:
            InputError: If the file is missing, damaged or not a schedule.
        """
        try:
            stored = load_arrays(Path(path))
            task = {name.removeprefix("task."): stored[name] for name in stored if name.startswith("task.")}
            learning_task = LearningTask.from_arrays(task)
            replicas, clients, _ = learning_task.label_counts.shape
            return cls(learning_task, **checked_rounds(stored, replicas, clients))
        except READ_ERRORS as error:
            raise InputError(f"schedule {path} cannot be read: {error}") from error


@dataclass(frozen=True)
class Curves:
    """Test results over the rounds of a schedule, and the final models."""

    round: IntArray
    """(K,): rounds after which the models were tested, from 0."""
    clock_s: FloatArray
    """(R, K): simulated time at the end of these rounds."""
    accuracy: FloatArray
    """(R, K)"""
    loss: FloatArray
    """(R, K)"""
    weights: FloatArray
    """(R, d): the final models."""


def learn(schedule: Schedule, device: str = "cpu", progress: Callable[[int, float], None] | None = None) -> Curves:
    """Train every replica's model through all rounds of a schedule.

    Args:
        schedule: The schedule and its learning task.
        device: `cpu` or `cuda`.
        progress: Called after every test with the number of rounds played and the mean accuracy over replicas.

    Returns:
        Accuracy and loss (R, K) of the K tested rounds, and the final weights (R, d).
    """
    federation = schedule.task.federation(device)
    rounds = schedule.delay_s.shape[1]
    tested, accuracy, loss = [], [], []
    for t in range(rounds):
        federation.play(t, schedule.client[:, t], schedule.punctual[:, t])
        if t == rounds - 1 or (t + 1) % schedule.task.evaluate_every == 0:
            evaluation = federation.evaluate()
            tested.append(t)
            accuracy.append(evaluation.accuracy)
            loss.append(evaluation.loss)
            if progress is not None:
                progress(t + 1, float(evaluation.accuracy.mean()))
    clock_s = np.cumsum(schedule.delay_s, axis=1)[:, tested]
    weights = federation.weights.cpu().numpy()
    return Curves(np.array(tested), clock_s, np.array(accuracy).T, np.array(loss).T, weights)
