"""Draw the README's figure: cumulative delay and smallest participation of the policies on the paper's network.

python examples/policies_picture.py      # writes docs/images/policies.png
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from scipy.special import stdtrit

from fedlane import Run, simulate
from fedlane.records import FloatArray

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "policies.png"
SEEDS = range(20)


@dataclass(frozen=True)
class PolicyStyle:
    """A policy and its style: a colour by Okabe and Ito, and a line style for readers who cannot tell colours apart."""

    policy: str
    colour: str
    line: str


STYLES = (
    PolicyStyle("random", "#555555", ":"),
    PolicyStyle("round-robin", "#E69F00", "--"),
    PolicyStyle("single-ucb", "#CC79A7", "-."),
    PolicyStyle("mamab-om:V=100", "#0072B2", "-"),
    PolicyStyle("lane", "#D55E00", "-"),
    PolicyStyle("genie", "#009E73", "--"),
)


def by_seed(run: Run, table: str, column: str) -> FloatArray:
    """Return a column with one row per seed: (R, rounds) from the table `rounds`, (R, U) from `clients`."""
    values: FloatArray = run.tables[table][column].to_numpy()
    return values.reshape(len(run.summary["seeds"]), -1)


def draw_clock(axes: Axes, runs: list[Run]) -> None:
    """Draw the mean cumulative delay over the rounds, with its 95% Student band over seeds."""
    ends = []
    for style, run in zip(STYLES, runs, strict=True):
        clock_s = by_seed(run, "rounds", "clock_s")
        rounds = np.arange(1, clock_s.shape[1] + 1)
        mean = clock_s.mean(axis=0)
        half = stdtrit(len(clock_s) - 1, 0.975) * clock_s.std(axis=0, ddof=1) / np.sqrt(len(clock_s))
        axes.fill_between(rounds, mean - half, mean + half, color=style.colour, alpha=0.15, linewidth=0)
        axes.plot(rounds, mean, style.line, color=style.colour, linewidth=1.8)
        ends.append(float(mean[-1]))
    heights = spread(np.array(ends), 105.0)
    for style, end, height in zip(STYLES, ends, heights, strict=True):
        axes.text(508, height, f"{style.policy}  {end:,.0f} s", color=style.colour, va="center", fontsize=9.5)
    axes.set(xlim=(0, 500), ylim=(0, None), xlabel="round", ylabel="cumulative delay (s)")
    axes.set_title("Cumulative delay: mean of 20 seeds, 95% band", loc="left", fontsize=10)


def spread(heights: FloatArray, gap: float) -> FloatArray:
    """Move label heights up as little as needed to be at least ``gap`` apart."""
    moved = heights.copy()
    order = np.argsort(heights)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + gap)
    return moved


def draw_participation(axes: Axes, runs: list[Run]) -> None:
    """Draw each seed's smallest participation, their mean, and the quota including the policy's slack."""
    for row, (style, run) in enumerate(zip(STYLES, runs, strict=True)):
        smallest = by_seed(run, "clients", "participation").min(axis=1)
        axes.barh(row, smallest.mean(), height=0.62, color=style.colour, alpha=0.35)
        offset = np.linspace(-0.2, 0.2, len(smallest))
        axes.scatter(smallest, row + offset, s=9, color=style.colour, linewidths=0)
        quota = run.summary["quota"]["smallest"]
        axes.plot([quota, quota], [row - 0.4, row + 0.4], color="black", linewidth=1.6)
    axes.set_yticks(range(len(STYLES)), [style.policy for style in STYLES])
    axes.set_xticks(np.arange(5) / 10)
    axes.set(xlim=(0, 0.45), xlabel="share of rounds in which the deadline was met")
    axes.invert_yaxis()
    axes.set_title("Least-served client: mean, seeds, quota (black)", loc="left", fontsize=10)


def main() -> None:
    """Run all policies and write the figure."""
    runs = [simulate("paper-fmnist", style.policy, seeds=SEEDS, learning=False) for style in STYLES]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.0, 4.2), width_ratios=(1.0, 0.9))
    draw_clock(left, runs)
    draw_participation(right, runs)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
    figure.tight_layout(w_pad=3.0)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=130)
    print(f"Wrote {PICTURE.name}")


if __name__ == "__main__":
    main()
