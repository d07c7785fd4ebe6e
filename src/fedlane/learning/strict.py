"""Local training of a real client: a record's influence is bounded by the clip norm whatever weights the server sends.

`train_locally` is fast because it multiplies whole batches. In a batched product, the rounding of one sample's gradient
can depend on the other samples: on the width of the batch, on the place in it and on the kernel that is chosen. Weights
can be chosen so that a rounding error decides whether a ReLU is active, and the gradients of many samples then change
when a single record joins the batch. `train_strictly` excludes this. The claim is:

    For any weights and any two samples T and T + {r}, the sums of clipped gradients differ by at most C in norm.

1. *The gradient of a record is a function of the weights and the record.* Every record is copied to the same buffer and
   processed alone, as a batch of one, on one thread. There is no padding and no other sample. Assumed, and tested by
   tests/learning/test_strict.py: PyTorch computes the same bits from the same bits in the same buffers. Also assumed:
   a user's module has no state that one call leaves for the next (its constant buffers are watched, see
   `module_model`).

2. *Every contribution has norm at most C.* Let u = 2^-53, let g be the gradient (d float32 numbers) and v its norm.
   Float64 holds the squares of float32 numbers exactly, without overflow or underflow. A sum of d such squares, in any
   order, is at least (1 - (d - 1) u) v^2. Its rounded root is therefore n >= (1 - d u) v. With m = (d + 8) 2^-52 and
   L = C (1 - m), the gradient is multiplied by f = min(1, L / n) in float64. The rounding of L, of the quotient and of
   the product adds at most 3 u relatively, so the norm of the product is at most C (1 - m) (1 + u)^3 / (1 - d u) <= C.
   If the sum is not finite, some entry of g is not: the record then contributes nothing. It also contributes nothing if
   g is 0 or if a user's module raises any exception. Underflow in the computation of g changes g, not this bound.

3. *The sum is exact.* Each entry of f g is rounded towards zero to a multiple of a power of two, the unit, which only
   reduces the norm. With 2^(e - 1) <= C < 2^e and fewer than 2^k records in the data set, the unit is 2^(e - 53 + k).
   All partial sums are then multiples of the unit below 2^53 units, so float64 addition is exact, in any order. The
   two sums of the claim differ by exactly the contribution of r.

Losses that a client reports are summed in the same way: a record's vector (l, l^2 / L), rounded to float32, is one more
"gradient" of norm at most sqrt(2) L, computed alone and added exactly.

Noise of deviation z C is added to this sum in float64 before the result is rounded to float32 weights; the rounding of
the deviation is compensated by a factor 1 + 2^-40. Every later step starts from weights that were computed from noised
sums. The remaining weaknesses of floating-point noise are described in docs/privacy.md.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedlane.learning.deferred_signals import deferred_signals
from fedlane.learning.local import ClientData, TrainingBatch, as_inputs
from fedlane.learning.loss_reports import record_losses
from fedlane.learning.model_interface import Batch, Model
from fedlane.records import LossQuery

log = logging.getLogger("fedlane.learning")
NOISE_MARGIN = 1 + 2.0**-40


class ClippedSum:
    """The exact sum of gradients that are clipped one by one.

    Args:
        size: d, the number of weights.
        clip_norm: C, between 1e-20 and 1e20.
        records: Largest number of gradients that may be added.
    """

    def __init__(self, size: int, clip_norm: float, records: int) -> None:
        if not 1e-20 <= clip_norm <= 1e20:
            raise ValueError(f"clip norm must be from 1e-20 to 1e20, got {clip_norm}")
        self.unit = math.ldexp(1.0, math.frexp(clip_norm)[1] - 53 + records.bit_length())
        self._limit = clip_norm * (1 - (size + 8) * 2.0**-52)
        self._scaled = torch.empty(size, dtype=torch.float64)
        self._total = torch.zeros(size, dtype=torch.float64)

    def add(self, gradient: Tensor) -> None:
        """Clip a float32 gradient (d,) and add it; add nothing if it is not finite."""
        scaled = self._scaled.copy_(gradient)
        square = float(torch.dot(scaled, scaled))
        if not math.isfinite(square) or square == 0:
            return
        factor = min(1.0, self._limit / math.sqrt(square))
        self._total += scaled.mul_(factor / self.unit).trunc_()

    def take(self) -> Tensor:
        """Return the sum (d,) in float64 and reset it to zero."""
        total = self._total * self.unit
        self._total.zero_()
        return total


class RecordGradients:
    """The gradients of single records, each computed as a batch of one in the same buffers.

    Args:
        model: The model.
        data: Records and targets; the partition is not used.
    """

    def __init__(self, model: Model, data: ClientData) -> None:
        self.model, self.data = model, data
        self._inputs = torch.empty(1, 1, *data.images.shape[1:], dtype=as_inputs(data.images[:0]).dtype)
        self._targets = torch.empty(1, 1, data.targets.shape[1], dtype=data.targets.dtype)
        # Models use the input's squared norm only for clipping, which is done here, so 0 is enough.
        self._batch = Batch(self._inputs, self._targets, torch.zeros(1, 1))
        self._scale = torch.ones(1, 1)
        self._weights, self._negative = torch.empty(1, model.size), torch.empty(1, model.size)

    def start(self, weights: Tensor) -> None:
        """Set the weights (1, d) at which gradients are taken."""
        self._weights.copy_(weights)

    def _place(self, record: int) -> None:
        """Copy a record to the buffers."""
        images = self.data.images
        self._inputs[0, 0].copy_(images[record])
        if images.dtype == torch.uint8:
            self._inputs.mul_(1.0 / 255.0)
        self._targets[0, 0].copy_(self.data.targets[record])

    def contribution_to_losses(self, record: int, query: LossQuery) -> Tensor:
        """Return what a record contributes to the released sums: (l, l^2 / L) in float32, with l clipped to L."""
        self._place(record)
        loss = record_losses(self.model, self._weights, self._inputs, self._targets, query.clip)[0, 0]
        return torch.stack([loss, loss.square() / query.unit]).float()

    def negative_gradient(self, record: int) -> Tensor:
        """Return minus the gradient (d,) of a record, in a buffer that the next call overwrites."""
        self._place(record)
        self.model.descend(self._weights, self._batch, None, self._scale, self._negative.zero_())
        return self._negative[0]


@torch.no_grad()
def train_strictly(
    model: Model,
    weights: Tensor,
    data: ClientData,
    rows: TrainingBatch,
    learning_rate: float,
    clip_norm: float,
    query: LossQuery | None = None,
) -> Tensor | None:
    """Make the steps of `train_locally` for one real client, in place on weights (1, d), with the module's bound.

    Args:
        model: The model.
        weights: (1, d) weights as the server sent them, float32.
        data: The client's records.
        rows: Samples and noise, see `system_rows`.
        learning_rate: eta.
        clip_norm: C.
        query: How losses are released from the first step's sample; None if they are not.

    Returns:
        The noised loss sums (1, 2) in float64; None without a query.
    """
    if rows.add_noise is None or len(weights) != 1:
        raise ValueError("strict training is for one client whose mechanism adds noise in every step")
    if not model.per_record:
        raise ValueError("strict training needs a model with gradients of single records (per_record=True)")
    if query is not None and (not query.protected or rows.first_noise is None):
        raise ValueError("losses need noise, and a noisier first step that pays for them")
    gradients = RecordGradients(model, data)
    total = ClippedSum(model.size, clip_norm, len(data.targets))
    share = learning_rate / rows.batch_size.double()
    released = None
    with one_thread(), deferred_signals() as deliver_signal:
        for step, (indices, mask) in enumerate(zip(rows.indices[0], rows.mask[0], strict=True)):
            gradients.start(weights)
            chosen = indices[mask].tolist()
            _add_records(total, gradients.negative_gradient, chosen, deliver_signal, "gradient")
            if step == 0 and query is not None:
                released = _loss_sums(gradients, query, chosen, deliver_signal)
                rows.add_noise(released, step, torch.tensor([query.deviation * NOISE_MARGIN], dtype=torch.float64))
            move = total.take()[None]
            noise = rows.step_noise if step or rows.first_noise is None else rows.first_noise
            rows.add_noise(move, step, noise.double() * (clip_norm * NOISE_MARGIN))
            weights.copy_(weights.double().add_(move * share[:, None]))
    return released


def _add_records(
    total: ClippedSum,
    contribution: Callable[[int], Tensor],
    records: Iterable[int],
    deliver_signal: Callable[[], None],
    kind: str,
) -> None:
    """Add the contributions of records, each computed alone; one that fails contributes nothing."""
    for record in records:
        try:
            total.add(contribution(record))
        except BaseException:  # in a user's module; an upload that fails or ends the process reveals the record
            log.exception("record %d has no %s and contributes nothing", record, kind)
        deliver_signal()


def _loss_sums(
    gradients: RecordGradients, query: LossQuery, records: Iterable[int], deliver_signal: Callable[[], None]
) -> Tensor:
    """Return the exact sums (1, 2) of the records' contributions to the released losses, without noise."""
    total = ClippedSum(2, math.sqrt(2.0) * query.clip, len(gradients.data.targets))
    _add_records(total, lambda k: gradients.contribution_to_losses(k, query), records, deliver_signal, "loss")
    return total.take()[None]


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread, so that no sum is split in a way that may vary."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
