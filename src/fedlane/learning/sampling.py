"""Random samples of the clients' records, drawn for every local step as the mechanism prescribes."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedlane.learning.counter_rng import (
    GAMMA,
    POISSON_STRIDE,
    largest_poisson_batch,
    poisson_positions,
    sample_positions,
)
from fedlane.learning.local import ClientData
from fedlane.records import IntArray, MechanismSpec

try:
    from fedlane.learning import cpu_kernels
except ImportError:  # without Numba, PyTorch does the same a little more slowly
    cpu_kernels = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Sampling:
    """Settings for drawing the sample of a local step."""

    poisson: bool
    """Whether every record is drawn independently; otherwise ``batch_size`` distinct records are drawn."""
    batch_size: Tensor
    """(R, U): b."""
    rate: Tensor
    """(R, U): q, float64."""
    max_batch: int
    """Places for the records of a sample: the memory that every step reserves for a client. A Poisson sample may have
    more records, but hardly ever does."""
    asked_batch: int
    """Largest requested batch. It spaces the random numbers of the steps, and it is the same in every replica, so that
    a replica's samples do not depend on the others' data."""
    equal: bool
    """Whether all samples have exactly ``max_batch`` records."""
    overflow: Tensor
    """Whether a sample with more than ``max_batch`` records has been drawn, on the device. On a CPU, such a sample is
    drawn again with room for it; a GPU only takes note here."""


def sampling_of(mechanism: MechanismSpec, sizes: IntArray, device: torch.device) -> Sampling:
    """Return the mechanism's sampling settings for clients with ``sizes`` (R, U) records, on the device."""
    poisson = mechanism.sampling == "poisson"
    batch = mechanism.batch_size  # at most a client's records
    max_batch = largest_poisson_batch(sizes, mechanism.sample_rate) if poisson else int(batch.max())
    return Sampling(
        poisson=poisson,
        batch_size=torch.from_numpy(mechanism.batch_size).to(device),
        rate=torch.from_numpy(mechanism.sample_rate).to(device),
        max_batch=max_batch,
        asked_batch=int(mechanism.asked_batch.max()),
        equal=not poisson and bool(np.all(mechanism.batch_size == max_batch)),
        overflow=torch.zeros((), dtype=torch.bool, device=device),
    )


def with_more_places(sampling: Sampling) -> Sampling:
    """Return the settings with twice as many places, after an overflow."""
    return replace(sampling, max_batch=2 * sampling.max_batch, overflow=torch.zeros_like(sampling.overflow))


def without_unused_places(indices: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return samples as `draw_samples` does, without the places that are unused in every row."""
    if mask.numel() == 0:
        return indices, mask
    width = max(1, int(mask.sum(2).max()))
    return indices[..., :width], mask[..., :width]


def draw_samples(
    data: ClientData,
    sampling: Sampling,
    key: Tensor,
    replica: Tensor,
    client: Tensor,
    counter: Tensor,
    iterations: int,
) -> tuple[Tensor, Tensor]:
    """Draw the records that each of G rows trains on.

    A row's sample depends only on its key and counter. The counter is that of the first iteration; the following
    iterations use the following counters.

    Args:
        data: The clients' records.
        sampling: How samples are drawn.
        key: (G,) 64-bit keys, see `counter_rng`.
        replica: (G,) replica of each row.
        client: (G,) client of each row.
        counter: (G,) counter of the first iteration.
        iterations: Number of local steps, tau.

    Returns:
        Record indices (G, tau, B), and a mask of that shape, True for the records that are in the sample; the mask is
        empty if all are.
    """
    size, start, max_batch = data.size[replica, client], data.start[replica, client], sampling.max_batch
    count, rate = sampling.batch_size[replica, client], sampling.rate[replica, client]
    if cpu_kernels is not None and key.device.type == "cpu":
        columns = (key, counter, size, rate if sampling.poisson else count, start, replica, data.order)
        arrays = [tensor.numpy() for tensor in columns]
        if sampling.poisson:
            records, drawn = cpu_kernels.poisson_rows(*arrays, iterations, max_batch, GAMMA, POISSON_STRIDE)
            width = max(1, int(drawn.max()))  # places beyond the longest sample are unused in every row
            if width > max_batch:
                records, drawn = cpu_kernels.poisson_rows(*arrays, iterations, width, GAMMA, POISSON_STRIDE)
            mask = torch.arange(width) < torch.from_numpy(drawn)[..., None]
            return torch.from_numpy(records[..., :width].copy()), mask
        indices = torch.from_numpy(cpu_kernels.sample_rows(*arrays, iterations, max_batch, sampling.asked_batch, GAMMA))
    else:
        counters = counter[:, None] + torch.arange(iterations, device=key.device)
        keys, sizes, counts, rates = (column[:, None].expand(counters.shape) for column in (key, size, count, rate))
        if sampling.poisson:
            positions, mask = poisson_positions(keys, counters, sizes, rates, max_batch + 1)
            sampling.overflow.logical_or_(mask[..., -1].any())
            positions, mask = positions[..., :-1], mask[..., :-1]
        else:
            positions = sample_positions(keys, counters, sizes, counts, max_batch, sampling.asked_batch)
        indices = data.order[replica[:, None, None], start[:, None, None] + positions].long()
        if sampling.poisson:
            return indices, mask
    if sampling.equal:
        return indices, torch.empty(0)
    return indices, (torch.arange(max_batch, device=key.device) < count[:, None])[:, None].expand(indices.shape)
