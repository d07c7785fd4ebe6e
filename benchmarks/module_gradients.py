"""Measure per-sample gradients of users' modules with GroupNorm: computed directly, and with torch.func.

python benchmarks/module_gradients.py       # about a minute on one core
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedlane.learning.model_interface import Batch
from fedlane.learning.module_checks import checked_module
from fedlane.learning.module_model import ModuleModel

CLIENTS, RECORDS, REPEATS = 4, 64, 3


def convolutions(*planes: int, kernel: int) -> list[nn.Module]:
    """Return blocks of a convolution, GroupNorm, ReLU and pooling."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip((1, *planes), planes, strict=False):
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.GroupNorm(4, outputs), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return [*layers, nn.Flatten()]


MODULES: dict[str, Callable[[], nn.Module]] = {
    "two 5 x 5 convolutions of 32 and 64 filters, 512 dense units": lambda: nn.Sequential(
        *convolutions(32, 64, kernel=5), nn.Linear(64 * 49, 512), nn.ReLU(), nn.Linear(512, 10)
    ),
    "two 3 x 3 convolutions of 16 and 32 filters, 128 dense units": lambda: nn.Sequential(
        *convolutions(16, 32, kernel=3), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, 10)
    ),
    "two 3 x 3 convolutions of 16 and 32 filters": lambda: nn.Sequential(
        *convolutions(16, 32, kernel=3), nn.Linear(32 * 49, 10)
    ),
    "three 3 x 3 convolutions of 16, 32 and 64 filters": lambda: nn.Sequential(
        *convolutions(16, 32, 64, kernel=3), nn.Linear(64 * 9, 10)
    ),
}


def seconds(model: ModuleModel, weights: Tensor, batch: Batch) -> float:
    """Return the shortest time of a clipped step."""
    scale, times = torch.full((CLIENTS, RECORDS), 0.01), []
    for _ in range(REPEATS):
        start = time.perf_counter()
        with torch.no_grad():
            model.descend(weights, batch, 1.0, scale, torch.zeros_like(weights))
        times.append(time.perf_counter() - start)
    return min(times)


def both_ways(make: Callable[[], nn.Module]) -> tuple[int, float, float]:
    """Return the number of a module's weights, and the seconds of a step computed directly and with torch.func."""
    source = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (CLIENTS, RECORDS), generator=source)
    batch = Batch(torch.rand(CLIENTS, RECORDS, 28, 28, 1, generator=source), torch.eye(10)[labels])
    model = checked_module(make, (1, 28, 28), 10, per_record=True)
    weights = model.initial(0).repeat(CLIENTS, 1)
    direct = seconds(model, weights, batch)
    model.slow_reason = "measured"
    return model.size, direct, seconds(model, weights, batch)


def main() -> None:
    """Print a line for each module."""
    torch.set_num_threads(1)
    for name, make in MODULES.items():
        size, direct, generic = both_ways(make)
        print(f"{name} ({size:,} weights): {direct:.3f} s, torch.func {generic:.3f} s, {generic / direct:.1f} times")


if __name__ == "__main__":
    main()
