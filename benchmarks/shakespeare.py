"""Accuracy of the text task `shakespeare`, and what (8, 1e-5)-differential privacy costs it.

    python benchmarks/shakespeare.py schedules FOLDER      # computes the schedules (some minutes on a CPU)
    python benchmarks/shakespeare.py learn FOLDER [cuda]   # trains; needs only PyTorch, NumPy and the data set
    python benchmarks/shakespeare.py table FOLDER          # prints the table of docs/data.md

Each line of the table is a variant of the preset under `lane`. Its learning rate, and whether it follows a cosine, is
chosen on seeds 100 and 101 by the final accuracy, and reported on seeds 0 to 4.
"""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import numpy as np

ALL_ROLES = ["network.clients=170", "network.channels=40", "rounds=2000"]
VARIANTS = {
    "40-none": ["privacy.mechanism=none"],
    "40-private-256": [],
    "40-private-1024": ["learning.batch_size=1024"],
    "170-none": [*ALL_ROLES, "privacy.mechanism=none"],
    "170-private-1024": [*ALL_ROLES, "learning.batch_size=1024", "privacy.max_uploads=800"],
}
RATES = (0.5, 1.0, 2.0, 4.0)
SCHEDULES = ("constant", "cosine")
PARTS = {"tuning": "100:102", "final": "5"}


def schedules(folder: Path) -> None:
    """Compute all schedules with `fedlane run`; those that are there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    fedlane = str(Path(sys.executable).with_name("fedlane"))
    for variant, changes in VARIANTS.items():
        for part, seeds in PARTS.items():
            if (folder / f"{variant}-{part}.npz").exists():
                continue
            with tempfile.TemporaryDirectory() as out:
                command = [fedlane, "run", "shakespeare", "--seeds", seeds, "--no-learning", "--quiet"]
                command += ["--save-schedule", str(folder / f"{variant}-{part}.npz"), "--out", f"{out}/run"]
                command += [argument for change in changes for argument in ("--set", change)]
                subprocess.run(command, check=True)


def learned(path: Path, device: str, rate: float, decay: str) -> Any:
    """Train from a schedule with another learning rate; return the curves."""
    from fedlane.learning.replay import Schedule, learn

    schedule = Schedule.load(str(path))
    optimization = replace(schedule.task.optimization, learning_rate_schedule=decay)
    task = replace(schedule.task, learning_rate=rate, optimization=optimization, evaluate_every=50)
    return learn(replace(schedule, task=task), device)


def learn_all(folder: Path, device: str) -> None:
    """Choose the learning rate of each variant, and train it."""
    for variant in VARIANTS:
        if list(folder.glob(f"curves-{variant}-*.npz")) or not (folder / f"{variant}-final.npz").exists():
            continue
        score = {}
        for rate in RATES:
            for decay in SCHEDULES:
                curves = learned(folder / f"{variant}-tuning.npz", device, rate, decay)
                score[rate, decay] = float(np.nan_to_num(curves.accuracy[:, -1]).mean())
                print(variant, rate, decay, f"{score[rate, decay]:.4f}", flush=True)
        rate, decay = max(score, key=score.__getitem__)
        curves = learned(folder / f"{variant}-final.npz", device, rate, decay)
        path = folder / f"curves-{variant}-{rate:g}-{decay}.npz"
        np.savez_compressed(path, accuracy=curves.accuracy, clock_s=curves.clock_s)
        print(path.stem, f"{curves.accuracy[:, -1].mean():.4f}", flush=True)


def table(folder: Path) -> None:
    """Print a line for each variant."""
    from fedlane.intervals import interval

    print("| variant | learning rate | accuracy | after a quarter of the rounds |")
    print("|---|---|---|--:|")
    for variant in VARIANTS:
        for path in folder.glob(f"curves-{variant}-*.npz"):
            accuracy = np.load(path)["accuracy"]
            numbers = interval(accuracy[:, -1])
            mean, low, high = (format(numbers[key], ".3f") for key in ("mean", "low", "high"))
            rate, decay = path.stem.removeprefix(f"curves-{variant}-").split("-")
            early = accuracy[:, accuracy.shape[1] // 4 - 1].mean()
            print(f"| {variant} | {rate}, {decay} | {mean} [{low}, {high}] | {early:.3f} |")


if __name__ == "__main__":
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command == "schedules":
        schedules(folder)
    elif command == "learn":
        learn_all(folder, *[*sys.argv[3:], "cpu"][:1])
    else:
        table(folder)
