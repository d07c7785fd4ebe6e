"""Draw what `lane` believes about the delays of one client, round by round: a figure of docs/policies.md.

python examples/lane_beliefs.py              # writes docs/images/lane-beliefs.svg
"""

import sys
from pathlib import Path
from typing import ClassVar

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pyarrow.compute as pc
from concept_pictures import BACKGROUND, LATE, save

from fedlane import Scenario, Simulation
from fedlane.delay_predictions import PROBABILITIES
from fedlane.records import Context, FloatArray, IntArray, State
from fedlane.rng import RoundRng
from fedlane.scheduling import Choice
from fedlane.scheduling.lane import Lane, delay_rows
from fedlane.scheduling.lane.beliefs import predictive_cdf

CLIENT, ROUNDS, SEED = 3, 120, 1
BLUE = "#4c78a8"


class WatchedLane(Lane):
    """`lane`, which also keeps what it believed about one client before each round."""

    quantiles: ClassVar[list[FloatArray]] = []

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray | Choice:
        """Keep the quantiles of the client's delay on each channel, (3, N), and select as `lane` does."""
        channels = np.arange(state["count"].shape[2])
        pair = np.zeros_like(channels), np.full_like(channels, CLIENT), channels
        deadline_s = context.problem.deadline_s
        row = predictive_cdf(state, pair, deadline_s)
        self.quantiles.append(deadline_s * delay_rows.quantiles(row, PROBABILITIES))
        return super().select(state, context, rng)


def main() -> None:
    """Draw the figure into the folder given on the command line, by default docs/images."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fedlane", "axes.facecolor": BACKGROUND})
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "docs" / "images"
    policy, rounds = WatchedLane(), np.arange(ROUNDS)
    simulation = Simulation(Scenario.load("paper-fmnist").with_values({"rounds": ROUNDS}), policy, [SEED])
    simulation.play()
    deadline_s = simulation.setup.problem.deadline_s
    uploads = simulation.result().assignments.filter(pc.field("client") == CLIENT).to_pylist()
    believed = np.array(policy.quantiles)
    figure, grid = plt.subplots(1, believed.shape[2], figsize=(9, 2.8), sharey=True, squeeze=False)
    panels = list(grid[0])
    for channel, axes in enumerate(panels):
        low, middle, high = believed[..., channel].T
        axes.fill_between(rounds, low, high, step="mid", color=BLUE, alpha=0.25, linewidth=0, label="90% interval")
        axes.step(rounds, middle, where="mid", color=BLUE, linewidth=1.2, label="median")
        seen = [row for row in uploads if row["channel"] == channel]
        for punctual, colour, name in ((True, "#333333", "upload"), (False, LATE, "late upload")):
            shown = [(row["round"], min(row["delay_s"], deadline_s)) for row in seen if row["punctual"] == punctual]
            axes.plot(*np.reshape(shown, (-1, 2)).T, "o", color=colour, markersize=3, clip_on=False, label=name)
        axes.set_title(f"channel {channel}", fontsize=10)
        axes.set_xlabel("round")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("delay (s)")
    panels[0].set_ylim(0, deadline_s)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=4, frameon=False, fontsize=9)
    figure.subplots_adjust(top=0.8)
    save(figure, folder / "lane-beliefs.svg")


if __name__ == "__main__":
    main()
