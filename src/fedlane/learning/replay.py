"""Learning from a saved schedule, on a machine with PyTorch and NumPy alone.

    python -m fedlane.learning.replay schedule.npz --device cuda --out curves.npz

For most policies the model does not influence the schedule, so that it can be computed where that is cheap and
learned from where the GPU is. The data must be there, or come with the package.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.files import READ_ERRORS, load_arrays
from fedlane.learning.datasets import dataset_info, load_dataset
from fedlane.learning.federation import FederationBatch
from fedlane.learning.models import make_model
from fedlane.records import BoolArray, FloatArray, IntArray, MechanismSpec
from fedlane.validate import InputError, at_least


@dataclass(frozen=True)
class LearningTask:
    """All that a federation needs to know to learn, as plain values."""

    dataset: str
    model: str
    learning_rate: float
    evaluate_every: int
    mechanism: MechanismSpec
    label_counts: IntArray
    """(R, U, M)"""
    seeds: IntArray
    """(R,)"""

    def federation(self, device: str) -> FederationBatch:
        """The federations, before their first round."""
        info = dataset_info(self.dataset)
        return FederationBatch(
            make_model(self.model, info.input_shape, info.classes),
            load_dataset(self.dataset),
            self.label_counts,
            [int(seed) for seed in self.seeds],
            self.mechanism,
            self.learning_rate,
            device,
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Every value as an array, by name; a clip norm of infinity stands for none."""
        own = {f.name: np.asarray(getattr(self, f.name)) for f in fields(self) if f.name != "mechanism"}
        spec = {f"mechanism.{f.name}": getattr(self.mechanism, f.name) for f in fields(MechanismSpec)}
        spec["mechanism.clip_norm"] = np.inf if self.mechanism.clip_norm is None else self.mechanism.clip_norm
        return {**own, **{name: np.asarray(value) for name, value in spec.items()}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "LearningTask":
        """The task that `to_arrays` wrote."""

        def plain(name: str) -> Any:
            return arrays[name].item() if arrays[name].ndim == 0 else arrays[name]

        spec = {f.name: plain(f"mechanism.{f.name}") for f in fields(MechanismSpec)}
        if np.isinf(spec["clip_norm"]):
            spec["clip_norm"] = None
        own = {f.name: plain(f.name) for f in fields(cls) if f.name != "mechanism"}
        return cls(mechanism=MechanismSpec(**spec), **own)


@dataclass(frozen=True)
class Schedule:
    """Who used which channel and who was punctual, for all rounds, and what is to be learned."""

    task: LearningTask
    client: IntArray
    """(R, T, N): -1 for nobody."""
    punctual: BoolArray
    """(R, T, N)"""
    delay_s: FloatArray
    """(R, T)"""

    def save(self, path: str | Path) -> None:
        arrays = {f"task.{name}": array for name, array in self.task.to_arrays().items()}
        own = {"client": self.client, "punctual": self.punctual, "delay_s": self.delay_s}
        try:
            with Path(path).open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays, **own)
        except OSError as error:
            raise InputError(f"schedule {path} cannot be written: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | Path) -> "Schedule":
        try:
            stored = load_arrays(Path(path))
            task = {name.removeprefix("task."): stored[name] for name in stored if name.startswith("task.")}
            return cls(LearningTask.from_arrays(task), stored["client"], stored["punctual"], stored["delay_s"])
        except READ_ERRORS as error:
            raise InputError(f"schedule {path} cannot be read: {error}") from error


@dataclass(frozen=True)
class Curves:
    """What was learned: the model after some rounds, and how it did on the test set on the way."""

    round: IntArray
    """(K,): tested rounds, from 0."""
    clock_s: FloatArray
    """(R, K)"""
    accuracy: FloatArray
    loss: FloatArray
    weights: FloatArray
    """(R, d): the final models."""


def learn(schedule: Schedule, device: str = "cpu", progress: Callable[[int, float], None] | None = None) -> Curves:
    """Train every replica through the schedule; ``progress`` is called with rounds done and mean accuracy."""
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


def main() -> None:
    """Learn from a schedule file and write the curves."""
    parser = argparse.ArgumentParser(prog="fedlane.learning.replay", description="Learn from a saved schedule.")
    parser.add_argument("schedule")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", default="curves.npz")
    parser.add_argument("--evaluate-every", type=int)
    parser.add_argument("--weights", action="store_true", help="write the final models too")
    options = parser.parse_args()
    try:
        schedule = Schedule.load(options.schedule)
        try:  # before the work, not after it
            with Path(options.out).open("ab"):
                pass
        except OSError as error:
            raise InputError(f"{options.out} cannot be written: {error.strerror}") from error
        if options.evaluate_every is not None:
            at_least("--evaluate-every", options.evaluate_every, 1)
            schedule = replace(schedule, task=replace(schedule.task, evaluate_every=options.evaluate_every))
        start = time.perf_counter()
        curves = learn(schedule, options.device, lambda t, a: print(f"round {t}: accuracy {a:.4f}", flush=True))
        seconds = time.perf_counter() - start
    except InputError as error:
        print(f"fedlane: {error}", file=sys.stderr)
        sys.exit(2)
    with Path(options.out).open("wb") as file:
        arrays = {name: array for name, array in curves.__dict__.items() if name != "weights" or options.weights}
        np.savez_compressed(file, allow_pickle=False, **arrays)
    replicas, rounds = schedule.delay_s.shape
    print(f"{replicas} replicas x {rounds} rounds in {seconds:.1f} s ({replicas * rounds / seconds:,.0f} a second)")


if __name__ == "__main__":
    main()
