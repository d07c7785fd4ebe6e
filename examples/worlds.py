"""Draw a picture of every preset world, and write the tables of docs/worlds.md.

python examples/worlds.py            # all worlds; commute-lte needs FEDLANE_DATA
python examples/worlds.py churn      # some of them
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from fedlane import Run, Scenario, simulate
from fedlane.network import CellNetwork, TraceNetwork
from fedlane.records import FloatArray
from fedlane.simulation.setup import prepare
from fedlane.validate import InputError

DOCS = Path(__file__).parent.parent / "docs"
WORLDS = ("cell-3gpp", "city-munich", "campus-5g", "commute-lte", "phones", "drifting", "churn", "cell-1000")
PARTS = ("download_s", "compute_s", "upload_s")
SHOWN = {
    "network": (
        *("model", "cell", "map", "trace", "uplink_share", "clients", "channels", "area_m", "mobility", "speed_m_s"),
        *("fading", "carrier_hz", "bandwidth_up_hz", "bandwidth_down_hz", "power_up_dbm", "power_down_dbm"),
        *("noise_dbm", "interference_db", "drift_s", "payload_bits", "bits_per_weight", "deadline_s"),
    ),
    "compute": ("model", "frequency_low_hz", "frequency_high_hz", "cycles_per_sample"),
    "availability": ("model", "mean_on_s", "mean_off_s"),
    "energy": ("device_w", "battery_j"),
    "learning": ("model", "batch_size", "local_iterations", "learning_rate"),
    "privacy": ("mechanism", "epsilon", "delta", "max_uploads"),
}
"""Keys of the parameter tables, by section."""


def main() -> None:
    """Draw and describe the worlds that the command line names, or all."""
    page = DOCS / "worlds.md"
    for name in sys.argv[1:] or WORLDS:
        scenario = Scenario.load(name)
        try:
            prepare(scenario, [0])
        except InputError as error:
            print(f"{name} is left out: {error}")
            continue
        seeds = range(2 if scenario.network.clients > 500 else 8)
        runs = {policy: simulate(scenario, policy, seeds=seeds, learning=False) for policy in ("random", "lane")}
        draw(scenario, runs, DOCS / "images" / f"world-{name}.png")
        text = page.read_text(encoding="utf-8")
        marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
        table = f"{marks[0]}\n{parameters(scenario)}\n\n{results(runs)}\n{marks[1]}"
        before, after = text.split(marks[0])[0], text.split(marks[1])[1]
        page.write_text(before + table + after, encoding="utf-8")
        print(name, results(runs), sep="\n")


def parameters(scenario: Scenario) -> str:
    """Return the table of a scenario's parameters that differ from their defaults or that a reader expects."""
    lines = ["| parameter | value |", "|---|---|"]
    plain = Scenario()
    expected = {"clients", "channels", "payload_bits", "deadline_s", "model"}
    if scenario.network.model != "trace":
        expected |= {"mobility", "fading", "power_up_dbm", "interference_db"}
    if scenario.network.model == "3gpp":
        expected.add("cell")
    if scenario.network.model in ("3gpp", "city"):
        expected.add("carrier_hz")
    for section, keys in SHOWN.items():
        for key in keys:
            value, default = (getattr(getattr(s, section), key) for s in (scenario, plain))
            if value != default or (key in expected and value is not None):
                shown = list(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else value
                lines.append(f"| `{section}.{key}` | {shown} |")
    return "\n".join(lines)


def results(runs: dict[str, Run]) -> str:
    """Return the table of what the policies reach, and the shares of download, compute and upload time."""
    lines = [
        "| policy | late uploads | mean round (s) | download : compute : upload (%) | energy per upload (J) |",
        "|---|---|---|---|---|",
    ]
    for policy, run in runs.items():
        rows = run.assignments
        ended = rows.filter(np.asarray(rows["punctual"]))
        times = np.array([np.nanmean(ended[part].to_numpy()) for part in PARTS])
        shares = " : ".join(f"{100 * share:.0f}" for share in times / times.sum())
        summary, energy = run.summary, np.nanmean(rows["energy_j"].to_numpy())
        late, mean_s = summary["late_share"]["mean"], summary["mean_round_s"]["mean"]
        lines.append(f"| {policy} | {100 * late:.1f}% | {mean_s:.2f} | {shares} | {energy:.2f} |")
    total_s = {policy: run.summary["cumulative_delay_s"]["mean"] for policy, run in runs.items()}
    gain = 100 * (1.0 - total_s["lane"] / total_s["random"])
    return "\n".join([*lines, "", f"`lane` needs {gain:.0f}% less simulated time than `random` for the same rounds."])


def draw(scenario: Scenario, runs: dict[str, Run], path: Path) -> None:
    """Draw the world on the left, and the delays of its uploads on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    draw_world(left, scenario)
    deadline_s = scenario.network.deadline_s
    for policy, run in runs.items():
        delay_s = run.assignments["delay_s"].to_numpy()
        ordered = np.sort(np.where(np.isnan(delay_s), np.inf, delay_s))
        right.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered), label=policy)
    right.axvline(deadline_s, color="0.4", linestyle="--", label="deadline")
    right.set(xlim=(0, 2 * deadline_s), ylim=(0, 1), xlabel="delay of an upload (s)", ylabel="share of uploads")
    right.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_world(axes: Axes, scenario: Scenario) -> None:
    """Draw what makes a world different: presence, rates over time, interference, compute times, or positions."""
    setup = prepare(scenario, [0])
    network, horizon_s = setup.network, scenario.rounds * scenario.network.deadline_s
    clock_s = np.linspace(0.0, min(horizon_s, 600.0), 600)
    if scenario.availability.model != "always":
        present = np.stack([setup.availability.present(np.array([clock]))[0] for clock in clock_s])
        extent = (0, clock_s[-1], scenario.network.clients - 0.5, -0.5)
        axes.imshow(present.T, aspect="auto", cmap="Blues", extent=extent, interpolation="nearest")
        axes.set(xlabel="simulated time (s)", ylabel="client (blue: present)")
    elif isinstance(network, TraceNetwork):
        traces = network.replay._down
        seconds = np.arange(0.0, 60.0, 0.25)
        for client in range(3):
            recording = np.full(seconds.shape, network.replay.recording[0, client])
            rate_bps = traces.rate_bps(recording, network.replay._offset_down_s[0, client] + seconds)
            axes.plot(seconds, rate_bps / 1e6, label=f"client {client}", linewidth=1)
        axes.set(xlabel="simulated time (s)", ylabel="downlink (Mbit/s)")
        axes.legend(fontsize=8)
    elif scenario.network.drift_s and isinstance(network, CellNetwork):
        for channel in range(scenario.network.channels):
            scale = [network._drift.up(np.array([clock]))[0, 0, channel] for clock in clock_s]
            axes.plot(clock_s, 10 * np.log10(scale), label=f"channel {channel}", linewidth=1)
        axes.set(xlabel="simulated time (s)", ylabel="interference of client 0 over noise (dB)")
        axes.legend(fontsize=8)
    elif isinstance(network, CellNetwork):
        draw_places(axes, network, clock_s)


def draw_places(axes: Axes, network: CellNetwork, clock_s: FloatArray) -> None:
    """Draw stations, clients, and where they walk; in a city also the buildings, and the best gain of every cell."""
    city = network.cell.city
    if city is not None:
        (x0_m, y0_m), (width_m, height_m) = city.origin_m, city.size_m
        extent = (x0_m, x0_m + width_m, y0_m, y0_m + height_m)
        best_db = np.where(city.building, np.nan, city.gain_db.max(axis=0))
        image = axes.imshow(best_db, origin="lower", extent=extent, cmap="YlGn", vmin=-130, vmax=-70)
        axes.imshow(np.where(city.building, 0.55, np.nan), origin="lower", extent=extent, cmap="gray", vmin=0, vmax=1)
        axes.figure.colorbar(image, ax=axes, label="gain of the best station (dB)")
    paths_m = np.stack([network.mobility.position_m(np.array([clock]))[0] for clock in clock_s])
    if network.cell.speed_m_s is not None:
        axes.plot(paths_m[..., 0], paths_m[..., 1], color="tab:blue", linewidth=0.8, alpha=0.6)
    size = 12 if network.clients < 100 else 2
    axes.scatter(paths_m[0, :, 0], paths_m[0, :, 1], s=size, color="tab:blue", label="clients", zorder=3)
    x_m, y_m = network.topology.channel_xy_m[0].T
    axes.scatter(x_m, y_m, s=3 * size, marker="^", color="tab:red", label="stations", zorder=3)
    axes.set(xlabel="x (m)", ylabel="y (m)", aspect="equal")
    axes.legend(frameon=True, fontsize=8)


if __name__ == "__main__":
    main()
