"""A run at the terminal: what is shown and tracked, checkpoints, Ctrl-C, and where results go."""

import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedlane.cli.display import Display
from fedlane.trackers import Tracking
from fedlane.validate import InputError

if TYPE_CHECKING:  # imported where they are used: `fedlane --help` answers at once
    from collections.abc import Callable, Iterator, Sequence

    from fedlane.simulation import Run
    from fedlane.simulation.results import RunFolder
    from fedlane.simulation.run import Simulation
    from fedlane.trackers import Tracker


class InterruptedRunError(Exception):
    """Ctrl-C after which something could be saved; the message says what."""


CHECKPOINT_S = 5.0
"""A run that lasts is written this often, so that it can be followed."""

screen = Console()
messages = Console(stderr=True)


def with_target(result: "Run", target: float | None) -> dict[str, Any]:
    """A run's summary, with the time it took to reach an accuracy if one was asked for."""
    from fedlane.simulation.results import interval

    summary = dict(result.summary)
    if target is not None:
        seconds = result.time_to_accuracy(target)
        reached = seconds[seconds == seconds]
        summary["time_to_accuracy"] = {"target": target, "reached": len(reached), **interval(reached)}
    return summary


def play(
    name: str,
    make: "Callable[[], Simulation]",
    target: "RunFolder",
    checkpoint_every: int,
    display: Display,
    trackers: "Sequence[Tracker]" = (),
) -> "Run":
    """Run to the end, shown and tracked; the folder is rewritten on the way, so that the run can be followed."""
    simulation: Simulation | None = None
    tracking = Tracking(trackers, warn)
    try:
        with display, tracking.closing():
            with display.preparing(name):
                simulation = make()
                if simulation.ledger is not None and simulation.round:  # resumed: what is there is checked first
                    simulation.ledger.attach_file(target.path)
                tracking.start(simulation)
            display.begin(simulation)
            written, started = time.monotonic(), simulation.round
            with between_rounds() as check_interrupt:
                while not simulation.finished:
                    simulation.step()
                    tracking.round(simulation)
                    display.update(simulation)
                    check_interrupt()
                    due = (simulation.round - started) % checkpoint_every == 0 and simulation.federation is not None
                    if (due or time.monotonic() - written > CHECKPOINT_S) and not simulation.finished:
                        _save(simulation, target)
                        written = time.monotonic()
                result = _save(simulation, target)
                tracking.end(result.summary, "finished")
                check_interrupt()
    except KeyboardInterrupt:
        if simulation is None or not simulation.round:
            target.abandon()
            raise
        if simulation.finished:
            _save(simulation, target)
            raise InterruptedRunError(f"interrupted: the run in {target.path} is complete") from None
        _save(simulation, target, interrupted=True)
        raise InterruptedRunError(
            f"interrupted: the first {simulation.round} rounds are saved; go on with fedlane run --resume {target.path}"
        ) from None
    except BaseException:
        target.abandon()
        raise
    return result


def _save(simulation: "Simulation", target: "RunFolder", *, interrupted: bool = False) -> "Run":
    """Write the folder; from the first time on, the ledger's file follows the run line by line."""
    result = simulation.result()
    target.write(result, checkpoint=None if simulation.finished else simulation.checkpoint(), interrupted=interrupted)
    if simulation.ledger is not None:
        simulation.ledger.attach_file(target.path)
    return result


@contextmanager
def between_rounds() -> "Iterator[Callable[[], None]]":
    """Hold Ctrl-C back until the caller asks, so that a round, and a write, is always whole."""
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        asked = True

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def warn(line: str) -> None:
    """One line of warning on the terminal."""
    messages.print(f"Warning: {line}.", style="yellow", markup=False, highlight=False, soft_wrap=True)


def new_folder(stem: str) -> Path:
    """runs/STEM-TIME, with a number behind it if that is taken."""
    base = Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = base, 2
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


def check_writable(path: Path) -> None:
    """Refuse, before the work, a file that could not be written after it."""
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
