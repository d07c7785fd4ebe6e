"""What a person sees of a run while it goes on: the live panel on a terminal, now and then a line elsewhere."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.live import Live

from fedlane.report.live import Assigned, Finished, LiveView, PrivacySpent, live_line, live_panel

if TYPE_CHECKING:  # imported where they are used: `fedlane --help` answers at once
    from fedlane.simulation.run import Simulation

REFRESH_S, SLOWEST_S = 0.1, 2.0
"""The panel is redrawn at most this often, and at least that often,"""
SHARE = 0.01
"""and in between so often that it takes this share of the processor time of the run."""
LOOK_S = 0.02
"""Processor time is asked for no more often than this: the question is a call of the system."""
LINE_S, QUICK_LINE_S = 5.0, 1.0
"""Without a terminal: a line this often, or at every tenth of the run if that is no more often than the second."""


class Display:
    """Follows one run; a context in which the terminal is the panel's, and given back in any case."""

    def __init__(self, console: Console, *, quiet: bool = False, finished: Sequence[Finished] = ()) -> None:
        self.console = console
        self.finished = tuple(finished)
        self._panel = console.is_terminal and not console.is_dumb_terminal and not quiet
        self._lines = not self._panel and not quiet
        self._live: Live | None = None
        self._started = self._shown = self._look = self._worked = self._rest_s = 0.0
        self._first = self._tenth = 0
        self.drawing_s = 0.0
        """Processor time that pictures have taken since `begin`."""

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def preparing(self, name: str) -> AbstractContextManager[Any]:
        """A context that says that a run is being made ready."""
        return self.console.status(f"{name}: preparing") if self._panel else nullcontext()

    def begin(self, simulation: "Simulation") -> None:
        """From here on rounds are played."""
        if self._panel and simulation.spending is not None:
            simulation.spending.epsilon(simulation.uploads)  # the curves: results need them anyway
        self._started = self._shown = time.monotonic()
        self._first = simulation.round
        self._tenth = 10 * simulation.round // simulation.scenario.rounds
        if self._panel:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
            self._draw(self._live, simulation, self._started)
            self._rest_s = self.drawing_s = 0.0  # the first picture is slow: it fills rich's caches

    def update(self, simulation: "Simulation") -> None:
        """A round has been played; shown if it is time."""
        now = time.monotonic()
        if self._live is not None:
            # Processor time, so that a busy machine, on which every second has less of it, has fewer pictures.
            if now > self._look:
                self._look = now + LOOK_S
                if time.thread_time() - self._worked > self._rest_s or now - self._shown > SLOWEST_S:
                    self._draw(self._live, simulation, now)
        elif self._lines and now - self._shown > QUICK_LINE_S:
            tenth = 10 * simulation.round // simulation.scenario.rounds
            if tenth > self._tenth or now - self._shown > LINE_S:
                view = live_view(simulation, self._speed(simulation, now))
                self.console.print(live_line(view), highlight=False, markup=False, soft_wrap=True)
                self._shown, self._tenth = now, tenth

    def _draw(self, live: Live, simulation: "Simulation", now: float) -> None:
        started = time.thread_time()
        width, height = self.console.size
        view = live_view(simulation, self._speed(simulation, now), self.finished)
        live.update(live_panel(view, width, height - 1, ascii_only=self.console.options.ascii_only), refresh=True)
        self._shown, self._worked = time.monotonic(), time.thread_time()
        self._look = self._shown + REFRESH_S
        took_s = self._worked - started
        self.drawing_s += took_s
        self._rest_s = took_s / SHARE

    def _speed(self, simulation: "Simulation", now: float) -> float:
        return (simulation.round - self._first) / max(now - self._started, 1e-9)


def live_view(simulation: "Simulation", rounds_per_s: float, finished: Sequence[Finished] = ()) -> LiveView:
    """The panel's record of a simulation after its last round."""
    trace, problem, t = simulation.trace, simulation.setup.problem, simulation.round
    last = max(t - 1, 0)
    used = np.flatnonzero(trace.client[0, last] >= 0)
    parts = (trace.client, trace.download_s, trace.compute_s, trace.upload_s)
    rows = zip(used.tolist(), *(part[0, last, used].tolist() for part in parts), strict=True)
    accuracy = trace.accuracy[:, :t].mean(axis=0)
    return LiveView(
        scenario=simulation.scenario.name,
        policy=simulation.label,
        seeds=simulation.setup.seeds,
        round=t,
        rounds=problem.rounds,
        channels=problem.channels,
        deadline_s=problem.deadline_s,
        assigned=tuple(Assigned(client, channel, down, work, up) for channel, client, down, work, up in rows),
        queue=trace.queue[0, last].astype(np.float64),
        available=simulation.uploads[0] < simulation.setup.mechanism.max_uploads,
        delay_s=trace.delay_s[:, :t].mean(axis=0),
        accuracy=accuracy[~np.isnan(accuracy)],
        spent=_spent(simulation),
        rounds_per_s=rounds_per_s,
        finished=tuple(finished),
    )


def _spent(simulation: "Simulation") -> PrivacySpent | None:
    spending, uploads = simulation.spending, simulation.uploads
    if spending is None:
        return None
    spec = spending.spec
    return PrivacySpent(
        mechanism=spec.name,
        epsilon=float(spending.epsilon_shown(uploads).max()),
        agreed=float(spec.epsilon.max()),
        uploads_left=int((spec.max_uploads - uploads).min()),
    )


def finished_run(summary: Mapping[str, Any]) -> Finished:
    """A run's summary as a row of the panel."""
    return Finished(
        policy=summary["policy"],
        clock_s=summary["cumulative_delay_s"]["mean"],
        late_share=summary["late_share"]["mean"],
        accuracy=summary["final_accuracy"]["mean"],
    )
