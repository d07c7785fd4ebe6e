"""Local training: what the clients of a round do with the model they were sent (paper, Section II, steps 2 and 3).

Every training client of every replica is one row: tau iterations of per-sample-clipped SGD on all rows at once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlane.learning.draws import GAMMA, sample_positions
from fedlane.learning.models import Batch, Model

try:
    from fedlane.learning import cpu_kernels
except ImportError:  # Numba is not here: PyTorch alone does it, a little slower
    cpu_kernels = None  # type: ignore[assignment]


@dataclass(frozen=True)
class LocalTask:
    """How a client trains."""

    learning_rate: float
    local_iterations: int
    clip_norm: float | None


@dataclass(frozen=True)
class ClientData:
    """All replicas' partitions over one resident data set: indices only, never copies of samples."""

    images: Tensor
    """(samples, height, width, planes): bytes on a CPU, where they save memory traffic; inputs in [0, 1] on a GPU."""
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
    batch_size: Tensor
    """(R, U): b_i, or |D_i| where that is less."""
    largest_batch: int
    """The largest b_i asked for: how many numbers a step draws, whatever the sizes are."""
    equal_batches: bool


def draw_batches(
    data: ClientData, key: Tensor, replica: Tensor, client: Tensor, round: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    """Which samples each row trains on: indices (G, tau, B) and, where batches differ in size, a mask of that shape.

    Drawn from (seed, round, client, iteration) alone: b_i distinct samples, all equally likely.
    """
    counter = (round * data.size.shape[1] + client) * iterations
    size, start, most = data.size[replica, client], data.start[replica, client], data.largest_batch
    count = data.batch_size[replica, client]
    if cpu_kernels is not None and key.device.type == "cpu":
        arrays = [tensor.numpy() for tensor in (key[replica], counter, size, count, start, replica, data.order)]
        indices = torch.from_numpy(cpu_kernels.sample_rows(*arrays, iterations, most, GAMMA))  # type: ignore[call-arg, arg-type]
    else:
        counters = counter[:, None] + torch.arange(iterations, device=key.device)
        keys, sizes, counts = (column[:, None].expand(counters.shape) for column in (key[replica], size, count))
        positions = sample_positions(keys, counters, sizes, counts, most)
        indices = data.order[replica[:, None, None], start[:, None, None] + positions].long()
    if data.equal_batches:
        return indices, torch.empty(0)
    return indices, (torch.arange(most, device=key.device) < count[:, None])[:, None].expand(indices.shape)


def train_locally(
    model: Model, task: LocalTask, weights: Tensor, data: ClientData, indices: Tensor, mask: Tensor, batch_size: Tensor
) -> None:
    """tau iterations of w -= (eta / b) sum_s clip(g_s), in place on weights (G, d).

    indices (G, tau, B), mask the same or empty, batch_size (G,): the fixed b that the sum is divided by.
    """
    scale = (task.learning_rate / batch_size)[:, None].repeat(1, indices.shape[2])
    targets, squares = _rows(data.targets, indices), _rows(data.squares, indices)
    for step in range(task.local_iterations):
        batch = Batch(
            x=_images(data.images, indices[:, step]),
            targets=targets[:, step],
            squares=squares[:, step],
        )
        model.descend(weights, batch, task.clip_norm, scale if mask.numel() == 0 else scale * mask[:, step])


def as_inputs(images: Tensor) -> Tensor:
    """Bytes as floats in [0, 1]; floats are inputs already."""
    return images if images.is_floating_point() else images.to(torch.float32).mul_(1.0 / 255.0)


def _images(images: Tensor, indices: Tensor) -> Tensor:
    """The inputs at ``indices``, (*indices, height, width, planes)."""
    shape = (*indices.shape, *images.shape[1:])
    if cpu_kernels is None or images.device.type != "cpu":
        return as_inputs(images.index_select(0, indices.reshape(-1))).view(shape)
    inputs = torch.empty(indices.numel(), images[0].numel())
    cpu_kernels.gather_images(images.flatten(1).numpy(), indices.reshape(-1).numpy(), inputs.numpy())
    return inputs.view(shape)


def _rows(table: Tensor, indices: Tensor) -> Tensor:
    """table[indices], by the fastest way there is."""
    return table.index_select(0, indices.reshape(-1)).view(*indices.shape, *table.shape[1:])
