"""Trackers: objects that log a run while it is played.

Any object with these three methods is a tracker:

    class MyTracker:
        def start(self, scenario, policy, seeds, *, round=0): ...
        def round(self, record): ...
        def end(self, summary, state): ...

    simulate("quickstart", trackers=[MyTracker()])

`make_tracker` makes the built-in trackers, ``tensorboard[:DIR]`` and ``mlflow[:URI]`` (extra `trackers`).
"""

import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedlane.records import MEASURES, RoundRecord
from fedlane.validate import InputError, missing_extra, unknown

if TYPE_CHECKING:  # imported only for annotations, to keep `fedlane --help` fast
    from collections.abc import Callable, Iterator

    from fedlane.scenario import Scenario

__all__ = ["MEASURES", "RoundRecord", "Tracker", "Tracking", "check_tracker", "make_tracker"]

MODULES = {"tensorboard": "tensorboard", "mlflow": "mlflow"}
"""The module that each built-in tracker needs, by the tracker's name."""


class Tracker(Protocol):
    """Interface of a tracker."""

    def start(self, scenario: "Scenario", policy: str, seeds: Sequence[int], *, round: int = 0) -> None:
        """Begin a run, or continue one of which ``round`` rounds have been played."""

    def round(self, record: RoundRecord) -> None:
        """Log one round."""

    def end(self, summary: Mapping[str, Any] | None, state: str) -> None:
        """End the run.

        Args:
            summary: The run's summary; None if the run was interrupted or failed.
            state: ``finished``, ``interrupted`` or ``failed``.
        """


class Tracking:
    """Passes every call to several trackers and drops a tracker that fails, so that the run continues.

    Args:
        trackers: The trackers; without any, nothing happens.
        warn: Called with one line when a tracker is dropped.
    """

    def __init__(self, trackers: Sequence[Tracker], warn: "Callable[[str], object]" = warnings.warn) -> None:
        self._trackers = tuple(trackers)
        self._warn = warn
        self._open: list[Tracker] = []

    @property
    def active(self) -> bool:
        """Whether any tracker has been started and is still open."""
        return bool(self._open)

    def start(self, scenario: "Scenario", policy: str, seeds: Sequence[int], *, round: int = 0) -> None:
        """Start every tracker."""
        for tracker in self._trackers:
            self._open.append(tracker)
            tracker.start(scenario, policy, seeds, round=round)

    def round(self, record: RoundRecord) -> None:
        """Pass on the record of a round."""
        for tracker in tuple(self._open):
            with self._dropping(tracker):
                tracker.round(record)

    def end(self, summary: Mapping[str, Any] | None, state: str) -> None:
        """End every open tracker; further calls do nothing."""
        for tracker in tuple(self._open):
            with self._dropping(tracker):
                tracker.end(summary, state)
        self._open = []

    @contextmanager
    def _dropping(self, tracker: Tracker) -> "Iterator[None]":
        """Drop a tracker whose storage fails, with a warning."""
        try:
            yield
        except InputError as error:
            self._open.remove(tracker)
            self._warn(f"{error}; the run continues without this tracker")

    @contextmanager
    def closing(self) -> "Iterator[None]":
        """End the trackers if the block raises an exception."""
        try:
            yield
        except BaseException as error:
            self.end(None, "interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise


def make_tracker(text: str, name: str, folder: Path) -> Tracker:
    """Make a built-in tracker.

    Args:
        text: ``tensorboard[:DIR]`` or ``mlflow[:URI]``. TensorBoard writes to ``DIR/name``, by default to
            ``folder/tensorboard``. Without a URI, MLflow uses its own default.
        name: Name of the run.
        folder: The run's folder.

    Raises:
        InputError: If the tracker is unknown or its library is not installed.
    """
    kind, location = check_tracker(text)
    if kind == "mlflow":
        from fedlane.trackers.mlflow import MlflowTracker

        return MlflowTracker(location or None, name, folder)
    from fedlane.trackers.tensorboard import TensorBoardTracker

    return TensorBoardTracker(Path(location) / name if location else folder / "tensorboard")


def check_tracker(text: str) -> tuple[str, str]:
    """Split ``text`` into a tracker's name and its location (``""`` for the default).

    Raises:
        InputError: If the tracker is unknown, its location is missing or its library is not installed.
    """
    kind, colon, location = text.partition(":")
    if kind not in MODULES:
        raise unknown("tracker", kind, MODULES)
    if colon and not location:
        raise InputError(f"missing location after ':' in --track {text}")
    if importlib.util.find_spec(MODULES[kind]) is None:
        raise missing_extra(f"--track {kind}", "trackers")
    return kind, location
