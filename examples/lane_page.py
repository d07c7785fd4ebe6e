"""Write the tables of the section "How close it comes" of docs/policies.md from the stored results.

python examples/lane_page.py

It reads docs/results/lane.json and lane-fresh.json (`benchmarks/lane.py play`) and lane-learning.parquet.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fedlane.intervals import student_interval

ROOT = Path(__file__).resolve().parents[1]
END = "<!-- lane: end -->"
"""A table stands between ``<!-- lane: NAME -->`` and this mark."""
NAMES = {"mamab-om:T0=1,exploration=0.03,quota_slack=0.125": "OM", "om": "OM"}
SIZES = {
    "rayleigh": "10 x 4, Rayleigh fading, 500 rounds",
    "100 x 10": "100 x 10, 300 rounds",
    "1,000 x 100": "1,000 x 100, 500 rounds",
}
WORLDS = ("drifting", "city-munich", "churn", "phones")
TASKS = ("paper-fmnist", "paper-cifar10")


def benchmark() -> Any:
    """Return benchmarks/lane.py as a module."""
    spec = importlib.util.spec_from_file_location("lane_benchmark", ROOT / "benchmarks" / "lane.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named(policy: str) -> str:
    """Return a policy's name in the tables."""
    return NAMES.get(policy, f"`{policy}`")


def tables(results: Path) -> dict[str, str]:
    """Return the tables by name."""
    bench = benchmark()
    issue, fresh = (json.loads((results / name).read_text()) for name in ("lane.json", "lane-fresh.json"))
    return {
        "optimum": _optimum_table(bench, issue),
        "seeds": _seeds_table(bench, issue, fresh),
        "sizes": _sizes_table(bench, issue, fresh),
        "worlds": _worlds_table(bench, issue),
        "learning": _learning_table(results),
    }


def with_tables(page: str, results: Path) -> str:
    """Return a page with the tables between their marks."""
    for name, table in tables(results).items():
        before, mark, rest = page.partition(f"<!-- lane: {name} -->")
        _, _, after = rest.partition(END)
        if not mark:
            raise ValueError(f"the page has no mark of the table {name}")
        page = f"{before}{mark}\n\n{table}\n\n{END}{after}"
    return page


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _head(*cells: str) -> list[str]:
    return [_row(*cells), "|" + "---|" * len(cells)]


def _optimum_table(bench: Any, records: list[dict[str, Any]]) -> str:
    """The paper's network: every policy relative to the optimum."""
    results = {policy: bench.merged(records, "paper", policy) for policy in bench.CASES["paper"].policies}
    lane = results["lane"]
    optimum, show = lane["optimum_s"], bench.with_interval
    same = ~np.isnan(optimum)
    lines = _head(
        *("policy", "times optimum", "last half", "95th percentile of seeds", "time of `lane` / its time"),
        *("smallest participation", "shortfall"),
    )
    for policy, result in results.items():
        ratio = (result["mean_s"] / optimum)[same]
        lines.append(
            _row(
                named(policy),
                show(ratio),
                show((result["last_half_s"] / optimum)[same]),
                f"{np.quantile(ratio, 0.95):.3f}",
                show((lane["mean_s"] / result["mean_s"])[same]),
                show(result["smallest_participation"][same]),
                f"{result['shortfall'][same].mean():.4f}",
            )
        )
    served = lane["feasible_scale"] >= bench.FEASIBLE
    long = {policy: bench.merged(records, "long", policy) for policy in ("lane", "genie", "lane-2026")}
    times = {policy: show(result["mean_s"] / result["optimum_s"]) for policy, result in long.items()}
    text = (
        f"The table is over the {same.sum()} of {len(same)} networks whose lowered quotas can be served. On the"
        f" {served.sum()} networks on which {bench.FEASIBLE} times the lowered quotas can be served, `lane` leaves no"
        f" client more than {lane['under_quota'][served].max():.3f} below its lowered quota, and no queue exceeds"
        f" {lane['largest_queue'][served].max():.1f}. Over 5,000 rounds `lane` takes {times['lane']} times the optimum"
        f" (`genie` {times['genie']}, `lane-2026` {times['lane-2026']})."
    )
    return "\n".join(lines) + "\n\n" + text


def _seeds_table(bench: Any, issue: list[dict[str, Any]], fresh: list[dict[str, Any]]) -> str:
    """`lane` against OM and the optimum on both sets of seeds."""
    om = next(policy for policy in bench.CASES["paper"].policies if policy in NAMES)
    show = bench.with_interval
    lines = _head(
        *("seeds", "networks", "times optimum", "last half", "time of `lane` / time of OM"),
        "smallest participation of `lane` minus that of OM",
    )
    pairs = [[bench.merged(records, "paper", policy) for policy in ("lane", om)] for records in (issue, fresh)]
    keys = ("optimum_s", "mean_s", "last_half_s", "smallest_participation")
    both = [{key: np.concatenate([pair[k][key] for pair in pairs]) for key in keys} for k in (0, 1)]
    for name, (lane, rival) in zip(("3000 to 3039", "3100 to 3139", "both sets"), (*pairs, both), strict=True):
        same = ~np.isnan(lane["optimum_s"])
        lines.append(
            _row(
                name,
                str(same.sum()),
                show((lane["mean_s"] / lane["optimum_s"])[same]),
                show((lane["last_half_s"] / lane["optimum_s"])[same]),
                show((lane["mean_s"] / rival["mean_s"])[same]),
                show((lane["smallest_participation"] - rival["smallest_participation"])[same]),
            )
        )
    return "\n".join(lines)


def _sizes_table(bench: Any, issue: list[dict[str, Any]], fresh: list[dict[str, Any]]) -> str:
    """Fading and larger networks, relative to `genie`."""
    show = bench.with_interval
    lines = _head(
        *("network", "seeds from", "time of `lane` / time of `genie`", "last half"),
        *("time of `lane` / time of `lane-2026`", "number of seeds", "90% intervals cover"),
    )
    for name, title in SIZES.items():
        for records in (issue, fresh):
            lane, genie, former = (bench.merged(records, name, policy) for policy in ("lane", "genie", "lane-2026"))
            lines.append(
                _row(
                    title,
                    str(int(lane["seeds"][0])),
                    show(lane["mean_s"] / genie["mean_s"], 3 if name == "rayleigh" else 2),
                    show(lane["last_half_s"] / genie["last_half_s"], 2),
                    show(lane["mean_s"] / former["mean_s"]),
                    str(len(lane["seeds"])),
                    f"{lane['covered'][0] / lane['covered'][1]:.1%}",
                )
            )
    return "\n".join(lines)


def _worlds_table(bench: Any, records: list[dict[str, Any]]) -> str:
    """Other worlds, relative to each rival."""
    show, rivals = bench.with_interval, bench.RIVALS
    lines = _head(
        "world",
        *(f"`lane` / {named(rival)}" for rival in rivals[1:]),
        f"shortfall of {', '.join(named(rival) for rival in rivals)}",
        "90% intervals cover",
    )
    for world in WORLDS:
        results = {policy: bench.merged(records, world, policy) for policy in rivals}
        lane = results["lane"]
        lines.append(
            _row(
                f"`{world}`",
                *(show(lane["mean_s"] / results[rival]["mean_s"]) for rival in rivals[1:]),
                ", ".join(f"{results[policy]['shortfall'].mean():.3f}" for policy in rivals),
                f"{lane['covered'][0] / lane['covered'][1]:.1%}",
            )
        )
    return "\n".join(lines)


def _learning_table(results: Path) -> str:
    """Time to a test accuracy and final accuracy; below each value its difference from `lane`, seed by seed."""
    rows = pq.read_table(results / "lane-learning.parquet").to_pylist()
    policies = list(dict.fromkeys(row["policy"] for row in rows))

    def values(task: str, policy: str, measure: str) -> np.ndarray:
        own = sorted((row["seed"], row[measure]) for row in rows if (row["scenario"], row["policy"]) == (task, policy))
        return np.array([value for _, value in own])

    def cell(task: str, policy: str, measure: str, digits: int) -> str:
        own, reference = values(task, policy, measure), values(task, "lane", measure)
        low, mean, high = (float(v) for v in student_interval(own))
        text = f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
        if policy == "lane":
            return text
        low, mean, high = (float(v) for v in student_interval(own - reference))
        return f"{text}<br>{mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"

    lines = _head(
        *("policy", "Fashion-MNIST, time to 0.70 (s)", "final accuracy", "CIFAR-10, time to 0.50 (s)", "final accuracy")
    )
    for policy in policies:
        measures = (("time_to_target_s", 0), ("final_accuracy", 3))
        cells = (cell(task, policy, name, digits) for task in TASKS for name, digits in measures)
        lines.append(_row(named(policy), *cells))
    return "\n".join(lines)


if __name__ == "__main__":
    policies = ROOT / "docs" / "policies.md"
    policies.write_text(with_tables(policies.read_text(encoding="utf-8"), ROOT / "docs" / "results"), encoding="utf-8")
