"""Speed of learning on one GPU: federation-rounds per second, relative to the limits of the card.

    python benchmarks/gpu.py mlp 200 100 50         # model, replicas, rounds, evaluate every
    python benchmarks/gpu.py cnn 16 100 50          # append `rigorous` for Poisson sampling and noise in every step

Draws, punctual masks (one upload in fifty is late, as under `lane`), noise and evaluation are included; the first
rounds are not timed. Images are random, with the shape of the dataset. Only PyTorch and NumPy are needed.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import numpy as np
import torch

from fedlane.learning.architectures import Convolution, architecture
from fedlane.learning.datasets import Dataset, Samples, dataset_info
from fedlane.learning.federation import FederationBatch
from fedlane.learning.models import make_model
from fedlane.learning.partition import Partition, label_counts
from fedlane.records import MechanismSpec

CLIENTS, CHANNELS, BATCH, STEPS = 10, 4, 64, 5
WARM_UP = 5


def flop_per_sample(model: str, shape: tuple[int, ...]) -> float:
    """Floating-point operations of a forward and backward pass with clipping, as implemented by the layers."""
    total = 0.0
    for index, layer in enumerate(architecture(model, shape, 10)):
        if isinstance(layer, Convolution):
            positions, width = layer.height * layer.width, 9 * layer.inputs
            product = 2.0 * positions * width * layer.outputs
            total += product * (2 if index == 0 else 3)  # forward, weights' and inputs' gradients
        else:
            total += 2.0 * layer.inputs * layer.outputs * (2 if index == 0 else 3)
    return total


def synthetic(name: str) -> Dataset:
    """Random images with the shape of a dataset; the speed does not depend on their content."""
    info = dataset_info(name)
    rng = np.random.default_rng(0)
    planes, height, width = info.input_shape

    def samples(per_class: int) -> Samples:
        labels = np.repeat(np.arange(10), per_class)
        return Samples(rng.integers(0, 256, (len(labels), height, width, planes), dtype=np.uint8), labels)

    return Dataset(info, samples(info.train_per_class), samples(info.test_per_class))


def ceilings(device: str) -> tuple[float, float]:
    """Rate of a large matrix product in FLOP/s, and bandwidth of a copy in bytes/s (read plus written)."""
    size = 8192 if device == "cuda" else 1024
    a, b = torch.randn(2, size, size, device=device)
    rate = 2.0 * size**3 / timed(lambda: a @ b, device)
    block = torch.empty(2**30 if device == "cuda" else 2**26, dtype=torch.uint8, device=device)
    other = torch.empty_like(block)
    return rate, 2.0 * block.numel() / timed(lambda: other.copy_(block), device)


def timed(call: object, device: str, repeats: int = 10) -> float:
    """Median time of a call, in seconds."""
    times = []
    for _ in range(repeats + 3):
        wait(device)
        start = time.perf_counter()
        call()  # type: ignore[operator]
        wait(device)
        times.append(time.perf_counter() - start)
    return float(np.median(times[3:]))


def wait(device: str) -> None:
    """Wait until the device has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def measure(model: str, replicas: int, rounds: int, evaluate_every: int, device: str, rigorous: bool = False) -> None:
    """Time rounds of learning and print the result."""
    data = synthetic("cifar10" if model == "cnn" else "fashion-mnist")
    counts = np.stack(
        [label_counts(Partition("dominant", 0.8, 0.0), data.info.class_totals, CLIENTS, s) for s in range(replicas)]
    )
    federation = FederationBatch(
        make_model(model, data.info.input_shape, 10),
        data,
        counts,
        range(replicas),
        MechanismSpec.simple(
            counts.sum(axis=2),
            batch_size=BATCH,
            local_iterations=STEPS,
            clip_norm=20.0 if model == "cnn" else 1.0,
            sampling="poisson" if rigorous else "fixed",
            step_noise=0.65 if rigorous else 0.0,
            upload_noise=0.0 if rigorous else 0.01,
        ),
        0.1,
        device,
    )
    rng = np.random.default_rng(1)
    client = np.argsort(rng.random((WARM_UP + rounds, replicas, CLIENTS)), axis=2)[..., :CHANNELS]
    punctual = rng.random(client.shape) < 0.98
    for t in range(WARM_UP):
        federation.play(t, client[t], punctual[t])
    federation.evaluate()
    wait(device)
    start, testing = time.perf_counter(), 0.0
    for t in range(WARM_UP, WARM_UP + rounds):
        federation.play(t, client[t], punctual[t])
        if (t - WARM_UP + 1) % evaluate_every == 0:
            wait(device)
            before = time.perf_counter()
            federation.evaluate()
            wait(device)
            testing += time.perf_counter() - before
    wait(device)
    seconds = time.perf_counter() - start
    rate, bandwidth = ceilings(device)
    trained = punctual[WARM_UP:].sum() * STEPS * BATCH
    flop = trained * flop_per_sample(model, data.info.input_shape)
    print(
        f"{model}, {replicas} replicas, {rounds} rounds: {replicas * rounds / seconds:,.0f} federation-rounds/s "
        f"({seconds:.2f} s, of which {testing:.2f} s evaluation); "
        f"{flop / (seconds - testing) / 1e12:.2f} TFLOP/s while training, "
        f"{flop / (seconds - testing) / rate:.1%} of the {rate / 1e12:.1f} of one large matrix product; "
        f"copies run at {bandwidth / 1e12:.2f} TB/s; replicas at once {federation._replicas_at_once(CHANNELS)}",
        flush=True,
    )
    if device == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)


def main() -> None:
    """Read the arguments and run the benchmark."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    replicas, rounds, evaluate_every = map(int, sys.argv[2:5])
    measure(sys.argv[1], replicas, rounds, evaluate_every, device, "rigorous" in sys.argv[5:])


if __name__ == "__main__":
    main()
