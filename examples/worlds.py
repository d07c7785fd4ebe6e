"""Draw a picture of every preset world, and write the tables of docs/worlds.md.

python examples/worlds.py            # all worlds; commute-lte needs FEDLANE_DATA
python examples/worlds.py churn      # some of them
python examples/worlds.py --tables   # the tables from docs/results/worlds.parquet, without playing anything
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.axes import Axes

from fedlane import Run, Scenario
from fedlane.city_map import CityMap
from fedlane.experiments.world_results import WORLDS, insert_worlds, world_numbers, world_runs
from fedlane.network import CellNetwork, TraceNetwork
from fedlane.records import FloatArray
from fedlane.report.figures import COLOURS
from fedlane.simulation.setup import Setup, prepare
from fedlane.validate import InputError

DOCS = Path(__file__).parent.parent / "docs"
STORED = DOCS / "results" / "worlds.parquet"
QUIET = "#7a8794"
"""Colour of axes and of what is not in focus."""
SHOWN_S = 600.0
"""Longest time that a picture shows, in seconds."""


def main() -> None:
    """Play the worlds that the command line names, or all; draw them, store their numbers and write the page."""
    names = [name for name in sys.argv[1:] if name != "--tables"] or list(WORLDS)
    if "--tables" not in sys.argv:
        for name in names:
            try:
                runs = world_runs(name)
            except InputError as error:
                print(f"{name} is left out: {error}")
                continue
            store(name, world_numbers(name, runs))
            draw(Scenario.load(name), runs, DOCS / "images" / f"world-{name}.png")
            print(name)
    numbers = pq.read_table(STORED)
    known = set(numbers["world"].to_pylist())
    insert_worlds(DOCS / "worlds.md", numbers, [name for name in names if name in known])


def store(name: str, numbers: pa.Table) -> None:
    """Replace the numbers of a world in the stored table."""
    kept = pq.read_table(STORED).to_pylist() if STORED.is_file() else []
    rows = [row for row in kept if row["world"] != name] + numbers.to_pylist()
    rows.sort(key=lambda row: WORLDS.index(row["world"]))
    pq.write_table(pa.Table.from_pylist(rows, numbers.schema), STORED, compression="zstd")


def draw(scenario: Scenario, runs: dict[str, Run], path: Path) -> None:
    """Draw the world on the left, and the delays of its uploads on the right."""
    plt.rcParams.update({"font.size": 9, "axes.edgecolor": QUIET, "xtick.color": QUIET, "ytick.color": QUIET})
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    draw_world(left, scenario, runs)
    draw_delays(right, scenario.network.deadline_s, runs)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_delays(axes: Axes, deadline_s: float, runs: dict[str, Run]) -> None:
    """Draw the distribution of the delays of all uploads, and the deadline."""
    for (policy, run), colour in zip(runs.items(), (QUIET, COLOURS[0]), strict=True):
        delay_s = run.assignments["delay_s"].to_numpy()
        ordered = np.sort(np.where(np.isnan(delay_s), np.inf, delay_s))
        axes.plot(ordered, 100 * np.arange(1, len(ordered) + 1) / len(ordered), label=policy, color=colour)
    axes.axvline(deadline_s, color=COLOURS[1], linestyle="--", linewidth=1)
    axes.annotate(" deadline", (deadline_s, 3), color=COLOURS[1])
    axes.set(xlim=(0, 2 * deadline_s), ylim=(0, 100), xlabel="delay of an upload (s)", ylabel="% of uploads done")
    axes.set_title("Uploads", loc="left", fontsize=10)
    axes.legend(loc="lower right")


def draw_world(axes: Axes, scenario: Scenario, runs: dict[str, Run]) -> None:
    """Draw what makes a world different: presence, batteries, rates over time, interference, or positions."""
    setup = prepare(scenario, [0])
    network, horizon_s = setup.network, scenario.rounds * scenario.network.deadline_s
    clock_s = np.linspace(0.0, min(horizon_s, SHOWN_S), 600)
    if scenario.availability.model != "always":
        draw_presence(axes, setup, clock_s)
    elif scenario.energy.battery_j is not None:
        draw_batteries(axes, scenario.energy.battery_j, runs["lane"])
    elif isinstance(network, TraceNetwork):
        draw_rates(axes, network)
    elif isinstance(network, CellNetwork) and scenario.network.drift_s:
        draw_drift(axes, network, clock_s)
    elif isinstance(network, CellNetwork):
        draw_places(axes, network, clock_s)


def draw_presence(axes: Axes, setup: Setup, clock_s: FloatArray) -> None:
    """Draw when each client is there."""
    for client in range(setup.problem.clients):
        present = np.array([setup.availability.present(np.array([clock]))[0, client] for clock in clock_s])
        edges = np.flatnonzero(np.diff(present.astype(int), prepend=0, append=0))
        spans = [(clock_s[a], clock_s[b - 1] - clock_s[a]) for a, b in edges.reshape(-1, 2)]
        axes.broken_barh(spans, (client - 0.35, 0.7), color=COLOURS[5])
    axes.set(xlabel="simulated time (s)", ylabel="client", xlim=(0, clock_s[-1]), yticks=range(setup.problem.clients))
    axes.invert_yaxis()
    axes.set_title("When clients are there", loc="left", fontsize=10)


def draw_batteries(axes: Axes, battery_j: float, run: Run) -> None:
    """Draw what is left in the battery of each client of the first seed, and when one is empty."""
    attempts = run.assignments.filter(np.asarray(run.assignments["replica"]) == 0)
    first = np.asarray(run.rounds["replica"]) == 0
    clock_s = np.append(0.0, run.rounds.filter(first)["clock_s"].to_numpy())
    for client in np.unique(attempts["client"].to_numpy()):
        own = attempts.filter(np.asarray(attempts["client"]) == client)
        spent = np.zeros(len(clock_s))
        spent[own["round"].to_numpy() + 1] = own["energy_j"].to_numpy()
        left = np.maximum(battery_j - np.cumsum(spent), 0.0)
        axes.plot(clock_s, left, color=COLOURS[1] if left[-1] == 0 else COLOURS[0], linewidth=0.9, alpha=0.7)
    axes.set(xlabel="simulated time (s)", ylabel="battery left (J)", xlim=(0, clock_s[-1]), ylim=(0, battery_j))
    axes.set_title("Batteries of the clients, with lane (orange: empty at the end)", loc="left", fontsize=10)


def draw_rates(axes: Axes, network: TraceNetwork) -> None:
    """Draw the measured downlinks of three clients."""
    seconds = np.arange(0.0, 60.0, 0.25)
    largest = 0.0
    for client in range(3):
        recording = np.full(seconds.shape, network.replay.recording[0, client])
        rate_bps = network.replay._down.rate_bps(recording, network.replay._offset_down_s[0, client] + seconds)
        largest = max(largest, float(rate_bps.max()) / 1e6)
        axes.plot(seconds, rate_bps / 1e6, label=f"client {client}", linewidth=1.2, color=COLOURS[2 * client])
    axes.set(xlabel="simulated time (s)", ylabel="Mbit/s", xlim=(0, 60), ylim=(0, 1.15 * largest))
    axes.set_title("Measured downlinks", loc="left", fontsize=10)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=8)


def draw_drift(axes: Axes, network: CellNetwork, clock_s: FloatArray) -> None:
    """Draw the interference of one client on every channel."""
    for channel in range(network.channels):
        scale = [network._drift.up(np.array([clock]))[0, 0, channel] for clock in clock_s]
        axes.step(clock_s, 10 * np.log10(scale), label=f"channel {channel}", linewidth=1.2, color=COLOURS[channel])
    axes.set(xlabel="simulated time (s)", ylabel="dB over noise", xlim=(0, clock_s[-1]), ylim=(-6, 14))
    axes.set_title("Interference of client 0", loc="left", fontsize=10)
    axes.legend(loc="upper center", ncols=4, fontsize=8, columnspacing=1)


def draw_places(axes: Axes, network: CellNetwork, clock_s: FloatArray) -> None:
    """Draw the city, stations, clients, and where they walk."""
    if network.city is not None:
        draw_city(axes, network.city)
    paths_m = np.stack([network.mobility.position_m(np.array([clock]))[0] for clock in clock_s])
    if network.positions_m(np.zeros(1)) is not None:
        axes.plot(paths_m[..., 0], paths_m[..., 1], color=COLOURS[3], linewidth=1)
    size = 16 if network.clients < 100 else 2
    axes.scatter(paths_m[0, :, 0], paths_m[0, :, 1], s=size, color=COLOURS[0], label="clients", zorder=3)
    x_m, y_m = network.topology.channel_xy_m[0].T
    axes.scatter(x_m, y_m, s=2 * size + 10, marker="s", color="black", label="stations", zorder=3)
    axes.set(xlabel="x (m)", ylabel="y (m)", aspect="equal")
    axes.set_title("Clients and stations", loc="left", fontsize=10)
    if network.city is None:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    else:  # beside the map is the scale of the gains
        axes.legend(loc="lower left", frameon=True, framealpha=0.9, fontsize=8)


def draw_city(axes: Axes, city: CityMap) -> None:
    """Draw buildings, and the best gain of any station under them."""
    (left, low), (width, height) = city.origin_m, city.size_m
    extent = (left, left + width, low, low + height)
    best_db = np.where(city.building, np.nan, city.gain_db.max(axis=0))
    finite = best_db[np.isfinite(best_db)]
    low_db, high_db = float(np.percentile(finite, 2)), float(finite.max())
    shades = axes.imshow(best_db, origin="lower", extent=extent, vmin=low_db, vmax=high_db, cmap="Blues", alpha=0.8)
    axes.figure.colorbar(shades, ax=axes, label="best gain (dB)", shrink=0.8)
    walls = np.where(city.building, 1.0, np.nan)
    axes.imshow(walls, origin="lower", extent=extent, interpolation="nearest", cmap="gray", vmin=0.0, vmax=1.3)


if __name__ == "__main__":
    main()
