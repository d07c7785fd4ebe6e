"""Train models from a saved schedule, on a machine that needs only PyTorch and NumPy.

python -m fedlane.learning.replay schedule.npz --device cuda --out curves.npz
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedlane.learning.schedule import Curves, LearningTask, Schedule, learn
from fedlane.validate import InputError, at_least, printable

__all__ = ["Curves", "LearningTask", "Schedule", "learn", "main"]


def main() -> None:
    """Train models from a schedule file and write the learning curves."""
    parser = argparse.ArgumentParser(prog="fedlane.learning.replay", description="Train models from a saved schedule.")
    parser.add_argument("schedule", help="schedule file (.npz)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="device to train on (default: cpu)")
    parser.add_argument("--out", default="curves.npz", help="file for the learning curves (default: curves.npz)")
    parser.add_argument("--evaluate-every", type=int, help="rounds between evaluations (default: the scenario's)")
    parser.add_argument("--weights", action="store_true", help="also write the final models")
    options = parser.parse_args()
    try:
        schedule = Schedule.load(options.schedule)
        try:  # check that the output can be written before hours of training
            with Path(options.out).open("ab"):
                pass
        except OSError as error:
            raise InputError(f"{options.out} cannot be written: {error.strerror}") from error
        if options.evaluate_every is not None:
            at_least("--evaluate-every", options.evaluate_every, 1)
            schedule = replace(schedule, task=replace(schedule.task, evaluate_every=options.evaluate_every))
        start = time.perf_counter()
        curves = learn(schedule, options.device, lambda t, a: print(f"round {t}: accuracy {a:.4f}", flush=True))
        seconds = time.perf_counter() - start
        arrays = {name: array for name, array in curves.__dict__.items() if name != "weights" or options.weights}
        with Path(options.out).open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    except (InputError, OSError) as error:
        print(f"fedlane: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        sys.exit(2)
    replicas, rounds = schedule.delay_s.shape
    speed = replicas * rounds / seconds
    print(f"{replicas} replicas x {rounds} rounds in {seconds:.1f} s ({speed:,.0f} rounds per second)")


if __name__ == "__main__":
    main()
