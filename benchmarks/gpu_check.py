"""Checks on a GPU: repeatability to the bit, agreement with the CPU, and independence of replicas.

python benchmarks/gpu_check.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import numpy as np
import torch

from fedlane.learning.datasets import load_dataset
from fedlane.learning.federation import FederationBatch
from fedlane.learning.models import make_model
from fedlane.learning.partition import Partition, label_counts
from fedlane.records import MechanismSpec

CLIENTS, CHANNELS = 10, 4


def played(
    model: str,
    seeds: list[int],
    device: str,
    noise: float,
    rounds: int = 5,
    exact: bool = False,
    sampling: str = "fixed",
) -> FederationBatch:
    """Federations after some rounds of a schedule that depends only on the seed."""
    data = load_dataset("fashion-mnist-mini")
    counts = np.stack(
        [label_counts(Partition("dominant", 0.8, 0.3), data.info.class_totals, CLIENTS, s) for s in seeds]
    )
    federation = FederationBatch(
        make_model(model, data.info.input_shape, 10),
        data,
        counts,
        seeds,
        MechanismSpec.simple(
            counts.sum(axis=2),
            batch_size=16,
            local_iterations=3,
            clip_norm=1.0,
            upload_noise=noise / (0.1 / 16),
            sampling=sampling,
            step_noise=1.0 if sampling == "poisson" and noise else 0.0,
        ),
        0.1,
        device,
    )
    if exact:
        torch.set_float32_matmul_precision("highest")
    for t in range(rounds):
        client = np.stack([np.random.default_rng([s, t]).permutation(CLIENTS)[:CHANNELS] for s in seeds])
        punctual = np.stack([np.random.default_rng([s, t, 1]).random(CHANNELS) < 0.7 for s in seeds])
        federation.play(t, client, punctual)
    return federation


def main() -> None:
    """Print the results of all checks for every model."""
    for model in ("softmax", "mlp", "cnn"):
        first, second = (played(model, [3, 7, 9], "cuda", 1e-3) for _ in range(2))
        print(f"{model}: two runs are equal to the bit: {torch.equal(first.weights, second.weights)}")
        alone = played(model, [7], "cuda", 1e-3)
        apart = float((first.weights[1] - alone.weights[0]).abs().max())
        print(f"{model}: one replica alone or among others, largest difference {apart:.1e}")
        cpu, gpu = played(model, [3, 7], "cpu", 0.0), played(model, [3, 7], "cuda", 0.0, exact=True)
        moved = float((cpu.weights - played(model, [3, 7], "cpu", 0.0, rounds=0).weights).abs().max())
        apart = float((cpu.weights - gpu.weights.cpu()).abs().max())
        print(f"{model}: CPU and GPU in float32, largest difference {apart:.1e} after moving by {moved:.2f}")
        cpu, gpu = (played(model, [3, 7], at, 0.0, exact=True, sampling="poisson") for at in ("cpu", "cuda"))
        print(f"{model}: the same with Poisson sampling: {float((cpu.weights - gpu.weights.cpu()).abs().max()):.1e}")
        evaluation, other = cpu.evaluate(), gpu.evaluate()
        print(f"{model}: accuracy {evaluation.accuracy} on the CPU, {other.accuracy} on the GPU")


if __name__ == "__main__":
    main()
