"""What unbiased aggregation and the server's optimisers do to accuracy and to the time to a target.

    python benchmarks/optimizers.py schedules FOLDER             # computes the schedules (a few minutes on a CPU)
    python benchmarks/optimizers.py learn FOLDER [TASK] [cuda]   # trains; needs only PyTorch, NumPy and the data sets
    python benchmarks/optimizers.py table FOLDER                 # prints the tables of docs/learning.md

Aggregation: `paper-fmnist` with 10, 20 and 40 clients (4, 8 and 16 channels), seeds 0 to 9. Server optimisers: `lane`
on both tasks; each optimiser's learning rate is chosen on seeds 100 to 104 (CIFAR-10: 100 to 102) by the mean accuracy
over the tested rounds, and reported on seeds 0 to 9.
"""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import numpy as np

POLICIES = {
    "lane": "lane",
    "om": "mamab-om:V=100,T0=1,exploration=0.03,quota_slack=0.125",
    "random": "random",
}
NETWORKS = {10: 4, 20: 8, 40: 16}
TASKS = {"fashion-mnist": ("paper-fmnist", 0.70, "100:105"), "cifar10": ("paper-cifar10", 0.50, "100:103")}
OPTIMIZERS = {
    "sgd": (1.0,),
    "momentum": (0.1, 0.3, 1.0),
    "adam": (0.001, 0.003, 0.01, 0.03),
    "yogi": (0.001, 0.003, 0.01, 0.03),
}


def schedules(folder: Path) -> None:
    """Compute all schedules with `fedlane run`."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        (f"aggregation-{clients}-{name}", "paper-fmnist", policy, "10", (clients, channels))
        for clients, channels in NETWORKS.items()
        for name, policy in POLICIES.items()
    ]
    for task, (preset, _, tuning) in TASKS.items():
        for part, seeds in (("tuning", tuning), ("final", "10")):
            jobs.append((f"server-{task}-{part}", preset, "lane", seeds, (10, 4)))
    for name, preset, policy, seeds, (clients, channels) in jobs:
        with tempfile.TemporaryDirectory() as out:
            fedlane = str(Path(sys.executable).with_name("fedlane"))
            command = [fedlane, "run", preset, "--policy", policy, "--seeds", seeds]
            command += ["--set", f"network.clients={clients}", "--set", f"network.channels={channels}", "--no-learning"]
            command += ["--save-schedule", str(folder / f"{name}.npz"), "--out", f"{out}/run", "--quiet"]
            subprocess.run(command, check=True)


def learned(path: Path, device: str, **changes: Any) -> Any:
    """Train from a schedule with other optimisers; return the curves."""
    from fedlane.learning.replay import Schedule, learn

    schedule = Schedule.load(str(path))
    optimization = replace(schedule.task.optimization, **changes)
    return learn(replace(schedule, task=replace(schedule.task, optimization=optimization)), device)


def keep(folder: Path, name: str, curves: Any) -> None:
    """Store accuracy and clock of some curves."""
    np.savez_compressed(folder / f"curves-{name}.npz", accuracy=curves.accuracy, clock_s=curves.clock_s)
    print(name, f"{curves.accuracy[:, -1].mean():.4f}", flush=True)


def learn_all(folder: Path, task: str, device: str) -> None:
    """Train all variants of a task."""
    if task == "fashion-mnist":
        for clients in NETWORKS:
            for name in POLICIES:
                for aggregation in ("size", "unbiased"):
                    path = folder / f"aggregation-{clients}-{name}.npz"
                    keep(folder, f"{path.stem}-{aggregation}", learned(path, device, aggregation=aggregation))
    for optimizer, rates in OPTIMIZERS.items():
        score = {}
        for rate in rates:
            changes = {"server_optimizer": optimizer, "server_learning_rate": rate}
            curves = learned(folder / f"server-{task}-tuning.npz", device, **changes)
            score[rate] = float(np.nan_to_num(curves.accuracy).mean())
            print(task, optimizer, rate, f"{score[rate]:.4f}", flush=True)
        best = max(score, key=score.__getitem__)
        changes = {"server_optimizer": optimizer, "server_learning_rate": best}
        keep(
            folder,
            f"server-{task}-{optimizer}-{best:g}",
            learned(folder / f"server-{task}-final.npz", device, **changes),
        )


def time_to(curves: Any, target: float) -> Any:
    """(R,): simulated time until the target is reached; NaN where it never is."""
    reached = curves["accuracy"] >= target
    first = curves["clock_s"][np.arange(len(reached)), reached.argmax(1)]
    return np.where(reached.any(1), first, np.nan)


def cell(values: Any, other: Any = None, digits: int = 3) -> str:
    """Mean with its 95% interval, or that of the paired difference from another variant."""
    from fedlane.intervals import interval

    shown = values if other is None else values - other
    shown = shown[~np.isnan(shown)]
    if len(shown) < 2:
        return "not reached"
    sign = "" if other is None else "+"
    numbers = interval(shown)
    mean, low, high = (format(numbers[key], f"{sign}.{digits}f") for key in ("mean", "low", "high"))
    missing = f" ({len(shown)} of {len(values)} seeds)" if len(shown) < len(values) else ""
    return f"{mean} [{low}, {high}]{missing}"


def table(folder: Path) -> None:
    """Print both tables."""
    print("| clients | policy | accuracy, size | unbiased minus size | time to 0.70 (s), size | unbiased minus size |")
    print("|--:|---|---|---|---|---|")
    for clients in NETWORKS:
        for name in POLICIES:
            size, unbiased = (
                np.load(folder / f"curves-aggregation-{clients}-{name}-{a}.npz") for a in ("size", "unbiased")
            )
            last = [curves["accuracy"][:, -1] for curves in (size, unbiased)]
            times = [time_to(curves, 0.70) for curves in (size, unbiased)]
            row = cell(last[0]), cell(last[1], last[0], 4), cell(times[0], None, 0), cell(times[1], times[0], 0)
            print(f"| {clients} | {name} | " + " | ".join(row) + " |")
    print("\n| task | optimiser | learning rate | accuracy | minus sgd | time to target (s) | minus sgd |")
    print("|---|---|--:|---|---|---|---|")
    for task, (_, target, _) in TASKS.items():
        plain = np.load(folder / f"curves-server-{task}-sgd-1.npz")
        for optimizer in OPTIMIZERS:
            (path,) = folder.glob(f"curves-server-{task}-{optimizer}-*.npz")
            curves = np.load(path)
            last, times = curves["accuracy"][:, -1], time_to(curves, target)
            row = (
                cell(last), cell(last, plain["accuracy"][:, -1], 4),
                cell(times, None, 0), cell(times, time_to(plain, target), 0),
            )  # fmt: skip
            print(f"| {task} | {optimizer} | {path.stem.rsplit('-', 1)[1]} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command == "schedules":
        schedules(folder)
    elif command == "learn":
        learn_all(folder, *[*sys.argv[3:], "fashion-mnist", "cpu"][:2])
    else:
        table(folder)
