"""Charts as SVG text, drawn without other packages: lines, and average ranks with a critical difference.

The pictures have no styles of their own and no scripts, so that a page with a strict Content-Security-Policy may embed
them; text takes the page's colour.
"""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedlane.number_text import number_text
from fedlane.report.figures import COLOURS

WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 14, 46
FONT = 'font-family="system-ui, sans-serif" font-size="12" fill="currentColor"'
PALE, COLOUR = "#9aa5b1", COLOURS[0]
Placing = Callable[[float, float], tuple[float, float]]
"""From values to coordinates of the picture."""


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart.

    Attributes:
        label: Its name.
        x: Horizontal values.
        y: Vertical values.
        colour: Its colour; None draws it pale and leaves it out of the legend.
        dashed: Whether it is dashed.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str | None = None
    dashed: bool = False


def line_chart(lines: Sequence[ChartLine], x_label: str, y_label: str, title: str) -> str:
    """Draw lines with a legend on the right.

    Args:
        lines: The lines; pale ones are drawn first.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        title: What the chart shows, for readers who cannot see it.
    """
    x_max = max((max(line.x) for line in lines if line.x), default=1.0)
    y_values = [value for line in lines for value in line.y]
    y_min = 0.0 if min(y_values, default=0.0) < 0.5 * max(y_values, default=1.0) else min(y_values)
    y_max = max(y_values, default=1.0)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / (x_max or 1.0)
        up = (y - y_min) / ((y_max - y_min) or 1.0)
        return across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * up

    parts = [_axis(x_max, (y_min, y_max), place, x_label, y_label)]
    for line in sorted(lines, key=lambda line: line.colour is not None):
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(x, y) for x, y in zip(line.x, line.y, strict=True)))
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        width, opacity = (2, 1.0) if line.colour else (1, 0.5)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{line.colour or PALE}" stroke-width="{width}" '
            f'stroke-opacity="{opacity}"{dash}><title>{html.escape(line.label)}</title></polyline>'
        )
    for k, line in enumerate(line for line in lines if line.colour):
        y = TOP + 10 + 20 * k
        x = WIDTH - RIGHT + 14
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        ends = f'x1="{x}" y1="{y}" x2="{x + 22}" y2="{y}"'
        parts.append(f'<line {ends} stroke="{line.colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{x + 28}" y="{y + 4}">{html.escape(line.label)}</text>')
    return _svg(parts, WIDTH, HEIGHT, title)


def rank_chart(
    labels: Sequence[str], ranks: Sequence[float], groups: Sequence[tuple[int, int]], distance: float
) -> str:
    """Draw average ranks on an axis; bars join entrants that do not differ significantly.

    Args:
        labels: The entrants, best first.
        ranks: Their average ranks.
        groups: First and last place of each group that does not differ.
        distance: The critical difference.
    """
    row, left, right = 22, 190, 48
    top = 58 + 9 * len(groups)
    height, width = top + row * len(labels) + 8, WIDTH
    last = max(2.0, float(len(labels)))

    def across(rank: float) -> float:
        return left + (width - left - right) * (rank - 1.0) / (last - 1.0)

    parts = [f'<line x1="{left}" y1="40" x2="{width - right}" y2="40" stroke="currentColor"/>']
    step = max(1, math.ceil(last / 20))
    for tick in range(1, int(last) + 1, step):
        x = across(tick)
        parts.append(f'<line x1="{x:.1f}" y1="36" x2="{x:.1f}" y2="40" stroke="currentColor"/>')
        parts.append(f'<text x="{x:.1f}" y="30" text-anchor="middle">{tick}</text>')
    end = min(across(1.0 + distance), width - right)
    parts.append(f'<line x1="{left}" y1="12" x2="{end:.1f}" y2="12" stroke="{COLOUR}" stroke-width="3"/>')
    parts.append(
        f'<text x="{left - 8}" y="16" text-anchor="end">critical difference {number_text(distance, "{:.2f}")}</text>'
    )
    for k, (first, final) in enumerate(groups):
        y = 50 + 9 * k
        start, stop = across(ranks[first]) - 3, across(ranks[final]) + 3
        parts.append(
            f'<line x1="{start:.1f}" y1="{y}" x2="{stop:.1f}" y2="{y}" stroke="currentColor" stroke-width="4" '
            'stroke-opacity="0.45"/>'
        )
    for k, (label, rank) in enumerate(zip(labels, ranks, strict=True)):
        x, y = across(rank), top + row * k + 8
        parts.append(f'<line x1="{left}" y1="{y}" x2="{x:.1f}" y2="{y}" stroke="{PALE}" stroke-width="1"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="{COLOUR}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{html.escape(label)}</text>')
        parts.append(f'<text x="{x + 9:.1f}" y="{y + 4}">{number_text(rank, "{:.1f}")}</text>')
    return _svg(parts, width, height, "Average ranks; bars join entrants that do not differ significantly")


def standalone(svg: str) -> str:
    """Return a chart as the content of a file of its own: on white, with dark text."""
    head, _, rest = svg.partition(">")
    return f'{head} color="#16202b">\n<rect width="100%" height="100%" fill="#fff"/>{rest}\n'


def _svg(parts: Sequence[str], width: int, height: int, title: str) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
    return f"{head}>\n<title>{html.escape(title)}</title>\n<g {FONT}>\n" + "\n".join(parts) + "\n</g>\n</svg>"


def _axis(x_max: float, y_range: tuple[float, float], place: Placing, x_label: str, y_label: str) -> str:
    (left, base), (right, top) = place(0.0, y_range[0]), place(x_max, y_range[1])
    parts = [f'<path d="M{left:.1f} {top:.1f}V{base:.1f}H{right:.1f}" fill="none" stroke="currentColor"/>']
    for value in _ticks(0.0, x_max):
        x, _ = place(value, y_range[0])
        parts.append(f'<line x1="{x:.1f}" y1="{base:.1f}" x2="{x:.1f}" y2="{base + 4:.1f}" stroke="currentColor"/>')
        parts.append(f'<text x="{x:.1f}" y="{base + 18:.1f}" text-anchor="middle">{value:g}</text>')
    for value in _ticks(*y_range):
        _, y = place(0.0, value)
        parts.append(f'<line x1="{left - 4:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" stroke="{PALE}" ')
        parts[-1] += 'stroke-opacity="0.35"/>'
        parts.append(f'<text x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (left + right) / 2
    parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(x_label)}</text>')
    up = (top + base) / 2
    parts.append(
        f'<text transform="translate(14 {up:.1f}) rotate(-90)" text-anchor="middle">{html.escape(y_label)}</text>'
    )
    return "\n".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two values, about five of them."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw * 0.75)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]
