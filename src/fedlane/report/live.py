"""The live panel: a run in progress, drawn in the terminal.

The panel is a function of a `LiveView` and the size of the terminal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from fedlane.number_text import number_text
from fedlane.records import FloatArray
from fedlane.report.live_view import Assigned, Finished, LiveView
from fedlane.report.terminal import LOWER_BOUND_MECHANISMS

MIN_WIDTH, MIN_HEIGHT = 60, 12
"""Smallest terminal that gets a panel; a smaller one gets one line."""
BAR_END = 1.25
"""Delay at the end of a bar, in deadlines."""
QUEUE_WIDTH = 24
"""Columns for the queue of one client."""


@dataclass(frozen=True)
class _Glyphs:
    """Characters of the panel."""

    parts: str = "░▓█"
    """Download, compute and upload."""
    full: str = "━"
    rest: str = "─"
    deadline: str = "│"
    beyond: str = "▶"
    """End of a bar that does not fit."""
    block: str = "■"
    heights: str = "▁▂▃▄▅▆▇█"


_ASCII = _Glyphs("dcu", "=", "-", "|", ">", "#", "_.-:=+*#")
_PART_STYLES = ("cyan", "yellow", "magenta")


def live_panel(view: LiveView, width: int, height: int, *, ascii_only: bool = False) -> RenderableType:
    """Draw the panel in at most ``width`` columns and ``height`` rows."""
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return Text(live_line(view), no_wrap=True, overflow="ellipsis")
    glyphs = _ASCII if ascii_only else _Glyphs()
    inner = width - 4
    curves = _curves(view, inner, glyphs)
    newest = max(0, len(view.finished) - min(4, height - MIN_HEIGHT))
    done = _finished(view.finished[newest:])
    rest = height - 2 - 2 - len(curves) - len(done)  # without the frame, the progress bar and the heading of the bars
    clients = len(view.queue)
    queues = -(-clients // max(1, inner // QUEUE_WIDTH)) + 1
    for_lanes = max(2, rest - min(queues, max(2, rest // 3)))
    lanes = _lanes(view, inner, min(view.channels, for_lanes), glyphs)
    waiting = _queues(view, inner, min(queues, max(0, rest - len(lanes))), glyphs)
    blank = rest - len(lanes) - len(waiting)
    blocks = [done, [_progress(view, inner, glyphs)], [_heading(view, inner, glyphs), *lanes], waiting, curves]
    lines: list[Text] = []
    for block in filter(None, blocks):
        if lines and blank > 0:
            lines.append(Text())
            blank -= 1
        lines += block
    title = Text(f"fedlane · {view.scenario} · {view.policy} · {_seeds(view.seeds)}", overflow="ellipsis")
    return Panel(Text("\n", no_wrap=True, overflow="crop").join(lines), title=title, title_align="left", width=width)


def live_line(view: LiveView) -> str:
    """Describe the run in one line, for logs and small terminals."""
    mean = f" (mean of {len(view.seeds)} seeds)" if len(view.seeds) > 1 else ""
    line = f"{view.policy}: round {view.round} of {view.rounds}, {view.clock_s:,.0f} s of simulated time"
    if len(view.accuracy):
        line += f", accuracy {view.accuracy[-1]:.3f}"
    elif len(view.loss):
        line += f", loss {view.loss[-1]:.4g}"
    return line + mean


def _progress(view: LiveView, width: int, glyphs: _Glyphs) -> Text:
    speed = f"{view.rounds_per_s:,.0f}" if view.rounds_per_s >= 10 else f"{view.rounds_per_s:.2g}"
    words = f"  round {view.round:,} of {view.rounds:,} · {speed} rounds/s · {_duration(view.eta_s)} left"
    bar = max(0, width - len(words))
    full = bar * view.round // max(view.rounds, 1)
    return Text.assemble((glyphs.full * full, "green"), (glyphs.rest * (bar - full), "dim"), words)


def _heading(view: LiveView, width: int, glyphs: _Glyphs) -> Text:
    legend = Text.assemble(("channel client  ", "dim"))
    for glyph, word, style in zip(glyphs.parts, ("download", "compute", "upload"), _PART_STYLES, strict=True):
        legend.append(f"{glyph}{glyph} {word}  ", style)
    last = f"{glyphs.deadline} deadline {view.deadline_s:g} s"
    legend.append(last.rjust(max(0, width - len(legend))), "bold")
    return legend


def _lanes(view: LiveView, width: int, rows: int, glyphs: _Glyphs) -> list[Text]:
    """One row per channel; if they do not fit, the slowest clients and the number of others."""
    by_channel = {client.channel: client for client in view.assigned}
    if view.channels <= rows:
        return [_lane(by_channel.get(j), j, view.deadline_s, width, glyphs) for j in range(view.channels)]
    slowest = sorted(view.assigned, key=lambda client: -client.total_s)[: rows - 1]
    lines = [_lane(client, client.channel, view.deadline_s, width, glyphs) for client in slowest]
    others = len(view.assigned) - len(slowest)
    late = sum(client.total_s > view.deadline_s for client in view.assigned)
    lines.append(Text(f"slowest clients; {others:,} more on {view.channels:,} channels, {late:,} late in total", "dim"))
    return lines


def _lane(assigned: Assigned | None, channel: int, deadline_s: float, width: int, glyphs: _Glyphs) -> Text:
    """Delay of one client as three bars, with the deadline marked."""
    space = max(8, width - 16 - 14)
    mark = round(space / BAR_END)
    if assigned is None:
        return Text(f"{channel:>7} {'-':>6}  " + " " * mark + glyphs.deadline, "dim")
    late = assigned.total_s > deadline_s
    line = Text(f"{channel:>7} {assigned.client:>6}  ")
    edge, elapsed_s = 0, 0.0
    for glyph, style, part_s in zip(
        glyphs.parts, _PART_STYLES, (assigned.download_s, assigned.compute_s, assigned.upload_s), strict=True
    ):
        elapsed_s += part_s
        until = min(space, round(min(elapsed_s / deadline_s, 2 * BAR_END) * mark))
        line.append(glyph * (until - edge), style)
        edge = until
    if elapsed_s > BAR_END * deadline_s:
        line.right_crop(1)
        line.append(glyphs.beyond, "bold red")
    if edge <= mark:
        line.append(" " * (mark - edge) + glyphs.deadline, "bold")
    line.pad_right(max(0, 16 + space - len(line)))
    total = f"{assigned.total_s:.2f}" if assigned.total_s < 1000 else f"{assigned.total_s:.1e}"
    line.append(f"{total:>7} s", "bold red" if late else "")
    line.append(" late" if late else "     ", "bold red")
    return line


def _queues(view: LiveView, width: int, rows: int, glyphs: _Glyphs) -> list[Text]:
    """The queue of every client as a bar; if they do not fit, the longest queues."""
    if rows < 2:
        return []
    clients, columns = len(view.queue), max(1, width // QUEUE_WIDTH)
    shown = min(clients, (rows - 1) * columns)
    chosen = np.arange(clients)
    if shown < clients:
        chosen = np.argsort(-view.queue, kind="stable")[:shown]
    largest = max(1.0, float(view.queue.max(initial=0.0)))
    heading = "queues: rounds behind the quota"
    heading += f", the longest {shown} of {clients:,}" if shown < clients else ""
    exhausted = int((~view.available).sum())
    heading += f" · budget exhausted (x): {exhausted:,}" if exhausted else ""
    lines = [Text(heading, "dim")]
    for row in range(min(rows - 1, shown)):
        line = Text()
        for client in chosen[row :: rows - 1][:columns]:
            length = round(float(view.queue[client]) / largest * 8)
            line.append(f"{client:>6}{' ' if view.available[client] else 'x'}")
            line.append((glyphs.block * length).ljust(8), "blue")
            line.append(f"{view.queue[client]:>7.1f}  ")
        lines.append(line)
    return lines


def _curves(view: LiveView, width: int, glyphs: _Glyphs) -> list[Text]:
    """Accuracy, round time with the simulated time, and privacy."""
    mean = f" (mean of {len(view.seeds)} seeds)" if len(view.seeds) > 1 else ""
    lines = []
    if len(view.accuracy):
        lines.append(_curve("accuracy", view.accuracy, f"{view.accuracy[-1]:.3f}{mean}", "green", width, glyphs))
    elif len(view.loss):
        lines.append(_curve("loss", view.loss, f"{view.loss[-1]:.4g}{mean}", "green", width, glyphs))
    last = f"{view.delay_s[-1]:.2f} s · {_clock(view.clock_s)} simulated{mean}" if len(view.delay_s) else "-"
    lines.append(_curve("round time", view.delay_s, last, "cyan", width, glyphs))
    if (spent := view.spent) is not None:
        words = f"epsilon {spent.epsilon:.2f} of {spent.agreed:g} at delta {spent.delta:g}"
        if spent.mechanism in LOWER_BOUND_MECHANISMS:
            words = f"epsilon {spent.epsilon:.1f} at delta {spent.delta:g} by its formula, {spent.agreed:g} per round"
        left = f"uploads left {spent.uploads_left:,}"
        text = f"{spent.mechanism}: {words} · {left}"
        lines.append(Text.assemble(("privacy     ", "dim"), text))
    return lines


def _curve(name: str, values: FloatArray, words: str, style: str, width: int, glyphs: _Glyphs) -> Text:
    line = Text.assemble((f"{name:<12}", "dim"))
    line.append(sparkline(values, max(1, width - 12 - 2 - max(len(words), 32)), glyphs.heights), style)
    line.append(f"  {words}")
    return line


def sparkline(values: FloatArray, width: int, heights: str = _Glyphs.heights) -> str:
    """Draw values as one character each, scaled to their range; neighbours are averaged if there are too many."""
    if len(values) > width:
        starts = np.arange(width) * len(values) // width
        values = np.add.reduceat(values, starts) / np.diff(starts, append=len(values))
    if len(values) == 0:
        return ""
    low, high = float(values.min()), float(values.max())
    if high <= low:
        return heights[0] * len(values)
    steps = np.minimum((values - low) / (high - low) * len(heights), len(heights) - 1).astype(int)
    return "".join(heights[step] for step in steps)


def _finished(runs: Sequence[Finished]) -> list[Text]:
    """The finished runs of this comparison, one row each."""
    lines = []
    for run in runs:
        line = Text.assemble(("finished    ", "dim"))
        line.append(
            f"{run.policy}  {run.clock_s:,.0f} s of simulated time, {number_text(run.late_share, '{:.1%}')} late"
        )
        if run.accuracy is not None:
            line.append(f", accuracy {run.accuracy:.3f}")
        lines.append(line)
    return lines


def _seeds(seeds: tuple[int, ...]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seed {seeds[0]} of {len(seeds)} seeds"


def _duration(seconds: float) -> str:
    if not seconds < 1e8:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _clock(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < 36_000 else f"{seconds / 3600:,.1f} h"
