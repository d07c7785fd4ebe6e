"""Demonstrate the livelock of the additive queue and its cure (docs/livelock.md).

python examples/livelock.py              # draws docs/images/livelock.png and prints the largest queues
python examples/livelock.py survey       # seeds 0 to 99: how many networks livelock under each policy
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from fedlane import Scenario, Simulation
from fedlane.records import FloatArray

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "livelock.png"
ROUNDS = 5000
SEEDS = (13, 38, 64, 73, 84)  # of seeds 0 to 99 with feasible_scale >= 1.1, the five with the largest queues
SHOWN, STARVED, WANTED = 73, 4, 0  # the network shown in detail, its starved client and that client's only good channel


@dataclass(frozen=True)
class PolicyStyle:
    """A policy and its style in the figure (colours by Okabe and Ito)."""

    label: str
    policy: str
    colour: str
    line: str
    hatch: str


STYLES = (
    PolicyStyle("additive queue", "mamab-om:V=10,quota_slack=0.125", "#D55E00", "-", ""),
    PolicyStyle("success-weighted queue", "mamab-om:V=10,quota_slack=0.125,queue_weight=success", "#0072B2", "-", "//"),
    PolicyStyle("lane-2026", "lane-2026", "#009E73", "--", ".."),
)


def play(policy: str, seeds: Sequence[int]) -> Simulation:
    """Run all rounds of `paper-fmnist` under a policy."""
    simulation = Simulation(Scenario.load("paper-fmnist").with_values({"rounds": ROUNDS}), policy, seeds)
    simulation.play()
    return simulation


def uses(simulation: Simulation, replica: int) -> FloatArray:
    """Return the share of rounds in which each client was assigned each channel, (U, N)."""
    problem = simulation.setup.problem
    client = simulation.trace.client[replica]
    pair = client * problem.channels + np.arange(problem.channels)
    counts = np.bincount(pair[client >= 0], minlength=problem.clients * problem.channels)
    return counts.reshape(problem.clients, problem.channels) / ROUNDS


def draw_queues(axes: Axes, played: Sequence[Simulation]) -> None:
    """Draw the largest queue of each network over the rounds."""
    for style, simulation in zip(STYLES, played, strict=True):
        for line, queue in enumerate(simulation.trace.queue.max(axis=2)):
            label = style.label if line == 0 else None
            axes.plot(np.arange(1, ROUNDS + 1), queue, style.line, color=style.colour, linewidth=1.3, label=label)
    cured = max(float(simulation.trace.queue.max()) for simulation in played[1:])
    axes.text(ROUNDS, 45, f"the other two policies stay below {np.ceil(cured):.0f}", ha="right", fontsize=9)
    axes.set(xlim=(0, ROUNDS), ylim=(-25, 1800), xlabel="round", ylabel="largest queue (rounds)")
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    axes.set_title("Five networks with feasible quotas", loc="left", fontsize=10)


def draw_bars(axes: Axes, heights: Sequence[FloatArray], ticks: Sequence[str]) -> None:
    """Draw grouped bars: one group per tick, one bar per policy."""
    for offset, (style, height) in enumerate(zip(STYLES, heights, strict=True)):
        position = np.arange(len(ticks)) + 0.28 * (offset - 1)
        axes.bar(position, height, 0.26, color=style.colour, hatch=style.hatch, edgecolor="white", linewidth=0.5)
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_ylim(0, 0.7)
    axes.set_ylabel("share of rounds")


def picture() -> None:
    """Draw docs/images/livelock.png and print the largest queue of each network."""
    played = [play(style.policy, SEEDS) for style in STYLES]
    shown = SEEDS.index(SHOWN)
    success = played[0].setup.air.success_probability(20_000)[shown]
    used = [uses(simulation, shown) for simulation in played]

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14.0, 4.2), width_ratios=(1.0, 0.8, 1.45))
    draw_queues(left, played)
    draw_bars(middle, [u[STARVED] for u in used], [f"{j}\n{p:.0%}" for j, p in enumerate(success[STARVED])])
    middle.set_xlabel("channel, with its success probability")
    middle.set_title(f"Seed {SHOWN}: channels assigned to client {STARVED}", loc="left", fontsize=10)
    elsewhere = np.delete(success, WANTED, axis=1).max(axis=1)
    draw_bars(right, [u[:, WANTED] for u in used], [f"{i}\n{p:.0%}" for i, p in enumerate(elsewhere)])
    right.set_xlabel("client, with its highest success probability on another channel")
    right.set_title(f"Seed {SHOWN}: clients assigned to channel {WANTED}", loc="left", fontsize=10)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
    figure.tight_layout(w_pad=2.0)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=130)

    print(f"{'':24}" + "".join(f"{f'seed {seed}':>12}" for seed in SEEDS))
    for style, simulation in zip(STYLES, played, strict=True):
        largest = simulation.trace.queue.max(axis=(1, 2))
        print(f"{style.label:24}" + "".join(f"{queue:12,.1f}" for queue in largest) + "  largest queue")
    print(f"Wrote {PICTURE.name}")


def survey() -> None:
    """Print results for seeds 0 to 99, grouped by `feasible_scale`."""
    for style in STYLES:
        simulation = play(style.policy, range(100))
        scale = simulation.feasible_scale
        assert scale is not None, "feasible_scale is always computed for a network of this size"
        queue = simulation.trace.queue
        largest, last = queue.max(axis=(1, 2)), queue[:, -1].max(axis=1)
        smallest = simulation.trace.counts()[1].min(axis=1) / ROUNDS
        delay_s = simulation.trace.delay_s.sum(axis=1)
        for name, group in (
            ("at least 1.1", scale >= 1.1),
            ("1 to 1.1", (scale >= 1) & (scale < 1.1)),
            ("below 1", scale < 1),
        ):
            print(
                f"{style.label:24} feasible_scale {name:13} {group.sum():3} seeds: "
                f"{np.sum(last[group] > 100):3} end with a queue above 100, largest queue {largest[group].max():7.1f}, "
                f"smallest participation {smallest[group].min():.3f}, mean delay {delay_s[group].mean():,.0f} s"
            )


if __name__ == "__main__":
    survey() if sys.argv[1:] == ["survey"] else picture()
