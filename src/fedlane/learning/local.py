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
from fedlane.learning.optimization import LocalOptimizer

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
    """(samples, M): one-hot labels or numbers, float32; (samples, L): classes of sequences (see `Objective`)."""
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
    first_noise: Tensor | None = None
    """(G,): noise of the first step, where losses are released from its sample; None for that of the others."""


def train_locally(
    model: Model,
    weights: Tensor,
    data: ClientData,
    rows: TrainingBatch,
    learning_rate: float | Tensor,
    clip_norm: float | None,
    optimizer: LocalOptimizer | None = None,
) -> None:
    """Make tau steps w -= (eta / b) (sum_s clip(g_s) + N(0, (z C)^2)), in place on weights (G, d).

    With noise, the sum and the noise are added before either reaches the weights. The server chooses the weights: if
    large weights rounded the sum first, a record could be visible beneath the noise.

    With an optimizer, a step is v <- m v + (that step) - eta mu (w - w_global), w <- w + v. Only the noisy step depends
    on the records; everything else is computed from earlier weights, so privacy is as without it.

    Args:
        model: The model.
        weights: (G, d) global models, which become the trained ones.
        data: The clients' records.
        rows: Samples and noise of each row.
        learning_rate: eta; a tensor () where it changes from round to round.
        clip_norm: C, or None for no clipping.
        optimizer: Momentum and proximal term; None for plain SGD.
    """
    if rows.add_noise is not None and clip_norm is None:
        raise ValueError("noise needs a clip norm: without one it has no scale")
    velocity = None if optimizer is None else _Velocity(optimizer, model, weights, learning_rate)
    moved = weights if velocity is None or model.whole_batch else velocity.values
    move = torch.zeros_like(weights) if rows.add_noise is not None else moved
    unit = learning_rate * (clip_norm or 0.0)
    later = unit * rows.step_noise / rows.batch_size
    first = later if rows.first_noise is None else unit * rows.first_noise / rows.batch_size
    for step, (batch, scale) in enumerate(_batches(model, weights, data, rows, learning_rate / rows.batch_size)):
        if velocity is not None:
            velocity.start_step()
        model.descend(weights, batch, clip_norm, scale, move)
        deviation = later if step else first
        if isinstance(rows.add_noise, CounterNoise):
            rows.add_noise.finish_step_(moved, move, step, deviation)
        elif rows.add_noise is not None:
            rows.add_noise(move, step, deviation)
            moved += move
            move.zero_()
        if velocity is not None:
            velocity.finish_step()


class _Velocity:
    """The velocity v (G, d) of rows that train with momentum or a proximal term."""

    def __init__(self, optimizer: LocalOptimizer, model: Model, weights: Tensor, learning_rate: float | Tensor) -> None:
        self.optimizer, self.model, self.weights = optimizer, model, weights
        self.values = torch.zeros_like(weights)
        self._pull = learning_rate * optimizer.proximal
        self._global = weights.clone() if optimizer.proximal else None
        self._before = weights

    def start_step(self) -> None:
        """Set v to what does not depend on the records: m v, and the pull towards the global model."""
        self.values.mul_(self.optimizer.momentum)
        if self._global is not None:
            self.values += (self._global - self.weights) * self._pull
        if self.model.whole_batch:
            self._before = self.weights.clone()

    def finish_step(self) -> None:
        """Move the weights by v, to which the step was added unless the model updates its weights in place.

        Such a model also updates its running statistics, which have no velocity.
        """
        if not self.model.whole_batch:
            self.weights += self.values
            return
        weights, before, values = (rows[:, : self.model.trained] for rows in (self.weights, self._before, self.values))
        values += weights - before
        weights.copy_(before + values)


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


def first_sample(data: ClientData, rows: TrainingBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first step's inputs and targets (G, B, ...), and which places hold records (G, B)."""
    indices = rows.indices[:, 0]
    mask = rows.mask[:, 0] if rows.mask.numel() else torch.ones_like(indices, dtype=torch.bool)
    return _blank(_images(data.images, indices), mask), _rows(data.targets, indices), mask


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
