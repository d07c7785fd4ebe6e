"""A hostile server: a search for weights under which clipping fails.

The server chooses the weights, within the range that clients accept, and knows both data sets: one with the record, and
one with a null record in its place.
It looks for one record's contribution with a norm above C, and for a record whose presence changes the sum of all
contributions by more than C. It tries structured weights first (cancellations, ties, units on the boundary of a ReLU,
extreme magnitudes) and then climbs from the worst of them, by random changes and by stochastic gradient ascent.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedlane.learning.local import ClientData
from fedlane.learning.model_interface import Batch, Model
from fedlane.learning.strict import ClippedSum, RecordGradients, one_thread
from fedlane.validate import LARGEST_WEIGHT

ClippedSumOf = Callable[[Model, Tensor, Tensor, Tensor, float], Tensor]
"""Code under attack: takes a model, weights (d,), inputs (n, ...), targets (n, M) and C, and returns the sum (d,) of
the clipped gradients."""

RecordLossesOf = Callable[[Model, Tensor, Tensor, Tensor, float], Tensor]
"""Code under attack: takes a model, weights (G, d), inputs (G, B, ...), targets (G, B, M) and L, and returns the
clipped losses (G, B)."""

Change = Callable[[Model, Tensor, torch.Generator], Tensor]
"""A step of the climb: returns changed weights."""


@dataclass(frozen=True)
class WorstCase:
    """The worst case that a search has seen."""

    ratio: float
    """Norm in multiples of C; infinite if it was not finite."""
    attack: str
    """Name of the initial weights, and of the changes that raised the ratio."""
    weights: Tensor
    """(d,)"""
    tried: int
    """Number of weight vectors evaluated."""


@torch.no_grad()
def strict_sum(model: Model, weights: Tensor, x: Tensor, targets: Tensor, clip_norm: float) -> Tensor:
    """Return the sum that a real client computes (`train_strictly`)."""
    empty = torch.empty(0)
    gradients = RecordGradients(model, ClientData(x, targets, empty, empty, empty, empty))
    total = ClippedSum(model.size, clip_norm, len(targets))
    with one_thread():
        gradients.start(weights[None])
        for record in range(len(targets)):
            total.add(gradients.negative_gradient(record))
    return total.take()


@torch.no_grad()
def batched_sum(model: Model, weights: Tensor, x: Tensor, targets: Tensor, clip_norm: float) -> Tensor:
    """Return the sum that simulations compute (`train_locally`), from one batch."""
    total = torch.zeros(1, model.size, device=weights.device)
    batch = Batch(x[None], targets[None], x.flatten(1).square().sum(1)[None])
    model.descend(weights[None], batch, clip_norm, torch.ones(1, len(x), device=x.device), total)
    return total[0].double()


def batched_sum_on(device: torch.device) -> ClippedSumOf:
    """Return `batched_sum` as a device computes it; a GPU has its own kernels."""

    def on_device(model: Model, weights: Tensor, x: Tensor, targets: Tensor, clip_norm: float) -> Tensor:
        return batched_sum(model, weights.to(device), x.to(device), targets.to(device), clip_norm).cpu()

    return on_device


def largest_contribution(
    path: ClippedSumOf, model: Model, x: Tensor, targets: Tensor, clip_norm: float, climbs: int = 20, seed: int = 0
) -> WorstCase:
    """Search for the weights under which one of the records (n, ...) contributes most."""

    def ratio(weights: Tensor) -> float:
        sums = (path(model, weights, x[k : k + 1], targets[k : k + 1], clip_norm) for k in range(len(x)))
        return max(_ratio(total, clip_norm) for total in sums)

    return _search(ratio, model, x, climbs, seed)


def largest_difference(
    path: ClippedSumOf, model: Model, x: Tensor, targets: Tensor, clip_norm: float, climbs: int = 20, seed: int = 0
) -> WorstCase:
    """Search for the weights under which the last record changes the sum most, when it is added first or last."""
    first = [len(x) - 1, *range(len(x) - 1)]

    def ratio(weights: Tensor) -> float:
        without = path(model, weights, x[:-1], targets[:-1], clip_norm)
        joined = (
            path(model, weights, x, targets, clip_norm),
            path(model, weights, x[first], targets[first], clip_norm),
        )
        return max(_ratio(total - without, clip_norm) for total in joined)

    return _search(ratio, model, x, climbs, seed)


@torch.no_grad()
def largest_loss(path: RecordLossesOf, model: Model, x: Tensor, targets: Tensor, clip: float, seed: int = 0) -> float:
    """Search for the weights under which one of the records (n, ...) contributes most to the released loss sums.

    Returns:
        The largest norm of (l, l^2 / L) in multiples of its bound, sqrt(2) L; infinite if a loss was not finite.
    """
    largest = 0.0
    for _, weights in hostile_weights(model, x, seed):
        losses = path(model, _allowed(weights)[None], x[None], targets[None], clip)[0]
        norm = torch.hypot(losses, losses.square() / clip) / (math.sqrt(2.0) * clip)
        largest = max(largest, float(norm.nan_to_num(nan=math.inf).max()))
    return largest


def hostile_records(
    shape: tuple[int, ...], classes: int, copies: int, seed: int = 0, tokens: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return inputs (copies + 1, *shape) and targets: equal records, which flip together, and one more.

    Records of ``tokens`` different tokens have one of them at every second place: its gradient is a sum.
    """
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(2, *shape, generator=source)[[0] * copies + [1]]
    if tokens is not None:
        x = (x * tokens).long()
        x[:, ::2] = x[:, :1]
    return x.contiguous(), torch.eye(classes)[[0] * copies + [1]]


def hostile_weights(model: Model, x: Tensor, seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Yield named weight vectors (d,) within +-`LARGEST_WEIGHT`; the records x (n, ...) are known to the server."""
    source, size = torch.Generator().manual_seed(seed), model.size
    signs = torch.where(torch.rand(size, generator=source) < 0.5, -1.0, 1.0)
    uniform = torch.rand(size, generator=source)
    initial = model.initial(seed)
    yield "initial", initial
    yield "zero", torch.zeros(size)
    yield "constant", torch.full((size,), LARGEST_WEIGHT)
    yield "huge", LARGEST_WEIGHT * uniform * signs
    yield "signs", LARGEST_WEIGHT * signs
    yield "tiny", 1e-30 * initial
    yield "denormal", 1e-41 * signs
    yield "sparse", torch.where(uniform < 0.02, LARGEST_WEIGHT * signs, 0.0)
    yield "every magnitude", signs * 10.0 ** (47 * uniform - 44)
    blocks = list(model.tensors(torch.arange(size)).values())
    for name, factors in (("saturating", (1.0, 1e4)), ("amplifying", (1e-20, 1e4)), ("fading", (1e4, 1e-20))):
        weights = initial.clone()
        for k, block in enumerate(blocks):
            weights[block] *= factors[2 * k >= len(blocks)]
        yield name, weights
    for imbalance in (0.0, 1e-6, 1e-4):
        yield f"cancelling {imbalance:g}", _cancelling(model, blocks, imbalance)
    if _side(blocks) >= 4:
        for imbalance in (0.0, 1e-6, *(k * 1e-5 for k in (3, 6, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100))):
            yield f"cancelling positions {imbalance:g}", _cancelling_positions(model, blocks, imbalance)
    for scale in (0.02, 1.0):
        yield f"boundary {scale:g}", _boundary(scale * LARGEST_WEIGHT * uniform * signs, blocks, x)


def _cancelling(model: Model, blocks: list[Tensor], imbalance: float) -> Tensor:
    """Return weights in which neighbouring units have opposite signs and nearly the same weight."""
    weights = torch.zeros(model.size)
    for block in blocks:
        columns = torch.arange(block.shape[-1] if block.ndim == 2 else block.shape[0]) % 2
        values = LARGEST_WEIGHT * torch.where(columns == 0, 1.0, imbalance - 1.0)
        weights[block] = values if block.ndim <= 2 else values.view(-1, 1, 1, 1)
    return weights


def _side(blocks: list[Tensor]) -> int:
    """Return the height of the square images that the last convolution passes on; 0 if there is no convolution."""
    planes = [block.shape[0] for block in blocks if block.ndim == 4]
    inputs = next(block.shape[1] for block in blocks if block.ndim == 2)
    return round((inputs / planes[-1]) ** 0.5) if planes else 0


def _cancelling_positions(model: Model, blocks: list[Tensor], imbalance: float) -> Tensor:
    """Return weights with constant activations, whose four inner positions are weighted so that gradients cancel.

    A convolution's gradient is a sum over positions. Here its terms are large and their sum is small, so a norm
    computed from Gram matrices loses all its digits.
    """
    weights = torch.zeros(model.size)
    dense, biases = [block for block in blocks if block.ndim == 2], [block for block in blocks if block.ndim == 1]
    convolutions, side = len(biases) - len(dense), _side(blocks)
    for k, bias in enumerate(biases[:convolutions]):
        weights[bias] = LARGEST_WEIGHT if k == 1 else 1.0
    places, middle = dense[0][0].view(side, side, -1), side // 2
    for row, column, value in ((-1, -1, 1.0), (-1, 0, -1.0), (0, -1, -1.0), (0, 0, 1.0 - imbalance)):
        weights[places[middle + row, middle + column]] = LARGEST_WEIGHT * value
    weights[biases[convolutions][0]] = min(LARGEST_WEIGHT, 1.0 + LARGEST_WEIGHT * places.shape[2] * imbalance)
    for block, value in zip(dense[1:], (1.0, -1.0, 1.0), strict=False):
        weights[block[0, 0]] = LARGEST_WEIGHT * value
    return weights


def _boundary(weights: Tensor, blocks: list[Tensor], x: Tensor) -> Tensor:
    """Set biases for which rounding decides whether the units of the first layer with biases are active."""
    if not x.is_floating_point():
        table, *blocks = blocks
        x = torch.nn.functional.embedding(x, weights[table])
    matrix, bias = blocks[0], blocks[1]
    if matrix.ndim == 2:
        values = torch.bmm(x[None, : max(1, len(x) - 1)].flatten(2), weights[matrix].T[None])[0]
        weights[bias] = -values[len(values) // 2]
    else:
        image = x[:1].permute(0, 3, 1, 2)
        values = torch.nn.functional.conv2d(image, weights[matrix], padding=1)
        weights[bias] = -values.flatten(2).amax(2)[0]
    return weights.clamp_(-LARGEST_WEIGHT, LARGEST_WEIGHT)


def _search(ratio: Callable[[Tensor], float], model: Model, x: Tensor, climbs: int, seed: int) -> WorstCase:
    found = [(ratio(_allowed(weights)), name, _allowed(weights)) for name, weights in hostile_weights(model, x, seed)]
    found.sort(key=lambda entry: -entry[0])
    tried, source = len(found), torch.Generator().manual_seed(seed)
    best = found[0]
    changes: list[Change] = [_scale_tensor, _redraw, _jitter, partial(_ascend, ratio)]
    for k, (value, name, weights) in enumerate(found[:4]):
        current = value, name, weights
        for step in range(climbs // 4):
            change = changes[(step + k) % len(changes)]
            weights = _allowed(change(model, current[2], source))
            value, tried = ratio(weights), tried + 1
            if value > current[0]:
                label = getattr(change, "__name__", "_ascend").strip("_").replace("_", " ")
                current = value, f"{current[1]}, {label}", weights
        best = max(best, current, key=lambda entry: entry[0])
    return WorstCase(*best, tried)


def _allowed(weights: Tensor) -> Tensor:
    return weights.clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT)


def _ratio(total: Tensor, clip_norm: float) -> float:
    norm = float(total.norm())
    return norm / clip_norm if norm < float("inf") else float("inf")


def _scale_tensor(model: Model, weights: Tensor, source: torch.Generator) -> Tensor:
    blocks = list(model.tensors(torch.arange(model.size)).values())
    chosen = blocks[int(torch.randint(len(blocks), (), generator=source))]
    changed = weights.clone()
    changed[chosen] *= 2.0 ** float(torch.randint(-3, 4, (), generator=source))
    return changed


def _redraw(model: Model, weights: Tensor, source: torch.Generator) -> Tensor:
    fresh = LARGEST_WEIGHT * (2 * torch.rand(model.size, generator=source) - 1)
    return torch.where(torch.rand(model.size, generator=source) < 0.01, fresh, weights)


def _jitter(model: Model, weights: Tensor, source: torch.Generator) -> Tensor:
    """Change the last bits, which matter where rounding decides."""
    return weights * (1 + 2.0**-23 * torch.randint(-2, 3, (model.size,), generator=source))


def _ascend(ratio: Callable[[Tensor], float], model: Model, weights: Tensor, source: torch.Generator) -> Tensor:
    """Take a step of stochastic ascent: the better of two opposite random steps."""
    step = 0.01 * weights.abs() * (2 * torch.randint(0, 2, (model.size,), generator=source) - 1)
    return max((weights + step, weights - step), key=lambda moved: ratio(_allowed(moved)))
