"""The README's picture: how long the policies take on the paper's network, and whom they leave behind.

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
class Look:
    """How a policy is drawn: Okabe and Ito's colours, and a line style for readers who see none."""

    policy: str
    colour: str
    line: str


LOOKS = (
    Look("random", "#555555", ":"),
    Look("round-robin", "#E69F00", "--"),
    Look("single-ucb", "#CC79A7", "-."),
    Look("mamab-om:V=100", "#0072B2", "-"),
    Look("lane", "#D55E00", "-"),
    Look("genie", "#009E73", "--"),
)


def by_seed(run: Run, table: str, column: str) -> FloatArray:
    """A column of a run's table with a row per seed: (R, rounds) of `rounds`, (R, U) of `clients`."""
    values: FloatArray = run.tables[table][column].to_numpy()
    return values.reshape(len(run.summary["seeds"]), -1)


def draw_clock(axes: Axes, runs: list[Run]) -> None:
    """Mean cumulative delay over the rounds, with its 95% Student band over seeds."""
    ends = []
    for look, run in zip(LOOKS, runs, strict=True):
        clock_s = by_seed(run, "rounds", "clock_s")
        rounds = np.arange(1, clock_s.shape[1] + 1)
        mean = clock_s.mean(axis=0)
        half = stdtrit(len(clock_s) - 1, 0.975) * clock_s.std(axis=0, ddof=1) / np.sqrt(len(clock_s))
        axes.fill_between(rounds, mean - half, mean + half, color=look.colour, alpha=0.15, linewidth=0)
        axes.plot(rounds, mean, look.line, color=look.colour, linewidth=1.8)
        ends.append(float(mean[-1]))
    heights = spread(np.array(ends), 105.0)
    for look, end, height in zip(LOOKS, ends, heights, strict=True):
        axes.text(508, height, f"{look.policy}  {end:,.0f} s", color=look.colour, va="center", fontsize=9.5)
    axes.set(xlim=(0, 500), ylim=(0, None), xlabel="round", ylabel="cumulative delay (s)")
    axes.set_title("Time on the air: mean of 20 seeds, 95% band", loc="left", fontsize=10)


def spread(heights: FloatArray, gap: float) -> FloatArray:
    """Label heights moved up as little as needed to lie ``gap`` apart."""
    moved = heights.copy()
    order = np.argsort(heights)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + gap)
    return moved


def draw_participation(axes: Axes, runs: list[Run]) -> None:
    """Each seed's smallest participation, their mean, and the quota as the policy serves it."""
    for row, (look, run) in enumerate(zip(LOOKS, runs, strict=True)):
        smallest = by_seed(run, "clients", "participation").min(axis=1)
        axes.barh(row, smallest.mean(), height=0.62, color=look.colour, alpha=0.35)
        offset = np.linspace(-0.2, 0.2, len(smallest))
        axes.scatter(smallest, row + offset, s=9, color=look.colour, linewidths=0)
        quota = run.summary["quota"]["smallest"]
        axes.plot([quota, quota], [row - 0.4, row + 0.4], color="black", linewidth=1.6)
    axes.set_yticks(range(len(LOOKS)), [look.policy for look in LOOKS])
    axes.set_xticks(np.arange(5) / 10)
    axes.set(xlim=(0, 0.45), xlabel="share of rounds in time")
    axes.invert_yaxis()
    axes.set_title("The client served least: mean, seeds, quota (black)", loc="left", fontsize=10)


def main() -> None:
    runs = [simulate("paper-fmnist", look.policy, seeds=SEEDS, learning=False) for look in LOOKS]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.0, 4.2), width_ratios=(1.0, 0.9))
    draw_clock(left, runs)
    draw_participation(right, runs)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
    figure.tight_layout(w_pad=3.0)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=130)
    print(f"wrote {PICTURE.name}")


if __name__ == "__main__":
    main()
