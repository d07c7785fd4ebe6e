"""Draw the figures of docs/concepts.md: one round of a run, its matching, and the queues.

python examples/concept_pictures.py              # writes to docs/images
"""

import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pyarrow.compute as pc
from matplotlib.figure import Figure

from fedlane import Run, simulate

ROUND = 34
PARTS = (("download_s", "download", "#4c78a8"), ("compute_s", "compute", "#f2a541"), ("upload_s", "upload", "#54a24b"))
LATE = "#c0392b"
BACKGROUND = "#fbfaf7"


def save(figure: Figure, path: Path) -> None:
    """Save a figure as an SVG without a date; the light background keeps it legible on dark pages."""
    figure.savefig(path, facecolor=BACKGROUND, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def draw_round(run: Run, path: Path) -> None:
    """Draw the download, compute and upload times of every assigned client in one round."""
    assigned = run.assignments.filter(pc.field("round") == ROUND).sort_by("channel").to_pylist()
    deadline_s = run.scenario.network.deadline_s
    figure, axes = plt.subplots(figsize=(8, 2.6))
    for row, client in enumerate(assigned):
        start = 0.0
        for part, name, colour in PARTS:
            axes.barh(row, client[part], left=start, height=0.55, color=colour, label=name if row == 0 else None)
            start += client[part]
        note = "in time" if client["punctual"] else "late: dropped, but charged"
        axes.text(start + 0.05, row, note, va="center", fontsize=9, color="#333333" if client["punctual"] else LATE)
    axes.axvline(deadline_s, color=LATE, linestyle="--")
    axes.text(deadline_s + 0.05, -0.75, "deadline: the round ends", color=LATE, fontsize=9)
    axes.set_yticks(range(len(assigned)), [f"channel {c['channel']}: client {c['client']}" for c in assigned])
    axes.set_xlim(0, max(sum(c[part] for part, *_ in PARTS) for c in assigned) + 2.4)
    axes.set_ylim(len(assigned) - 0.4, -1)
    axes.set_xlabel("seconds since the round began")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def draw_matching(run: Run, path: Path) -> None:
    """Draw a map of the clients, the channels and the links of one round."""
    clients, channels = run.clients.to_pylist(), run.channels.to_pylist()
    figure, axes = plt.subplots(figsize=(5, 4.4))
    for pair in run.assignments.filter(pc.field("round") == ROUND).to_pylist():
        ends = clients[pair["client"]], channels[pair["channel"]]
        colour, style = ("#54a24b", "-") if pair["punctual"] else (LATE, "--")
        axes.plot([end["x_m"] for end in ends], [end["y_m"] for end in ends], style, color=colour, linewidth=2)
    for places, name, marker, colour in ((clients, "client", "o", "#4c78a8"), (channels, "channel", "^", "#333333")):
        axes.scatter(
            [p["x_m"] for p in places], [p["y_m"] for p in places], 70, colour, marker=marker, label=name, zorder=3
        )
        for place in places:
            position = place["x_m"], place["y_m"]
            axes.annotate(str(place[name]), position, xytext=(7, 5), textcoords="offset points", fontsize=9)
    axes.set_aspect("equal")
    axes.set_xlabel("m")
    axes.set_ylabel("m")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=9)
    save(figure, path)


def draw_queues(runs: list[Run], path: Path) -> None:
    """Draw every client's virtual queue over the rounds, with one panel per policy."""
    figure, panels = plt.subplots(1, len(runs), figsize=(8, 2.8), sharey=True)
    for axes, run in zip(panels, runs, strict=True):
        table = run.client_rounds
        queue = np.asarray(table["queue"]).reshape(-1, len(run.clients))
        axes.plot(np.arange(0, len(queue), 3), queue[::3], linewidth=1)
        axes.set_title(run.summary["policy"], fontsize=10)
        axes.set_xlabel("round")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("rounds behind quota")
    save(figure, path)


def main() -> None:
    """Draw all figures into the folder given on the command line, by default docs/images."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fedlane", "axes.facecolor": BACKGROUND})
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "docs" / "images"
    lane, random = (simulate("paper-fmnist", policy, rounds=300, learning=False) for policy in ("lane", "random"))
    draw_round(random, folder / "round.svg")
    draw_matching(random, folder / "matching.svg")
    draw_queues([lane, random], folder / "queues.svg")


if __name__ == "__main__":
    main()
