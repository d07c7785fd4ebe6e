"""One step of the two-layer perceptron with per-sample clipping, in two kernels.

The first kernel goes from the images to the clipped gradients at the hidden layer and updates everything except the
first matrix; the second updates the first matrix. Images are read from the data set where they lie, as bytes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

SAMPLES, PIXELS = 32, 64
"""Samples and pixels that a program processes at a time."""
NO_CLIPPING = 3e38
"""A clip norm that no gradient in float32 exceeds."""


@triton.jit
def _pixels(images, record, pixel, valid, size, scale: tl.constexpr):
    """Return the inputs (samples, pixels) of records, 0 where a place holds none."""
    inside = valid[:, None] & (pixel < size)[None, :]
    values = tl.load(images + record[:, None] * size + pixel[None, :], mask=inside, other=0)
    return values.to(tl.float32) * scale


@triton.jit
def _down(
    weights, into, images, indices, counts, targets, squares, scale, back, row_size, places, pixels, clip_norm,
    classes: tl.constexpr, hidden: tl.constexpr, width: tl.constexpr, byte: tl.constexpr, precision: tl.constexpr,
    samples: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    unit, label = tl.arange(0, hidden), tl.arange(0, width)
    is_class = label < classes
    first = weights + row * row_size
    bias, second = first + hidden * pixels, first + hidden * (pixels + 1)
    second_at = label[:, None] * hidden + unit[None, :]
    matrix = tl.load(second + second_at, mask=is_class[:, None], other=0.0)
    hidden_bias = tl.load(bias + unit)
    out_bias = tl.load(second + classes * hidden + label, mask=is_class, other=0.0)
    second_sum = tl.zeros([width, hidden], tl.float32)
    hidden_sum = tl.zeros([hidden], tl.float32)
    out_sum = tl.zeros([width], tl.float32)
    count = tl.load(counts + row)
    for begin in range(0, count, samples):
        place = begin + tl.arange(0, samples)
        valid = place < count
        record = tl.load(indices + row * places + place, mask=valid, other=0)
        active = tl.zeros([samples, hidden], tl.float32)
        for start in range(0, pixels, step):
            pixel = start + tl.arange(0, step)
            x = _pixels(images, record, pixel, valid, pixels, 1.0 / 255.0 if byte else 1.0)
            w = tl.load(first + unit[None, :] * pixels + pixel[:, None], mask=(pixel < pixels)[:, None], other=0.0)
            active = tl.dot(x, w, active, input_precision=precision)
        active = tl.maximum(active + hidden_bias[None, :], 0.0, propagate_nan=tl.PropagateNan.ALL)
        score = tl.dot(active, tl.trans(matrix), input_precision=precision) + out_bias[None, :]
        score = tl.where(is_class[None, :], score, float("-inf"))
        score = tl.exp(score - tl.max(score, 1)[:, None])
        error = score / tl.sum(score, 1)[:, None]
        named = valid[:, None] & is_class[None, :]
        error -= tl.load(targets + record[:, None] * classes + label[None, :], mask=named, other=0.0)
        error = tl.where(named, error, 0.0)
        gradient = tl.where(active > 0, tl.dot(error, matrix, input_precision=precision), 0.0)
        norm = tl.sum(gradient * gradient, 1) * (1.0 + tl.load(squares + record, mask=valid, other=0.0))
        norm += tl.sum(error * error, 1) * (1.0 + tl.sum(active * active, 1))
        finite = (norm < float("inf")) & valid  # False for NaN
        factor = tl.load(scale + row * places + place, mask=valid, other=0.0)
        factor *= clip_norm / tl.maximum(tl.sqrt(norm), clip_norm)
        gradient = tl.where(finite[:, None], gradient * factor[:, None], 0.0)
        error = tl.where(finite[:, None], error * factor[:, None], 0.0)
        active = tl.where(finite[:, None], active, 0.0)
        tl.store(back + (row * places + place)[:, None] * hidden + unit[None, :], gradient, mask=valid[:, None])
        second_sum = tl.dot(tl.trans(error), active, second_sum, input_precision=precision)
        hidden_sum += tl.sum(gradient, 0)
        out_sum += tl.sum(error, 0)
    target = into + row * row_size + hidden * pixels
    tl.store(target + unit, tl.load(target + unit) - hidden_sum)
    target += hidden
    old = tl.load(target + second_at, mask=is_class[:, None])
    tl.store(target + second_at, old - second_sum, mask=is_class[:, None])
    target += classes * hidden
    tl.store(target + label, tl.load(target + label, mask=is_class) - out_sum, mask=is_class)


@triton.jit
def _first_matrix(
    into, images, indices, counts, back, row_size, places, pixels,
    hidden: tl.constexpr, byte: tl.constexpr, precision: tl.constexpr, samples: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    unit, pixel = tl.arange(0, hidden), tl.program_id(0) * step + tl.arange(0, step)
    total = tl.zeros([hidden, step], tl.float32)
    count = tl.load(counts + row)
    for begin in range(0, count, samples):
        place = begin + tl.arange(0, samples)
        valid = place < count
        record = tl.load(indices + row * places + place, mask=valid, other=0)
        x = _pixels(images, record, pixel, valid, pixels, 1.0 / 255.0 if byte else 1.0)
        at = (row * places + place)[None, :] * hidden + unit[:, None]
        gradient = tl.load(back + at, mask=valid[None, :], other=0.0)
        x = tl.where(tl.abs(x) < float("inf"), x, 0.0)  # the gradient of such a sample is 0
        total = tl.dot(gradient, x, total, input_precision=precision)
    target = into + row * row_size + unit[:, None] * pixels + pixel[None, :]
    inside = (pixel < pixels)[None, :]
    tl.store(target, tl.load(target, mask=inside) - total, mask=inside)


def perceptron_step_(
    weights: Tensor,
    into: Tensor,
    data: tuple[Tensor, Tensor, Tensor],
    records: Tensor,
    counts: Tensor,
    scale: Tensor,
    clip_norm: float | None,
    precision: str,
) -> None:
    """Subtract the clipped gradients of two dense layers from ``into`` (G, d), which may be ``weights`` itself.

    Args:
        weights: (G, d) first matrix and bias, second matrix and bias.
        into: (G, d) array that is changed.
        data: The data set: inputs (samples, pixels), where bytes stand for numbers in [0, 1]; one-hot labels
            (samples, M); squared norms of the inputs (samples,).
        records: (G, B) records of each row, contiguous.
        counts: (G,) number of records; places from there on are padding.
        scale: (G, B) factor of each clipped gradient.
        clip_norm: C, or None.
        precision: `ieee` or `tf32`, the format of products.
    """
    images, targets, squares = data
    groups, places = records.shape
    classes = targets.shape[1]
    pixels = images.shape[1]
    hidden = (weights.shape[1] - classes) // (pixels + 1 + classes)
    width = max(16, triton.next_power_of_2(classes))
    back = torch.empty(groups, places, hidden, device=weights.device)
    byte = not images.is_floating_point()
    options = {"hidden": hidden, "byte": byte, "precision": precision, "samples": SAMPLES, "step": PIXELS}
    _down[(groups,)](
        weights, into, images, records, counts, targets, squares, scale, back, weights.shape[1], places, pixels,
        NO_CLIPPING if clip_norm is None else clip_norm, classes=classes, width=width, **options,
    )  # fmt: skip
    _first_matrix[(triton.cdiv(pixels, PIXELS), groups)](
        into, images, records, counts, back, weights.shape[1], places, pixels, num_warps=2, **options
    )
