"""The tables of docs/worlds.md: the parameters of every preset world, and what policies reach in it.

The numbers are stored seed by seed; the page is rendered from them, so that it cannot say anything else.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedlane.parquet_tables import by_replica, column_floats
from fedlane.scenario import Scenario
from fedlane.simulation import Run, simulate

WORLDS = (*("cell-3gpp", "city-munich", "campus-5g", "commute-lte", "phones", "drifting", "churn", "cell-1000"),)
POLICIES = ("random", "lane")
"""The policies of the tables; the gain is that of the last over the first."""
SEEDS, LARGE_SEEDS, LARGE_CLIENTS = 8, 2, 500
"""Number of seeds of a world, and of one with more clients than `LARGE_CLIENTS`."""
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
EXPECTED = frozenset(("clients", "channels", "payload_bits", "deadline_s", "model"))
"""Keys that a reader expects, even if they have their default values."""
OF_RADIO = frozenset(("mobility", "fading", "power_up_dbm", "interference_db"))
OF_MODEL = {"3gpp": frozenset(("cell", "carrier_hz")), "city": frozenset(("carrier_hz",))}
"""Further keys that a reader expects of radio links, and of some models."""


def world_runs(name: str) -> dict[str, Run]:
    """Play a preset with the policies of the tables, without learning.

    Raises:
        InputError: The preset's data are absent.
    """
    scenario = Scenario.load(name)
    seeds = range(LARGE_SEEDS if scenario.network.clients > LARGE_CLIENTS else SEEDS)
    return {policy: simulate(scenario, policy, seeds=seeds, learning=False) for policy in POLICIES}


def world_numbers(name: str, runs: dict[str, Run]) -> pa.Table:
    """Return what a page needs to know about runs in a world, one row per policy and seed.

    Args:
        name: The world.
        runs: Its runs by policy.

    Returns:
        ``late_share``, ``round_s`` (mean), ``delay_s`` (of all rounds), the mean ``download_s``, ``compute_s`` and
        ``upload_s`` of punctual uploads, and ``energy_j``: mean of all attempts.
    """
    rows: list[dict[str, Any]] = []
    for policy, run in runs.items():
        attempts, seeds = run.assignments, run.summary["seeds"]
        punctual = by_replica(attempts, column_floats(attempts, "punctual"), len(seeds))
        columns = {
            part: by_replica(attempts, column_floats(attempts, part), len(seeds)) for part in (*PARTS, "energy_j")
        }
        delay_s = by_replica(run.rounds, column_floats(run.rounds, "delay_s"), len(seeds))
        for replica, seed in enumerate(seeds):
            ended = punctual[replica] == 1.0
            rows.append(
                {
                    "world": name,
                    "policy": policy,
                    "seed": seed,
                    "late_share": float(1.0 - ended.mean()),
                    "round_s": float(delay_s[replica].mean()),
                    "delay_s": float(delay_s[replica].sum()),
                    **{part: float(columns[part][replica][ended].mean()) for part in PARTS},
                    "energy_j": float(np.nanmean(columns["energy_j"][replica])),
                }
            )
    return pa.Table.from_pylist(rows)


def parameter_table(scenario: Scenario) -> str:
    """Return the table of a scenario's parameters that differ from their defaults or that a reader expects."""
    lines = ["| parameter | value |", "|---|---|"]
    plain, model = Scenario(), scenario.network.model
    expected = EXPECTED | (OF_RADIO if model != "trace" else set()) | OF_MODEL.get(model, frozenset())
    for section, keys in SHOWN.items():
        for key in keys:
            value, default = (getattr(getattr(s, section), key) for s in (scenario, plain))
            if value != default or (key in expected and value is not None):
                shown = list(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else value
                lines.append(f"| `{section}.{key}` | {shown} |")
    return "\n".join(lines)


def result_table(numbers: pa.Table, name: str) -> str:
    """Return the table of what the policies reach in a world, and the shares of download, compute and upload time."""
    lines = [
        "| policy | late uploads | mean round (s) | download : compute : upload (%) | energy per punctual upload (J) |",
        "|---|---|---|---|---|",
    ]
    means = {policy: _means(numbers, name, policy) for policy in POLICIES}
    for policy, mean in means.items():
        total_s = sum(mean[part] for part in PARTS)
        shares = " : ".join(f"{100 * mean[part] / total_s:.0f}" for part in PARTS)
        late = f"{100 * mean['late_share']:.1f}%"
        energy_j = mean["energy_j"] / (1.0 - mean["late_share"])  # late attempts cost energy as well
        lines.append(f"| {policy} | {late} | {mean['round_s']:.2f} | {shares} | {energy_j:.2f} |")
    first, last = POLICIES[0], POLICIES[-1]
    gain = 100 * (1.0 - means[last]["delay_s"] / means[first]["delay_s"])
    change = f"{gain:.0f}% less" if gain >= 0.5 else f"{-gain:.0f}% more" if gain <= -0.5 else "as much"
    than = f"simulated time than `{first}`" if change != "as much" else f"simulated time as `{first}`"
    return "\n".join([*lines, "", f"`{last}` needs {change} {than} for the same rounds."])


def _means(numbers: pa.Table, name: str, policy: str) -> dict[str, float]:
    """Means over seeds of every measure."""
    rows = [row for row in numbers.to_pylist() if (row["world"], row["policy"]) == (name, policy)]
    measures = [key for key in rows[0] if key not in ("world", "policy", "seed")]
    return {key: float(np.mean([row[key] for row in rows])) for key in measures}


def world_section(numbers: pa.Table, name: str) -> str:
    """Return the tables of a world between the marks by which a page holds them."""
    begin, end = _marks(name)
    return f"{begin}\n{parameter_table(Scenario.load(name))}\n\n{result_table(numbers, name)}\n{end}"


def shown_section(page: str, name: str) -> str:
    """Return what a page has between the marks of a world, marks included."""
    begin, end = _marks(name)
    _, _, rest = page.partition(begin)
    return begin + rest.partition(end)[0] + end


def insert_worlds(path: Path, numbers: pa.Table, names: Sequence[str]) -> None:
    """Replace what a page has between the marks of some worlds by their tables."""
    page = path.read_text(encoding="utf-8")
    for name in names:
        page = page.replace(shown_section(page, name), world_section(numbers, name))
    path.write_text(page, encoding="utf-8")


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- end of {name} -->"
