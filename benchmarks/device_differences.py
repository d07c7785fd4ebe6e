"""How far learning curves differ between plays of the same run: numbers of threads, CPU and GPU.

python benchmarks/device_differences.py [OTHER_FOLDER]

Prints the largest differences and writes the curves of the CPU to device-differences/, so that those of two machines
can be compared: give the other machine's folder. `fedlane replay` derives its limits from these figures.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import numpy as np
import torch

from fedlane.learning.datasets import load_dataset
from fedlane.learning.federation import FederationBatch
from fedlane.learning.models import make_model
from fedlane.learning.partition import Partition, label_counts
from fedlane.records import MechanismSpec

SEEDS, ROUNDS, CLIENTS, CHANNELS = list(range(8)), 200, 10, 4
MECHANISMS: dict[str, dict[str, Any]] = {  # the noise of `quickstart`, and of the paper's epsilon 25 per round
    "rigorous": {"step_noise": 1.479, "sampling": "poisson"},
    "paper": {"upload_noise": 0.0752},
    "none": {},
}


class Curves(NamedTuple):
    """Accuracy and loss (K, R) at the evaluations, and the final weights (R, d)."""

    accuracy: Any
    loss: Any
    weights: Any


def played(device: str, mechanism: dict[str, Any]) -> Curves:
    """Train on a schedule that depends only on the seed."""
    data = load_dataset("fashion-mnist-mini")
    partition = Partition("dominant", 0.8, 0.0)
    counts = np.stack([label_counts(partition, data.info.class_totals, CLIENTS, seed) for seed in SEEDS])
    spec = MechanismSpec.simple(counts.sum(axis=2), batch_size=64, local_iterations=5, clip_norm=1.0, **mechanism)
    model = make_model("mlp", data.info.input_shape, 10)
    federation = FederationBatch(model, data, counts, SEEDS, spec, 0.3, device)
    evaluations = []
    for t in range(ROUNDS):
        draws = [np.random.default_rng([seed, t]) for seed in SEEDS]
        client = np.stack([draw.permutation(CLIENTS)[:CHANNELS] for draw in draws])
        federation.play(t, client, np.stack([draw.random(CHANNELS) < 0.9 for draw in draws]))
        if t % 10 == 9:
            evaluations.append(federation.evaluate())
    accuracy, loss = (np.array([getattr(e, name) for e in evaluations]) for name in ("accuracy", "loss"))
    return Curves(accuracy, loss, federation.weights.cpu().numpy())


def show(name: str, one: Curves, two: Curves) -> None:
    """Print the largest differences over seeds and evaluations."""
    accuracy = np.abs(one.accuracy - two.accuracy).max()
    loss = (np.abs(one.loss - two.loss) / one.loss).max()
    late = np.abs(one.accuracy[-3:].mean(axis=0) - two.accuracy[-3:].mean(axis=0)).max()
    weights = (np.linalg.norm(one.weights - two.weights, axis=1) / np.linalg.norm(one.weights, axis=1)).max()
    print(
        f"{name:24} accuracy {accuracy:.4f}  loss {loss:.1e}  last three {late:.4f}  weights {weights:.1e}", flush=True
    )


def main() -> None:
    """Compare plays on this machine, and with the stored curves of another one."""
    folder = Path("device-differences")
    folder.mkdir(exist_ok=True)
    for name, mechanism in MECHANISMS.items():
        here = played("cpu", mechanism)
        np.savez(folder / f"{name}.npz", **here._asdict())
        if len(sys.argv) > 1:
            with np.load(Path(sys.argv[1]) / f"{name}.npz") as stored:
                show(f"{name}, other machine", here, Curves(**{key: stored[key] for key in stored.files}))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        show(f"{name}, 1 thread or {threads}", here, played("cpu", mechanism))
        torch.set_num_threads(threads)
        if torch.cuda.is_available():
            show(f"{name}, CPU or GPU", here, played("cuda", mechanism))


if __name__ == "__main__":
    main()
