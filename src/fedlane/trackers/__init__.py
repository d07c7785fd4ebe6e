"""Trackers: whoever wants to be told of a run as it goes, and what they are told.

    class Mine:                                  # any object with these three
        def start(self, scenario, policy, seeds, *, round=0): ...
        def round(self, record): ...
        def end(self, summary, state): ...

    simulate("quickstart", trackers=[Mine()])

`tensorboard[:DIR]` and `mlflow[:URI]` are made by `make_tracker` (extra `trackers`).
"""

import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedlane.records import FloatArray, IntArray
from fedlane.validate import InputError, unknown

if TYPE_CHECKING:  # imported where they are used: `fedlane --help` answers at once
    from collections.abc import Callable, Iterator

    from fedlane.scenario import Scenario
    from fedlane.simulation.run import Simulation

KNOWN = {"tensorboard": "tensorboard", "mlflow": "mlflow"}
"""Trackers by name, and the module that each needs."""
MEASURES = ("delay_s", "clock_s", "punctual", "accuracy", "loss", "max_queue", "epsilon")
PER_SEED = 32
"""Runs of more seeds are tracked by their means alone."""


@dataclass(frozen=True)
class RoundRecord:
    """One round in every replica; each array (R,)."""

    round: int
    delay_s: FloatArray
    clock_s: FloatArray
    """Time on the air, this round included."""
    punctual: IntArray
    """Clients in time."""
    max_queue: FloatArray
    """The longest queue after the round."""
    accuracy: FloatArray | None
    """None where the model was not tested."""
    loss: FloatArray | None
    epsilon: FloatArray | None
    """The largest that a client has spent; None without a mechanism."""

    def values(self) -> dict[str, FloatArray]:
        """What there is, by name, in the order of `MEASURES`."""
        there = {name: getattr(self, name) for name in MEASURES}
        return {name: np.asarray(array, np.float64) for name, array in there.items() if array is not None}


class Tracker(Protocol):
    """What a tracker is: three calls."""

    def start(self, scenario: "Scenario", policy: str, seeds: Sequence[int], *, round: int = 0) -> None:
        """A run begins, or goes on after ``round`` rounds."""

    def round(self, record: RoundRecord) -> None:
        """A round has been played."""

    def end(self, summary: Mapping[str, Any] | None, state: str) -> None:
        """The run is ``finished``, ``interrupted`` or ``failed``; of a failed one there may be no summary."""


class Tracking:
    """Tells trackers of a simulation's rounds; none costs nothing."""

    def __init__(self, trackers: Sequence[Tracker], tell: "Callable[[str], object]" = warnings.warn) -> None:
        self._trackers = tuple(trackers)
        self._tell = tell
        self._clock_s: FloatArray | None = None
        self._open: list[Tracker] = []

    def start(self, simulation: "Simulation") -> None:
        self._clock_s = simulation.trace.delay_s[:, : simulation.round].sum(axis=1)
        for tracker in self._trackers:
            self._open.append(tracker)
            tracker.start(simulation.scenario, simulation.label, simulation.setup.seeds, round=simulation.round)

    def round(self, simulation: "Simulation") -> None:
        """Tell of the round just played."""
        if not self._open or self._clock_s is None:
            return
        trace, t = simulation.trace, simulation.round - 1
        self._clock_s = self._clock_s + trace.delay_s[:, t]
        tested = not np.isnan(trace.accuracy[:, t]).any()
        spending = simulation.spending
        record = RoundRecord(
            round=t,
            delay_s=trace.delay_s[:, t].copy(),
            clock_s=self._clock_s,
            punctual=np.sum(trace.total_s_at(t) <= simulation.setup.problem.deadline_s, axis=1),
            max_queue=trace.queue[:, t].max(axis=1).astype(np.float64),
            accuracy=trace.accuracy[:, t].copy() if tested else None,
            loss=trace.loss[:, t].copy() if tested else None,
            epsilon=None if spending is None else spending.epsilon(simulation.uploads).max(axis=1),
        )
        for tracker in tuple(self._open):
            with self._surviving(tracker):
                tracker.round(record)

    def end(self, summary: Mapping[str, Any] | None, state: str) -> None:
        """Tell of the end, once."""
        for tracker in tuple(self._open):
            with self._surviving(tracker):
                tracker.end(summary, state)
        self._open = []

    @contextmanager
    def _surviving(self, tracker: Tracker) -> "Iterator[None]":
        """A store that fails in the middle is said and left: it must not cost the run."""
        try:
            yield
        except InputError as error:
            self._open.remove(tracker)
            self._tell(f"{error}; the run goes on without it")

    @contextmanager
    def closing(self) -> "Iterator[None]":
        """Whatever ends this context early ends the trackers too."""
        try:
            yield
        except BaseException as error:
            self.end(None, "interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise


def make_tracker(text: str, name: str, folder: Path) -> Tracker:
    """The tracker that a user named: ``tensorboard[:DIR]`` or ``mlflow[:URI]``, for the run ``name`` in ``folder``.

    TensorBoard writes to DIR/name, by default to ``folder``/tensorboard. MLflow's URI is by default its own.
    """
    kind, where = check_tracker(text)
    if kind == "mlflow":
        from fedlane.trackers.mlflow import MlflowTracker

        return MlflowTracker(where or None, name, folder)
    from fedlane.trackers.tensorboard import TensorBoardTracker

    return TensorBoardTracker(Path(where) / name if where else folder / "tensorboard")


def check_tracker(text: str) -> tuple[str, str]:
    """Its kind and its place; refuses an unknown kind, and one whose library is not installed."""
    kind, colon, where = text.partition(":")
    if kind not in KNOWN:
        raise unknown("tracker", kind, KNOWN)
    if colon and not where:
        raise InputError(f"--track {text} names no place: leave out the colon, or write it behind")
    if importlib.util.find_spec(KNOWN[kind]) is None:
        raise InputError(f"--track {kind} needs the extra trackers: pip install 'fedlane[trackers]'")
    return kind, where


def flattened(scenario: "Scenario") -> dict[str, str | float | int | bool]:
    """Every value of a scenario by its dotted name; lists as text, what is not set left out."""

    def walk(values: Mapping[str, Any], prefix: str) -> "Iterator[tuple[str, Any]]":
        for key, value in values.items():
            if isinstance(value, Mapping):
                yield from walk(value, f"{prefix}{key}.")
            elif value is not None:
                yield prefix + key, value if isinstance(value, str | int | float) else _text(value)

    return dict(walk(scenario.model_dump(), ""))


def _text(value: Any) -> str:
    return "[" + ", ".join(map(_text, value)) + "]" if isinstance(value, list | tuple) else str(value)


def headline(summary: Mapping[str, Any]) -> dict[str, float]:
    """A summary's measures as plain numbers: means over seeds, and the largest epsilon."""
    means = {
        name: float(measure["mean"])
        for name, measure in summary.items()
        if isinstance(measure, Mapping) and measure.get("mean") is not None and name != "time_to_accuracy"
    }
    if summary.get("privacy"):
        means["epsilon"] = float(summary["privacy"]["epsilon"]["largest"])
    return means
