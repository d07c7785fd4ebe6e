"""Local training: what the clients of a round do with the model they were sent (paper, Section II, steps 2 and 3).

Every training client of every replica is one row: tau steps of clipped and, where the mechanism says so, noised SGD on
all rows at once. Simulated rounds, audits and real clients all train through `train_locally`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlane.learning.counter_rng import GAMMA, POISSON_STRIDE, poisson_positions, sample_positions
from fedlane.learning.models import Batch, Model

try:
    from fedlane.learning import cpu_kernels
except ImportError:  # Numba is not here: PyTorch alone does it, a little slower
    cpu_kernels = None  # type: ignore[assignment]


@dataclass(frozen=True)
class ClientData:
    """All replicas' partitions over one resident data set: indices only, never copies of samples."""

    images: Tensor
    """(samples, height, width, planes): bytes, which save memory traffic on a CPU, or inputs, [0, 1] for images."""
    targets: Tensor
    """(samples, M): one-hot labels, float32."""
    squares: Tensor
    """(samples,): the squared norm of each sample's input, which is its image over 255."""
    order: Tensor
    """(R, samples): sample indices of each replica, client after client; int32."""
    start: Tensor
    """(R, U): where each client's indices begin."""
    size: Tensor
    """(R, U): |D_i|."""


@dataclass(frozen=True)
class Sampling:
    """How every step's sample is drawn, as the mechanism says."""

    poisson: bool
    batch_size: Tensor
    """(R, U): b."""
    rate: Tensor
    """(R, U): q, float64."""
    most: int
    """The most records one sample may hold: how many numbers a step draws, whatever the sizes are."""
    equal: bool
    """Whether all samples have just ``most`` records."""


@dataclass(frozen=True)
class TrainingBatch:
    """What G rows train by: one number each, and what chance decided for them."""

    indices: Tensor
    """(G, tau, B): the records of each step's sample."""
    mask: Tensor
    """(G, tau, B): which of them count; empty where all do."""
    batch_size: Tensor
    """(G,): the fixed b that a step's sum is divided by."""
    step_noise: Tensor
    """(G,): z, the noise of a step in multiples of the clip norm."""
    add_noise: Callable[[Tensor, int, Tensor], object] | None = None
    """Adds standard normal numbers, times a deviation (G,), to a step (G, d); None where z is 0."""


def draw_samples(
    data: ClientData,
    sampling: Sampling,
    key: Tensor,
    replica: Tensor,
    client: Tensor,
    counter: Tensor,
    iterations: int,
) -> tuple[Tensor, Tensor]:
    """Which records each row trains on: indices (G, tau, B) and, where samples differ in size, a mask of that shape.

    Drawn from (key, counter) of each row, (G,), alone; the counter is the first iteration's, the next ones follow it.
    """
    size, start, most = data.size[replica, client], data.start[replica, client], sampling.most
    count, rate = sampling.batch_size[replica, client], sampling.rate[replica, client]
    compiled = cpu_kernels is not None and key.device.type == "cpu"
    if compiled:
        some = (key, counter, size, rate if sampling.poisson else count, start, replica, data.order)
        arrays = [tensor.numpy() for tensor in some]
        if sampling.poisson:
            found, taken = cpu_kernels.poisson_rows(*arrays, iterations, most, GAMMA, POISSON_STRIDE)  # type: ignore[call-arg, arg-type]
            width = max(1, int(taken.max()))  # the rest is empty in every row
            mask = torch.arange(width) < torch.from_numpy(taken)[..., None]
            return torch.from_numpy(found[..., :width].copy()), mask
        indices = torch.from_numpy(cpu_kernels.sample_rows(*arrays, iterations, most, GAMMA))  # type: ignore[call-arg, arg-type]
    else:
        counters = counter[:, None] + torch.arange(iterations, device=key.device)
        keys, sizes, counts, rates = (column[:, None].expand(counters.shape) for column in (key, size, count, rate))
        if sampling.poisson:
            positions, mask = poisson_positions(keys, counters, sizes, rates, most)
        else:
            positions = sample_positions(keys, counters, sizes, counts, most)
        indices = data.order[replica[:, None, None], start[:, None, None] + positions].long()
        if sampling.poisson:
            return indices, mask
    if sampling.equal:
        return indices, torch.empty(0)
    return indices, (torch.arange(most, device=key.device) < count[:, None])[:, None].expand(indices.shape)


def train_locally(
    model: Model, weights: Tensor, data: ClientData, rows: TrainingBatch, learning_rate: float, clip_norm: float | None
) -> None:
    """tau steps of w -= (eta / b) (sum_s clip(g_s) + N(0, (z C)^2)), in place on weights (G, d).

    With noise, sum and noise are added up before the weights see them: weights of any size, which the server chose,
    then round what is noised already and cannot show a record's move below the noise.
    """
    if rows.add_noise is not None and clip_norm is None:
        raise ValueError("noise needs a clip norm: without one it has no scale")
    indices, mask = rows.indices, rows.mask
    move = torch.zeros_like(weights) if rows.add_noise is not None else weights
    scale = (learning_rate / rows.batch_size)[:, None].repeat(1, indices.shape[2])
    deviation = (learning_rate * (clip_norm or 0.0)) * rows.step_noise / rows.batch_size
    targets, squares = _rows(data.targets, indices), _rows(data.squares, indices)
    for step in range(indices.shape[1]):
        batch = Batch(
            x=_images(data.images, indices[:, step]),
            targets=targets[:, step],
            squares=squares[:, step],
        )
        model.descend(weights, batch, clip_norm, scale if mask.numel() == 0 else scale * mask[:, step], move)
        if rows.add_noise is not None:
            rows.add_noise(move, step, deviation)
            weights += move
            move.zero_()


def as_inputs(images: Tensor) -> Tensor:
    """Bytes as floats in [0, 1]; floats are inputs already."""
    return images if images.is_floating_point() else images.to(torch.float32).mul_(1.0 / 255.0)


def _images(images: Tensor, indices: Tensor) -> Tensor:
    """The inputs at ``indices``, (*indices, height, width, planes)."""
    shape = (*indices.shape, *images.shape[1:])
    if cpu_kernels is None or images.device.type != "cpu" or images.is_floating_point():
        return as_inputs(images.index_select(0, indices.reshape(-1))).view(shape)
    inputs = torch.empty(indices.numel(), images[0].numel())
    cpu_kernels.gather_images(images.flatten(1).numpy(), indices.reshape(-1).numpy(), inputs.numpy())
    return inputs.view(shape)


def _rows(table: Tensor, indices: Tensor) -> Tensor:
    """table[indices], by the fastest way there is."""
    return table.index_select(0, indices.reshape(-1)).view(*indices.shape, *table.shape[1:])
