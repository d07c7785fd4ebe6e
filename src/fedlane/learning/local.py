"""Local training: the steps that a round's clients make from the global model (paper, Section II, steps 2 and 3).

Each training client of each replica is one row. All rows make tau steps of clipped SGD at once, with noise if the
mechanism requires it. Simulated rounds, audits and real clients all train through `train_locally`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlane.learning.counter_rng import CounterNoise
from fedlane.learning.model_interface import Batch, Model

try:
    from fedlane.learning import cpu_kernels
except ImportError:  # without Numba, PyTorch does the same a little more slowly
    cpu_kernels = None  # type: ignore[assignment]


@dataclass(frozen=True)
class ClientData:
    """The clients' records in all replicas: one data set in memory, and indices into it."""

    images: Tensor
    """(samples, height, width, planes): bytes, which save memory traffic on a CPU. Or (samples, ...): floats that are
    model inputs, or other integers, which are tokens."""
    targets: Tensor
    """(samples, M): one-hot labels, float32."""
    squares: Tensor
    """(samples,): squared norm of each sample's model input, which for bytes is the image divided by 255."""
    order: Tensor
    """(R, samples): each replica's sample indices, grouped by client; int32."""
    start: Tensor
    """(R, U): position in ``order`` of each client's first index."""
    size: Tensor
    """(R, U): |D_i|."""


@dataclass(frozen=True)
class TrainingBatch:
    """The samples and the noise with which G rows train for one upload."""

    indices: Tensor
    """(G, tau, B): records in each step's sample."""
    mask: Tensor
    """(G, tau, B): True for the records that are in the sample; empty if all are."""
    batch_size: Tensor
    """(G,): the fixed b by which a step's sum is divided."""
    step_noise: Tensor
    """(G,): z, the noise of a step in multiples of the clip norm."""
    add_noise: Callable[[Tensor, int, Tensor], object] | None = None
    """Function of a move (G, d), a step's number and a deviation (G,) that adds normal numbers of this deviation to
    the move in place; None where z is 0."""
    seeds: Tensor | None = None
    """(G, tau): 64-bit seeds of each step's random layers; None for models without them."""


def train_locally(
    model: Model, weights: Tensor, data: ClientData, rows: TrainingBatch, learning_rate: float, clip_norm: float | None
) -> None:
    """Make tau steps w -= (eta / b) (sum_s clip(g_s) + N(0, (z C)^2)), in place on weights (G, d).

    With noise, the sum and the noise are added before either reaches the weights. The server chooses the weights: if
    large weights rounded the sum first, a record could be visible beneath the noise.
    """
    if rows.add_noise is not None and clip_norm is None:
        raise ValueError("noise needs a clip norm: without one it has no scale")
    move = torch.zeros_like(weights) if rows.add_noise is not None else weights
    deviation = (learning_rate * (clip_norm or 0.0)) * rows.step_noise / rows.batch_size
    for step, (batch, scale) in enumerate(_batches(model, weights, data, rows, learning_rate / rows.batch_size)):
        model.descend(weights, batch, clip_norm, scale, move)
        if isinstance(rows.add_noise, CounterNoise):
            rows.add_noise.finish_step_(weights, move, step, deviation)
        elif rows.add_noise is not None:
            rows.add_noise(move, step, deviation)
            weights += move
            move.zero_()


def _batches(
    model: Model, weights: Tensor, data: ClientData, rows: TrainingBatch, rate: Tensor
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield the samples of each step and their factors, which are rate (G,) for the samples of a row."""
    if model.takes_unpadded(weights):
        yield from _unpadded_batches(data, rows, rate)
        return
    indices, mask = rows.indices, rows.mask
    scales = rate[:, None, None].expand(indices.shape)
    counts = None
    if mask.numel():
        scales = scales * mask
        counts = (mask * torch.arange(1, mask.shape[2] + 1, device=mask.device)).amax(2)
    if model.reads_records(weights):
        for step in range(indices.shape[1]):
            batch = Batch(
                x=data.images.flatten(1),
                targets=data.targets,
                squares=data.squares,
                counts=None if counts is None else counts[:, step].contiguous(),
                records=indices[:, step].contiguous(),
            )
            yield batch, scales[:, step].contiguous()
        return
    targets, squares = (_blank(_rows(table, indices), mask) for table in (data.targets, data.squares))
    for step in range(indices.shape[1]):
        batch = Batch(
            x=_blank(_images(data.images, indices[:, step]), mask[:, step] if mask.numel() else mask),
            targets=targets[:, step],
            squares=squares[:, step],
            counts=None if counts is None else counts[:, step].contiguous(),
            mask=mask[:, step] if mask.numel() else None,
            seeds=None if rows.seeds is None else rows.seeds[:, step],
        )
        yield batch, scales[:, step].contiguous()


def _unpadded_batches(data: ClientData, rows: TrainingBatch, rate: Tensor) -> Iterator[tuple[Batch, Tensor]]:
    """Yield the same as `_batches` without padding: the samples of a step one after the other, ordered by row."""
    indices, mask = rows.indices.transpose(0, 1), rows.mask
    steps, groups, places = indices.shape
    if mask.numel() == 0:
        records, counts = indices.reshape(-1), torch.full((steps, groups), places)
    else:
        mask = mask.transpose(0, 1)
        records, counts = indices[mask], mask.sum(2)
    starts = torch.nn.functional.pad(counts.cumsum(1), (1, 0))
    sizes = starts[:, -1].tolist()
    scales = torch.split(rate.repeat(steps).repeat_interleave(counts.view(-1)), sizes)
    targets, squares = (torch.split(_rows(table, records), sizes) for table in (data.targets, data.squares))
    for step, chosen in enumerate(torch.split(records, sizes)):
        yield Batch(_images(data.images, chosen), targets[step], squares[step], starts=starts[step]), scales[step]


def _blank(samples: Tensor, mask: Tensor) -> Tensor:
    """Turn padding into null samples, in place: a record outside the sample must not enter any product."""
    if mask.numel() == 0:
        return samples
    return samples.masked_fill_(~mask.view(*mask.shape, *(1,) * (samples.ndim - mask.ndim)), 0)


def as_inputs(images: Tensor) -> Tensor:
    """Return bytes as floats in [0, 1], floats unchanged, and other integers, which are tokens, as int64."""
    if images.dtype == torch.uint8:
        return images.to(torch.float32).mul_(1.0 / 255.0)
    return images if images.is_floating_point() else images.long()


def _images(images: Tensor, indices: Tensor) -> Tensor:
    """Return the model inputs at ``indices``, (*indices, height, width, planes)."""
    shape = (*indices.shape, *images.shape[1:])
    if cpu_kernels is None or images.device.type != "cpu" or images.dtype != torch.uint8:
        return as_inputs(images.index_select(0, indices.reshape(-1))).view(shape)
    inputs = torch.empty(indices.numel(), images[0].numel())
    cpu_kernels.gather_images(images.flatten(1).numpy(), indices.reshape(-1).numpy(), inputs.numpy())
    return inputs.view(shape)


def _rows(table: Tensor, indices: Tensor) -> Tensor:
    """Return table[indices]; index_select is faster than indexing."""
    return table.index_select(0, indices.reshape(-1)).view(*indices.shape, *table.shape[1:])
