"""The live panel: a run in progress as one small frozen record, and the record as a terminal picture.

The picture is a function of the record and the terminal's size alone; who makes the record is not its concern.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from fedlane.records import BoolArray, FloatArray
from fedlane.report.terminal import LOWER_BOUND_MECHANISMS

LEAST_WIDTH, LEAST_HEIGHT = 60, 12
"""A smaller terminal gets one line."""
BEYOND = 1.25
"""A delay's bar may run this many deadlines far."""
CELL = 24
"""Columns of one client's queue."""


@dataclass(frozen=True)
class Assigned:
    """A client on its channel in the last round."""

    client: int
    channel: int
    download_s: float
    compute_s: float
    upload_s: float

    @property
    def total_s(self) -> float:
        return self.download_s + self.compute_s + self.upload_s


@dataclass(frozen=True)
class PrivacySpent:
    """What privacy has cost so far, over all clients and replicas."""

    mechanism: str
    epsilon: float
    """The largest that a client has spent; of the mechanism `paper`, by its own formula."""
    agreed: float
    """The largest that a client agreed to, over the run (`rigorous`) or per round (`paper`)."""
    uploads_left: int
    """Of the client with the fewest left."""


@dataclass(frozen=True)
class Finished:
    """A run of the same comparison that is over."""

    policy: str
    clock_s: float
    late_share: float
    accuracy: float | None


@dataclass(frozen=True)
class LiveView:
    """A run in progress: the last round of the first replica, and means over all replicas so far."""

    scenario: str
    policy: str
    seeds: tuple[int, ...]
    """The first one's round is shown."""
    round: int
    """Rounds played so far."""
    rounds: int
    channels: int
    deadline_s: float
    assigned: tuple[Assigned, ...]
    queue: FloatArray
    """(U,): rounds behind the quota."""
    available: BoolArray
    """(U,): False once a client's budget is spent."""
    delay_s: FloatArray
    """(rounds so far,): mean over replicas."""
    accuracy: FloatArray
    """(tests so far,): mean over replicas; empty without learning."""
    spent: PrivacySpent | None
    rounds_per_s: float
    finished: tuple[Finished, ...] = ()

    @property
    def clock_s(self) -> float:
        return float(self.delay_s.sum())

    @property
    def eta_s(self) -> float:
        return (self.rounds - self.round) / self.rounds_per_s if self.rounds_per_s > 0 else float("inf")


@dataclass(frozen=True)
class _Glyphs:
    """Characters of the picture: parts of a delay, what is missing, the deadline, beyond, heights."""

    parts: str = "░▓█"
    full: str = "━"
    rest: str = "─"
    deadline: str = "│"
    beyond: str = "▶"
    block: str = "■"
    heights: str = "▁▂▃▄▅▆▇█"


_ASCII = _Glyphs("dcu", "=", "-", "|", ">", "#", "_.-:=+*#")
_PART_STYLES = ("cyan", "yellow", "magenta")


def live_panel(view: LiveView, width: int, height: int, *, ascii_only: bool = False) -> RenderableType:
    """The picture, at most ``width`` columns and ``height`` rows."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        return Text(live_line(view), no_wrap=True, overflow="ellipsis")
    glyphs = _ASCII if ascii_only else _Glyphs()
    inner = width - 4
    curves = _curves(view, inner, glyphs)
    done = _finished(view.finished[::-1][: min(4, height - LEAST_HEIGHT)][::-1])
    rest = height - 2 - 2 - len(curves) - len(done)  # the frame; progress and the bars' heading
    clients = len(view.queue)
    queues = -(-clients // max(1, inner // CELL)) + 1
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
    """The same in one line, for logs and small terminals."""
    of = f" (mean of {len(view.seeds)} seeds)" if len(view.seeds) > 1 else ""
    line = f"{view.policy}: round {view.round} of {view.rounds}, {view.clock_s:,.0f} s on the air"
    if len(view.accuracy):
        line += f", accuracy {view.accuracy[-1]:.3f}"
    return line + of


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
    """A row per channel; where they do not fit, the slowest clients and how many were left out."""
    by_channel = {one.channel: one for one in view.assigned}
    if view.channels <= rows:
        return [_lane(by_channel.get(j), j, view.deadline_s, width, glyphs) for j in range(view.channels)]
    slowest = sorted(view.assigned, key=lambda one: -one.total_s)[: rows - 1]
    lines = [_lane(one, one.channel, view.deadline_s, width, glyphs) for one in slowest]
    others = len(view.assigned) - len(slowest)
    late = sum(one.total_s > view.deadline_s for one in view.assigned)
    lines.append(Text(f"the slowest; {others:,} more of {view.channels:,} channels, {late:,} late in all", "dim"))
    return lines


def _lane(one: Assigned | None, channel: int, deadline_s: float, width: int, glyphs: _Glyphs) -> Text:
    """One client's delay as three bars against the deadline."""
    space = max(8, width - 16 - 14)
    mark = round(space / BEYOND)
    if one is None:
        return Text(f"{channel:>7} {'-':>6}  " + " " * mark + glyphs.deadline, "dim")
    late = one.total_s > deadline_s
    line = Text(f"{channel:>7} {one.client:>6}  ")
    edge, elapsed_s = 0, 0.0
    for glyph, style, part_s in zip(
        glyphs.parts, _PART_STYLES, (one.download_s, one.compute_s, one.upload_s), strict=True
    ):
        elapsed_s += part_s
        until = min(space, round(min(elapsed_s / deadline_s, 2 * BEYOND) * mark))
        line.append(glyph * (until - edge), style)
        edge = until
    if elapsed_s > BEYOND * deadline_s:
        line.right_crop(1)
        line.append(glyphs.beyond, "bold red")
    if edge <= mark:
        line.append(" " * (mark - edge) + glyphs.deadline, "bold")
    line.pad_right(max(0, 16 + space - len(line)))
    total = f"{one.total_s:.2f}" if one.total_s < 1000 else f"{one.total_s:.1e}"
    line.append(f"{total:>7} s", "bold red" if late else "")
    line.append(" late" if late else "     ", "bold red")
    return line


def _queues(view: LiveView, width: int, rows: int, glyphs: _Glyphs) -> list[Text]:
    """Every client's queue with a bar; where they do not fit, the longest."""
    if rows < 2:
        return []
    clients, columns = len(view.queue), max(1, width // CELL)
    shown = min(clients, (rows - 1) * columns)
    chosen = np.arange(clients)
    if shown < clients:
        chosen = np.argsort(-view.queue, kind="stable")[:shown]
    largest = max(1.0, float(view.queue.max(initial=0.0)))
    what = "queues: rounds behind the quota"
    what += f", the longest {shown} of {clients:,}" if shown < clients else ""
    out = int((~view.available).sum())
    what += f" · budget spent (x): {out:,}" if out else ""
    lines = [Text(what, "dim")]
    down = rows - 1
    for row in range(min(down, shown)):
        line = Text()
        for client in chosen[row::down][:columns]:
            length = round(float(view.queue[client]) / largest * 8)
            line.append(f"{client:>6}{' ' if view.available[client] else 'x'}")
            line.append((glyphs.block * length).ljust(8), "blue")
            line.append(f"{view.queue[client]:>7.1f}  ")
        lines.append(line)
    return lines


def _curves(view: LiveView, width: int, glyphs: _Glyphs) -> list[Text]:
    """Accuracy, round time and clock, privacy."""
    many = len(view.seeds) > 1
    mean = f" (mean of {len(view.seeds)} seeds)" if many else ""
    lines = []
    if len(view.accuracy):
        lines.append(_curve("accuracy", view.accuracy, f"{view.accuracy[-1]:.3f}{mean}", "green", width, glyphs))
    last = f"{view.delay_s[-1]:.2f} s · {_clock(view.clock_s)} on the air{mean}" if len(view.delay_s) else "-"
    lines.append(_curve("round time", view.delay_s, last, "cyan", width, glyphs))
    if (spent := view.spent) is not None:
        words = f"largest epsilon {spent.epsilon:.2f} of {spent.agreed:g}"
        if spent.mechanism in LOWER_BOUND_MECHANISMS:
            words = f"epsilon {spent.epsilon:.1f} by its formula, {spent.agreed:g} a round"
        left = f"fewest uploads left {spent.uploads_left:,}"
        lines.append(Text.assemble(("privacy     ", "dim"), f"{spent.mechanism}: {words} · {left}"))
    return lines


def _curve(name: str, values: FloatArray, words: str, style: str, width: int, glyphs: _Glyphs) -> Text:
    line = Text.assemble((f"{name:<12}", "dim"))
    line.append(sparkline(values, max(1, width - 12 - 2 - max(len(words), 32)), glyphs.heights), style)
    line.append(f"  {words}")
    return line


def sparkline(values: FloatArray, width: int, heights: str = _Glyphs.heights) -> str:
    """Values as one character each, from their smallest to their largest; more than fit are averaged in turn."""
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
    """The runs of this comparison that are over, a row each."""
    lines = []
    for run in runs:
        line = Text.assemble(("finished    ", "dim"))
        line.append(f"{run.policy}  {run.clock_s:,.0f} s on the air, {run.late_share:.1%} late")
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
