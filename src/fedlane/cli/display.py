"""The display of a run in progress: the live panel on a terminal, or occasional lines elsewhere."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.status import Status
from rich.text import Text

from fedlane.cli.compiling import NOTICE, progress_line
from fedlane.records import RoundRecord, RunInfo
from fedlane.report.live import live_line, live_panel
from fedlane.report.live_view import Assigned, Finished, LiveView, PrivacySpent

if TYPE_CHECKING:  # imported only for annotations, to keep `fedlane --help` fast
    from fedlane.simulation.run import Simulation

REFRESH_S, SLOWEST_S = 0.1, 2.0
"""Shortest and longest time between two drawings of the panel, in seconds."""
SHARE = 0.01
"""Between those limits, drawing takes this share of the run's processor time."""
CHECK_S = 0.02
"""Shortest time between two readings of the processor clock, each of which is a system call."""
LINE_S, QUICK_LINE_S = 5.0, 1.0
"""Without a terminal, a line is printed every `LINE_S` seconds, and at each tenth of the run if at least `QUICK_LINE_S`
seconds have passed."""


class Display:
    """Shows the progress of one run; a context manager that restores the terminal on exit.

    Args:
        console: The console to write to.
        quiet: Show nothing.
        finished: Finished runs of the same comparison, which the panel lists.
    """

    def __init__(self, console: Console, *, quiet: bool = False, finished: Sequence[Finished] = ()) -> None:
        self.console = console
        self.finished = tuple(finished)
        self._panel = console.is_terminal and not console.is_dumb_terminal and not quiet
        self._lines = not self._panel and not quiet
        self._live: Live | None = None
        self._status: Status | None = None
        self._started = self._shown = self._next_check = self._worked = self._rest_s = 0.0
        self._first = self._tenth = 0
        self.drawing_s = 0.0
        """Processor time spent on drawing since `begin`, in seconds."""

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @contextmanager
    def preparing(self, name: str) -> Iterator[None]:
        """Show a message while a run is being prepared."""
        if not self._panel:
            yield
            return
        with self.console.status(f"{name}: preparing") as self._status:
            yield
        self._status = None

    def compiling(self, number: int, total: int) -> None:
        """Show that a kernel is being compiled: in place on a terminal, elsewhere in one line for all kernels."""
        line = Text(progress_line(number, total))
        if self._live is not None:
            self._live.update(line, refresh=True)  # the next drawing of the panel replaces it
        elif self._status is not None:
            self._status.update(line)
        elif self._lines and number == 1:
            self.console.print(NOTICE, highlight=False, soft_wrap=True)

    def begin(self, simulation: "Simulation") -> None:
        """Start showing a run, before its first round."""
        if self._panel:
            simulation.last_round()  # computes the run's epsilon curves, which is slow, before the clock starts
        self._started = self._shown = time.monotonic()
        self._first = simulation.round
        self._tenth = 10 * simulation.round // simulation.info.rounds
        if self._panel:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
            self._draw(self._live, simulation, self._started)
            self._rest_s = self.drawing_s = 0.0  # the first drawing is slow: it fills rich's caches

    def update(self, simulation: "Simulation") -> None:
        """Show the round just played, if an update is due."""
        now = time.monotonic()
        if self._live is not None:
            # Processor time, not elapsed time, is measured, so that a busy machine draws less often.
            if now > self._next_check:
                self._next_check = now + CHECK_S
                if time.thread_time() - self._worked > self._rest_s or now - self._shown > SLOWEST_S:
                    self._draw(self._live, simulation, now)
        elif self._lines and now - self._shown > QUICK_LINE_S:
            tenth = 10 * simulation.round // simulation.info.rounds
            if tenth > self._tenth or now - self._shown > LINE_S:
                line = live_line(self._view(simulation, now))
                self.console.print(line, highlight=False, markup=False, soft_wrap=True)
                self._shown, self._tenth = now, tenth

    def _draw(self, live: Live, simulation: "Simulation", now: float) -> None:
        started = time.thread_time()
        width, height = self.console.size
        view = self._view(simulation, now)
        live.update(live_panel(view, width, height - 1, ascii_only=self.console.options.ascii_only), refresh=True)
        self._shown, self._worked = time.monotonic(), time.thread_time()
        self._next_check = self._shown + REFRESH_S
        took_s = self._worked - started
        self.drawing_s += took_s
        self._rest_s = took_s / SHARE

    def _view(self, simulation: "Simulation", now: float) -> LiveView:
        rounds_per_s = (simulation.round - self._first) / max(now - self._started, 1e-9)
        return live_view(simulation.info, simulation.last_round(), rounds_per_s, self.finished)


def live_view(info: RunInfo, record: RoundRecord, rounds_per_s: float, finished: Sequence[Finished] = ()) -> LiveView:
    """Make the panel's view of a run from the record of its last round.

    Args:
        info: The run.
        record: The last round, as `Simulation.last_round` returns it.
        rounds_per_s: Speed of the run.
        finished: Finished runs of the same comparison.
    """
    detail = record.detail
    assert detail is not None, "a simulation's record has its detail"
    used = np.flatnonzero(detail.client[0] >= 0)
    parts = (detail.client, detail.download_s, detail.compute_s, detail.upload_s)
    rows = zip(used.tolist(), *(part[0, used].tolist() for part in parts), strict=True)
    accuracy = detail.accuracy_history.mean(axis=0)
    loss = np.zeros(0) if detail.loss_history is None else detail.loss_history.mean(axis=0)
    spent = None
    if detail.epsilon_shown is not None:
        uploads_left = int(detail.uploads_left.min())
        largest = float(detail.epsilon_shown.max())
        spent = PrivacySpent(info.mechanism, largest, info.epsilon_agreed, uploads_left, info.delta_agreed)
    return LiveView(
        scenario=info.scenario,
        policy=info.policy,
        seeds=info.seeds,
        round=record.round + 1,
        rounds=info.rounds,
        channels=info.channels,
        deadline_s=info.deadline_s,
        assigned=tuple(Assigned(client, channel, down, work, up) for channel, client, down, work, up in rows),
        queue=detail.queue[0].astype(np.float64),
        available=detail.uploads_left[0] > 0,
        delay_s=detail.delay_history_s.mean(axis=0),
        accuracy=accuracy[~np.isnan(accuracy)],
        loss=loss[~np.isnan(loss)],
        spent=spent,
        rounds_per_s=rounds_per_s,
        finished=tuple(finished),
    )


def finished_run(summary: Mapping[str, Any]) -> Finished:
    """Make the panel's row for a finished run from the run's summary."""
    return Finished(
        policy=summary["policy"],
        clock_s=summary["cumulative_delay_s"]["mean"],
        late_share=summary["late_share"]["mean"],
        accuracy=summary["final_accuracy"]["mean"],
    )
