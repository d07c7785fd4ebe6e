"""One run at the terminal: progress, trackers, checkpoints, Ctrl-C, and the output folder."""

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedlane.cli.command_line import recorded_command
from fedlane.cli.compiling import NOTICE, entry_points, start_early, watch_compilation
from fedlane.cli.compiling_process import CompilingProcess
from fedlane.cli.display import Display
from fedlane.cli.interrupts import AT_ONCE, Interrupts
from fedlane.trackers import Tracking, make_tracker
from fedlane.validate import InputError, printable

if TYPE_CHECKING:  # imported only for annotations, to keep `fedlane --help` fast
    from collections.abc import Callable, Iterator, Sequence

    from fedlane.report.live_view import Finished
    from fedlane.scenario import Scenario
    from fedlane.scheduling.policy import BatchPolicy
    from fedlane.simulation import Run
    from fedlane.simulation.results import RunFolder
    from fedlane.simulation.run import Simulation

CHECKPOINT_S = 5.0
"""Time between two updates of a run's folder, in seconds, so that other programs can follow the run."""
LONG_SAVE_S, SAVING_SHARE = 0.5, 0.1
"""Folders that take longer to update are updated less often, so that writing takes about this share of the time."""

screen = Console()
messages = Console(stderr=True)


class InterruptedRunError(Exception):
    """Ctrl-C ended a run whose results could be saved; the message says where."""


@dataclass(frozen=True)
class Session:
    """Settings for playing runs at the terminal.

    Attributes:
        quiet: Show no progress.
        checkpoint_every: Rounds between two checkpoints of a run that learns.
        track: Trackers as the user named them, for example ``mlflow:URI``.
        remarks: Remarks on the scenario that have been printed, which is the same for all runs of a comparison.
        compiling: A second process for the kernels that no earlier run has compiled.
    """

    quiet: bool = False
    checkpoint_every: int = 50
    track: "Sequence[str]" = ()
    remarks: set[str] = field(default_factory=set)
    compiling: CompilingProcess = field(default_factory=CompilingProcess)

    def compile_early(self, policies: "Sequence[BatchPolicy]", scenario: "Scenario") -> None:
        """Start to compile the policies' kernels in a second process if that is necessary, and tell the user."""
        if start_early(self.compiling, policies, scenario) and not self.quiet:
            messages.print(NOTICE, highlight=False, soft_wrap=True)

    def play(
        self,
        name: str,
        make: "Callable[[], Simulation]",
        folder: "RunFolder",
        *,
        tracked_as: str | None = None,
        finished: "Sequence[Finished]" = (),
        schedule: Path | None = None,
    ) -> "Run":
        """Play a run to its end, updating its folder along the way.

        Args:
            name: Shown while the run is being prepared.
            make: Makes the simulation, new or resumed.
            folder: The run's folder.
            tracked_as: Name of the run in trackers; by default the folder's name.
            finished: Finished runs of the same comparison, to be shown with this one.
            schedule: File to save the schedule to.

        Raises:
            InterruptedRunError: On Ctrl-C. The rounds played so far are saved, unless it was pressed three times.
        """
        simulation: Simulation | None = None
        display = Display(messages, quiet=self.quiet, finished=finished)
        tracked_as = tracked_as or folder.path.resolve().name
        tracking = Tracking([make_tracker(text, tracked_as, folder.path) for text in self.track], warn)
        try:
            with (
                Interrupts() as interrupts,
                display,
                tracking.closing(),
                watch_compilation(display.compiling, self.compiling) as compilation,
            ):
                with display.preparing(name):
                    simulation = make()
                    simulation.origin.command = recorded_command(sys.argv)
                    simulation.keep_segments_in(folder.path)
                    compilation.compile_ahead(entry_points(simulation))
                    if simulation.ledger is not None and simulation.round:  # check an earlier ledger before playing
                        simulation.ledger.attach_file(folder.path)
                    tracking.start(simulation.scenario, simulation.label, simulation.info.seeds, round=simulation.round)
                self._remark(simulation.caution)
                self._remark(simulation.setup.delta_remark)
                display.begin(simulation)
                interrupts.delay()
                try:
                    result = self._play_rounds(simulation, folder, display, tracking, interrupts)
                except KeyboardInterrupt:
                    raise _saved_on_interrupt(simulation, folder, interrupts) from None
        except KeyboardInterrupt:
            folder.abandon()
            raise _stopped_at_once(folder) from None
        except BaseException:
            folder.abandon()
            raise
        if schedule is not None:
            simulation.schedule().save(schedule)
        folder.remove_segments()
        return result

    def _remark(self, line: str | None) -> None:
        """Print a remark on the run or its scenario, once."""
        if line is not None and not self.quiet and line not in self.remarks:
            self.remarks.add(line)
            warn(line)

    def _play_rounds(
        self,
        simulation: "Simulation",
        folder: "RunFolder",
        display: Display,
        tracking: Tracking,
        interrupts: Interrupts,
    ) -> "Run":
        """Play the remaining rounds, save the results and end the trackers."""
        first, saved, saving_s = simulation.round, time.monotonic(), 0.0

        def on_round() -> None:
            nonlocal saved, saving_s
            display.update(simulation)
            interrupts.check()
            due = (simulation.round - first) % self.checkpoint_every == 0 and simulation.federation is not None
            pause_s = CHECKPOINT_S if saving_s <= LONG_SAVE_S else saving_s / SAVING_SHARE
            if (due or time.monotonic() - saved > pause_s) and not simulation.finished:
                started = time.monotonic()
                _save(simulation, folder)
                saved = time.monotonic()
                saving_s = saved - started

        simulation.play(tracking, on_round)
        result = _save(simulation, folder)
        tracking.end(result.summary, "finished")
        interrupts.check()
        return result


def _stopped_at_once(folder: "RunFolder") -> InterruptedRunError:
    """Return the error for a run that was stopped before it could be saved; it says what is lost."""
    saved = folder.rounds_saved()
    if not saved:
        return InterruptedRunError("interrupted: nothing was saved")
    return InterruptedRunError(
        f"interrupted: all rounds after the first {saved} are lost; continue with fedlane run --resume {folder.path}"
    )


def _saved_on_interrupt(
    simulation: "Simulation", folder: "RunFolder", interrupts: Interrupts
) -> InterruptedRunError | KeyboardInterrupt:
    """Save an interrupted run and return the error that reports the interruption."""
    if interrupts.pressed >= AT_ONCE or not simulation.round:
        return KeyboardInterrupt()
    _save(simulation, folder, interrupted=True)
    if simulation.finished:
        folder.remove_segments()
        return InterruptedRunError(f"interrupted: the run in {folder.path} is complete")
    return InterruptedRunError(
        f"interrupted: the first {simulation.round} rounds are saved; continue with fedlane run --resume {folder.path}"
    )


def _save(simulation: "Simulation", folder: "RunFolder", *, interrupted: bool = False) -> "Run":
    """Write the folder; from the first call on, each charge is also appended to the ledger's file."""
    from fedlane.simulation.folder_files import table_columns
    from fedlane.simulation.table_parts import stored_tables

    result = simulation.result()
    folder.write(result, checkpoint=None if simulation.finished else simulation.checkpoint(), interrupted=interrupted)
    if simulation.ledger is not None:
        simulation.ledger.attach_file(folder.path)
    if simulation.finished and simulation.trace.segments is not None:  # they will be removed: the folder has the tables
        return replace(result, tables=stored_tables(folder.path, table_columns(folder.path)))
    return result


@contextmanager
def damaged_if_wrong(path: Path) -> "Iterator[None]":
    """Turn the failure to use a value of a stranger's file into an `InputError` that says that the file is damaged."""
    try:
        yield
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"{path} is damaged: {error}") from error


def warn(line: str) -> None:
    """Print a one-line warning."""
    messages.print(f"Warning: {printable(line)}.", style="yellow", markup=False, highlight=False, soft_wrap=True)


def print_notes(lines: list[str]) -> None:
    """Print the notes that belong to a result."""
    for line in lines:
        messages.print(f"Note: {printable(line)}.", style="yellow", highlight=False, markup=False, soft_wrap=True)


def new_folder(stem: str) -> Path:
    """Return runs/STEM-TIME, with a number appended if that folder exists."""
    base = Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = base, 2
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


def check_writable(path: Path) -> None:
    """Raise `InputError` if a file cannot be written; called before the work that produces its content."""
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
