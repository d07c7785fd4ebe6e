"""How close `lane` is to the optimum, at every size and in every world, beside its rivals.

    python benchmarks/lane.py play RESULTS.json [--workers K] [--seeds A:B] [--case NAME]...
    python benchmarks/lane.py table RESULTS.json        # prints the tables of docs/policies.md

Without learning and without privacy, so that no budget ends. All policies see the same networks, seed by seed.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import numpy as np

OM = "mamab-om:T0=1,exploration=0.03,quota_slack=0.125"
"""MAMAB-OM, tuned, with `lane`'s slack."""
FEASIBLE = 1.1
"""Networks that can serve this multiple of the lowered quotas must keep queues and shortfalls small."""
RIVALS = ("lane", "lane-2026", OM, "random")


@dataclass(frozen=True)
class Case:
    """A network with the policies that play on it.

    Attributes:
        preset: The scenario.
        policies: The policies; the second one of a case without an optimum is what the first is compared with.
        changes: Changes of the scenario.
        most_seeds: Seeds that the case plays at most.
        together: Seeds that one process plays.
    """

    preset: str
    policies: tuple[str, ...]
    changes: dict[str, Any] = field(default_factory=dict)
    most_seeds: int = 40
    together: int = 10


def _size(clients: int, channels: int, rounds: int) -> dict[str, int]:
    return {"network.clients": clients, "network.channels": channels, "rounds": rounds}


CASES = {
    "paper": Case("paper-fmnist", ("lane", "genie", "lane-2026", OM, "lane:V=5", "lane:idle_channels=true", "random")),
    "long": Case("paper-fmnist", ("lane", "genie", "lane-2026"), {"rounds": 5000}),
    "rayleigh": Case("paper-fmnist", ("lane", "genie", "genie:V=7", "lane-2026"), {"network.fading": "rayleigh"}),
    "100 x 10": Case("paper-fmnist", ("lane", "genie", "lane-2026"), _size(100, 10, 300), 20, 5),
    "1,000 x 100": Case("paper-fmnist", ("lane", "genie", "lane-2026"), _size(1000, 100, 500), 4, 1),
    **{
        world: Case(world, RIVALS, most_seeds=20, together=5)
        for world in ("drifting", "city-munich", "churn", "phones")
    },
}


def played(name: str, policy: str, seeds: list[int]) -> dict[str, Any]:
    """Play some seeds of a case; return one record of each seed's figures, and the time."""
    from fedlane import Scenario, Simulation
    from fedlane.simulation.optimal_delays import optimal_delays
    from fedlane.simulation.tables import shortfalls
    from fedlane.theory import feasible_scale

    case = CASES[name]
    scenario = Scenario.load(case.preset).with_values({"privacy.mechanism": "none", **case.changes})
    simulation = Simulation(scenario, policy, seeds)
    setup, queue = simulation.setup, np.zeros(len(seeds))
    start = time.process_time()
    while not simulation.finished:
        simulation.step()
        queue = np.maximum(queue, simulation.rounds.queue.max(axis=1))
    seconds, trace = time.process_time() - start, simulation.trace
    half = trace.delay_s.shape[1] // 2
    quota = (1.0 - 0.125) * setup.problem.quotas
    share = trace.counts()[1] / trace.delay_s.shape[1]
    optimum = optimal_delays(setup)
    covered = None
    if trace.covered is not None:
        covered = [int(trace.covered.sum()), int((trace.client >= 0).sum())]
    scale = None
    if name == "paper":
        success = setup.network.distributions(128).success
        scale = [float(feasible_scale(p, q)) for p, q in zip(success, quota, strict=True)]
    return {
        "case": name,
        "policy": policy,
        "seeds": seeds,
        "mean_s": trace.delay_s.mean(axis=1).tolist(),
        "last_half_s": trace.delay_s[:, half:].mean(axis=1).tolist(),
        "optimum_s": None if optimum is None else optimum.tolist(),
        "feasible_scale": scale,
        "smallest_participation": share.min(axis=1).tolist(),
        "under_quota": (quota - share).max(axis=1).tolist(),
        "shortfall": shortfalls(quota, trace.counts()[1], simulation.totals).mean(axis=1).tolist(),
        "largest_queue": queue.tolist(),
        "covered": covered,
        "cpu_ms_per_round": 1e3 * seconds / trace.delay_s.size,
    }


def play(path: Path, workers: int, seeds: range, names: list[str]) -> None:
    """Play all jobs in several processes, the longest first, and write their records."""
    jobs = []
    for name in names:
        case = CASES[name]
        chosen = list(seeds)[: case.most_seeds]
        parts = [chosen[k : k + case.together] for k in range(0, len(chosen), case.together)]
        jobs += [(name, policy, part) for policy in case.policies for part in parts]
    jobs.sort(key=lambda job: job[0] not in ("1,000 x 100", "long"))
    records = []
    with ProcessPoolExecutor(workers) as pool:
        for record in pool.map(played, *zip(*jobs, strict=True)):
            records.append(record)
            print(f"{len(records)} of {len(jobs)}: {record['case']}, {record['policy']}", flush=True)
            path.write_text(json.dumps(records))


def merged(records: list[dict[str, Any]], case: str, policy: str) -> dict[str, Any]:
    """Return the figures of a policy over all seeds."""
    parts = [record for record in records if record["case"] == case and record["policy"] == policy]
    lists = {key: np.concatenate([part[key] for part in parts]) for key in parts[0] if isinstance(parts[0][key], list)}
    if parts[0]["covered"] is not None:
        lists["covered"] = np.sum([part["covered"] for part in parts], axis=0)
    return {**lists, "cpu_ms_per_round": float(np.median([part["cpu_ms_per_round"] for part in parts]))}


def with_interval(values: Any, digits: int = 3) -> str:
    """Return a mean with its 95% interval."""
    from fedlane.intervals import student_interval

    values = np.asarray(values, float)
    low, mean, high = (float(v) for v in student_interval(values[~np.isnan(values)]))
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def table(path: Path) -> None:
    """Print a table of each case in Markdown."""
    records = json.loads(path.read_text())
    for name, case in CASES.items():
        policies = [p for p in case.policies if any(r["case"] == name and r["policy"] == p for r in records)]
        if not policies:
            continue
        results = {policy: merged(records, name, policy) for policy in policies}
        lane, reference = results[policies[0]], results[policies[1]]
        exact = "optimum_s" in lane
        worlds = case.policies == RIVALS
        against = "the optimum" if exact else f"`{policies[1]}`"
        # Every column is over the same seeds: those whose lowered quotas can be served, where that is known.
        same = ~np.isnan(lane["optimum_s"]) if exact else np.ones(len(lane["seeds"]), bool)
        print(f"\n### {name}: {same.sum()} of {len(same)} seeds from {int(lane['seeds'][0])}\n")
        print(
            f"| policy | times {against} | last half | 95th percentile | `lane` / it | smallest participation |"
            " `lane`'s minus it | shortfall | largest queue | ms a round |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
        for policy, result in results.items():
            whole = lane["optimum_s"] if exact else reference["mean_s"]
            half = lane["optimum_s"] if exact else reference["last_half_s"]
            ratio = result["mean_s"] / whole
            worst = lane["smallest_participation"] - result["smallest_participation"]
            columns = [
                with_interval(ratio[same]),
                with_interval((result["last_half_s"] / half)[same]),
                f"{np.quantile(ratio[same], 0.95):.3f}",
                with_interval((lane["mean_s"] / result["mean_s"])[same]),
                with_interval(result["smallest_participation"][same]),
                with_interval(worst[same]),
                f"{result['shortfall'][same].mean():.4f}",
                f"{result['largest_queue'][same].max():.1f}",
                f"{result['cpu_ms_per_round']:.2f}",
            ]
            print(f"| `{policy}` | " + " | ".join(columns) + " |")
        if "feasible_scale" in lane:
            served = lane["feasible_scale"] >= FEASIBLE
            print(
                f"\nOn the {served.sum()} networks that can serve {FEASIBLE} times the lowered quotas: participation at"
                f" most {lane['under_quota'][served].max():.3f} under the lowered quota, queues at most"
                f" {lane['largest_queue'][served].max():.1f}."
            )
        if "covered" in lane:
            print(
                f"\n`lane`'s 90% intervals cover {lane['covered'][0] / lane['covered'][1]:.1%} of"
                f" {lane['covered'][1]:,} uploads."
            )
        if worlds:
            print("\n(Times are relative to `lane-2026`.)")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("play", "table"))
    parser.add_argument("results", type=Path)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seeds", default="0:40", help="A:B, seeds A to B - 1")
    parser.add_argument("--case", action="append", choices=sorted(CASES))
    options = parser.parse_args()
    if options.command == "table":
        table(options.results)
    else:
        first, end = (int(number) for number in options.seeds.split(":"))
        play(options.results, options.workers, range(first, end), options.case or list(CASES))


if __name__ == "__main__":
    main()
