"""A 3 x 3 convolution with bias, 2 x 2 max-pooling and ReLU over many weight sets, with per-sample clipping.

Patches are never written to memory: every product reads its operands from the images. A sample's weight gradient is
made tile by tile. `squared_norms` squares and adds up each tile and drops it; `weighted_sum` makes the same tile again,
by the same instructions, and adds it with the sample's factor. So the numbers that are added are those whose norm was
measured, and no gradient of a single sample is stored. Products have operands in the images' format and are accumulated
in float32.

Rows of a tile are pixels of one image. Pixels of a pooling window follow each other, so that pooling happens within a
tile. ``choice`` is the pixel of its window that a pooled value came from, or `NONE` where ReLU made it 0; the gradient
at the product's output is then known from the gradient at the pooled output.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedlane.learning.architectures import Convolution
from fedlane.learning.layers import weights_of

NONE = 4
"""Value of ``choice`` where no pixel of the window has a gradient."""


@triton.jit
def _window_pixel(index, columns: tl.constexpr):
    """Return row, column of the pixel ``index``, with the four pixels of each window in a row."""
    window, corner = index // 4, index % 4
    return (window // columns) * 2 + corner // 2, (window % columns) * 2 + corner % 2


@triton.jit
def _patch(x, y, column, inside, tap, channel, height: tl.constexpr, width: tl.constexpr, inputs: tl.constexpr):
    """Return the images' values (pixels, channels) at a tap of the 3 x 3 window, 0 outside the image."""
    source_y, source_x = y + tap // 3 - 1, column + tap % 3 - 1
    seen = inside & (source_y >= 0) & (source_y < height) & (source_x >= 0) & (source_x < width)
    at = (source_y * width + source_x)[:, None] * inputs + channel[None, :]
    return tl.load(x + at, mask=seen[:, None] & (channel < inputs)[None, :], other=0.0)


@triton.jit
def _thin_patch(x, y, column, inside, k, height: tl.constexpr, width: tl.constexpr, inputs: tl.constexpr):
    """Return patches (pixels, 9 inputs) of images with few channels; k numbers tap and channel together."""
    tap, channel = k // inputs, k % inputs
    source_y, source_x = y[:, None] + (tap // 3 - 1)[None, :], column[:, None] + (tap % 3 - 1)[None, :]
    seen = (source_y >= 0) & (source_y < height) & (source_x >= 0) & (source_x < width)
    seen = seen & inside[:, None] & (k < 9 * inputs)[None, :]
    return tl.load(x + (source_y * width + source_x) * inputs + channel[None, :], mask=seen, other=0.0)


@triton.jit
def _forward(
    x, matrix, bias, counts, outputs, choice, row_size, places, shared,
    height: tl.constexpr, width: tl.constexpr, inputs: tl.constexpr, planes: tl.constexpr, precision: tl.constexpr,
    pixels: tl.constexpr, wide: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    rows: tl.constexpr = height // 2
    columns: tl.constexpr = width // 2
    tiles: tl.constexpr = (4 * rows * columns + pixels - 1) // pixels
    image = tl.program_id(0) // tiles
    group, place = image // places, image % places
    if place >= tl.load(counts + group):
        return
    index = (tl.program_id(0) % tiles) * pixels + tl.arange(0, pixels)
    inside = index < 4 * rows * columns
    y, column = _window_pixel(index, columns)
    plane = tl.program_id(1) * wide + tl.arange(0, wide)
    is_plane = plane < planes
    source = tl.where(shared != 0, place, image).to(tl.int64)
    x += source * (height * width * inputs)
    matrix += group.to(tl.int64) * (9 * inputs * planes)
    total = tl.zeros([pixels, wide], tl.float32)
    if inputs % step == 0:
        for part in range(9 * inputs // step):
            tap = part // (inputs // step)
            channel = (part % (inputs // step)) * step + tl.arange(0, step)
            a = _patch(x, y, column, inside, tap, channel, height, width, inputs)
            b = tl.load(
                matrix + (tap * inputs + channel)[:, None] * planes + plane[None, :], mask=is_plane[None, :], other=0.0
            )
            total = tl.dot(a, b, total, input_precision=precision)
    else:
        for part in range((9 * inputs + step - 1) // step):
            k = part * step + tl.arange(0, step)
            a = _thin_patch(x, y, column, inside, k, height, width, inputs)
            filled = is_plane[None, :] & (k < 9 * inputs)[:, None]
            b = tl.load(matrix + k[:, None] * planes + plane[None, :], mask=filled, other=0.0)
            total = tl.dot(a, b, total, input_precision=precision)
    total += tl.load(bias + group.to(tl.int64) * row_size + plane, mask=is_plane, other=0.0)[None, :]
    windows = tl.reshape(total, [pixels // 4, 4, wide])
    largest, corner = tl.max(windows, 1, return_indices=True)
    active = largest > 0
    window = (tl.program_id(0) % tiles) * (pixels // 4) + tl.arange(0, pixels // 4)
    at = (image.to(tl.int64) * (rows * columns) + window[:, None]) * planes + plane[None, :]
    kept = (window < rows * columns)[:, None] & is_plane[None, :]
    tl.store(outputs + at, tl.where(active, largest, 0.0).to(outputs.dtype.element_ty), mask=kept)
    tl.store(choice + at, tl.where(active, corner, 4).to(tl.uint8), mask=kept)


@triton.jit
def _unpool(
    pooled, choice, result, size,
    height: tl.constexpr, width: tl.constexpr, planes: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    rows: tl.constexpr = height // 2
    columns: tl.constexpr = width // 2
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    plane, pixel = index % planes, index // planes
    column, row = pixel % width, pixel // width
    image, y = row // height, row % height
    inside = (index < size) & (y < 2 * rows) & (column < 2 * columns)
    at = ((image * rows + y // 2) * columns + column // 2) * planes + plane
    chosen = tl.load(choice + at, mask=inside, other=4).to(tl.int64) == (y % 2) * 2 + column % 2
    value = tl.load(pooled + at, mask=inside & chosen, other=0.0)
    tl.store(result + index, value, mask=index < size)


@triton.jit
def _bias_gradients(pooled, choice, sums, windows, planes, wide: tl.constexpr, step: tl.constexpr):
    image = tl.program_id(0).to(tl.int64)
    plane = tl.program_id(1) * wide + tl.arange(0, wide)
    total = tl.zeros([step, wide], tl.float32)
    for begin in range(0, windows, step):
        window = begin + tl.arange(0, step)
        at = (image * windows + window[:, None]) * planes + plane[None, :]
        inside = (window < windows)[:, None] & (plane < planes)[None, :]
        chosen = tl.load(choice + at, mask=inside, other=4) < 4
        total += tl.load(pooled + at, mask=inside & chosen, other=0.0).to(tl.float32)
    tl.store(sums + image * planes + plane, tl.sum(total, 0), mask=plane < planes)


@triton.jit
def _input_gradient(
    gradient, matrix, counts, result, places,
    height: tl.constexpr, width: tl.constexpr, inputs: tl.constexpr, planes: tl.constexpr, precision: tl.constexpr,
    pixels: tl.constexpr, wide: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    tiles: tl.constexpr = (height * width + pixels - 1) // pixels
    image = tl.program_id(0) // tiles
    group, place = image // places, image % places
    if place >= tl.load(counts + group):
        return
    index = (tl.program_id(0) % tiles) * pixels + tl.arange(0, pixels)
    inside = index < height * width
    y, column = index // width, index % width
    channel = tl.program_id(1) * wide + tl.arange(0, wide)
    gradient += image.to(tl.int64) * (height * width * planes)
    matrix += group.to(tl.int64) * (9 * inputs * planes)
    total = tl.zeros([pixels, wide], tl.float32)
    for part in range(9 * (planes // step)):
        tap = part // (planes // step)
        plane = (part % (planes // step)) * step + tl.arange(0, step)
        a = _patch(gradient, y, column, inside, 8 - tap, plane, height, width, planes)
        at = plane[:, None] * (9 * inputs) + tap * inputs + channel[None, :]
        b = tl.load(matrix + at, mask=(channel < inputs)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=precision)
    at = (image.to(tl.int64) * (height * width) + index[:, None]) * inputs + channel[None, :]
    kept = inside[:, None] & (channel < inputs)[None, :]
    tl.store(result + at, total.to(result.dtype.element_ty), mask=kept)


@triton.jit
def _gradient_tile(
    x, gradient, plane, part,
    height: tl.constexpr, width: tl.constexpr, inputs: tl.constexpr, planes: tl.constexpr, precision: tl.constexpr,
    pixels: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """Return a tile (planes, taps and channels) of one sample's weight gradient: a sum over the image's pixels."""
    total = tl.zeros([high, wide], tl.float32)
    for begin in range(0, height * width, pixels):
        index = begin + tl.arange(0, pixels)
        inside = index < height * width
        y, column = index // width, index % width
        at = index[:, None] * planes + plane[None, :]
        g = tl.load(gradient + at, mask=inside[:, None] & (plane < planes)[None, :], other=0.0)
        if inputs % wide == 0:
            channel = (part % (inputs // wide)) * wide + tl.arange(0, wide)
            a = _patch(x, y, column, inside, part // (inputs // wide), channel, height, width, inputs)
        else:
            a = _thin_patch(x, y, column, inside, part * wide + tl.arange(0, wide), height, width, inputs)
        total = tl.dot(tl.trans(g), a, total, input_precision=precision)
    return total


@triton.jit
def _squared_norms(
    x, gradient, counts, squares, places, parts,
    height: tl.constexpr, width: tl.constexpr, inputs: tl.constexpr, planes: tl.constexpr, precision: tl.constexpr,
    pixels: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    if image % places >= tl.load(counts + image // places):
        return
    plane = tl.program_id(1) * high + tl.arange(0, high)
    gradient += image * (height * width * planes)
    total = tl.zeros([high, wide], tl.float32)
    for part in range(parts):
        tile = _gradient_tile(
            x + image * (height * width * inputs), gradient, plane, part,
            height, width, inputs, planes, precision, pixels, high, wide,
        )  # fmt: skip
        total += tile * tile
    tl.store(squares + image * tl.num_programs(1) + tl.program_id(1), tl.sum(tl.sum(total, 1), 0))


@triton.jit
def _weighted_sum(
    x, gradient, counts, factor, sums, places, share,
    height: tl.constexpr, width: tl.constexpr, inputs: tl.constexpr, planes: tl.constexpr, precision: tl.constexpr,
    pixels: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1) % ((9 * inputs + wide - 1) // wide)
    plane = (tl.program_id(1) // ((9 * inputs + wide - 1) // wide)) * high + tl.arange(0, high)
    begin = tl.program_id(2) * share
    end = tl.minimum(begin + share, tl.load(counts + group))
    total = tl.zeros([high, wide], tl.float32)
    for place in range(begin, end):
        amount = tl.load(factor + group * places + place)
        image = group * places + place
        tile = _gradient_tile(
            x + image * (height * width * inputs), gradient + image * (height * width * planes), plane, part,
            height, width, inputs, planes, precision, pixels, high, wide,
        )  # fmt: skip
        total += tl.where(amount > 0, amount * tile, 0.0)  # a sample that is dropped has factor 0 and may hold NaN
    k = part * wide + tl.arange(0, wide)
    groups = tl.num_programs(0)
    at = ((tl.program_id(2) * groups + group) * planes + plane[:, None]) * (9 * inputs) + k[None, :]
    tl.store(sums + at, total, mask=(plane < planes)[:, None] & (k < 9 * inputs)[None, :])


def _shape(layer: Convolution) -> dict[str, int]:
    return {"height": layer.height, "width": layer.width, "inputs": layer.inputs, "planes": layer.outputs}


def _step(channels: int) -> int:
    """Return the number of channels that a product takes at a time."""
    return 64 if channels % 64 == 0 else 32


def _dot_precision(x: Tensor, precision: str) -> str:
    return "ieee" if x.dtype == torch.bfloat16 else precision


def _covering(count: int, most: int) -> int:
    """Return the power of two, from 16 to ``most``, that covers ``count`` or comes closest."""
    return min(most, max(16, triton.next_power_of_2(count)))


def forward(layer: Convolution, block: Tensor, x: Tensor, counts: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """Return pooled outputs (G, B, height / 2, width / 2, planes) and ``choice`` of that shape.

    x is (G, B, height, width, inputs), or (1, B, ...) if all weight sets see the same images. block (G, size) holds the
    layer's weights and biases. counts (G,) is the number of images in each row; outputs beyond it are 0.
    """
    matrix, bias = weights_of(layer, block)
    operand = matrix.transpose(1, 2).to(x.dtype).contiguous()
    groups, places = len(block), x.shape[1]
    shape = (groups, places, layer.height // 2, layer.width // 2, layer.outputs)
    outputs = torch.zeros(shape, dtype=x.dtype, device=x.device)
    choice = torch.empty(shape, dtype=torch.uint8, device=x.device)
    windows = 4 * shape[2] * shape[3]
    pixels, wide = _covering(windows, 128), _covering(layer.outputs, 128)
    grid = (groups * places * triton.cdiv(windows, pixels), triton.cdiv(layer.outputs, wide))
    _forward[grid](
        x, operand, bias, counts, outputs, choice, bias.stride(0), places,
        int(len(x) == 1 and groups > 1), **_shape(layer), precision=_dot_precision(x, precision),
        pixels=pixels, wide=wide, step=_step(layer.inputs),
    )  # fmt: skip
    return outputs, choice


def unpooled(layer: Convolution, gradient: Tensor, choice: Tensor) -> Tensor:
    """Return the gradient (G, B, height, width, planes) at the product's output from that at the pooled output."""
    groups, places = gradient.shape[:2]
    shape = (groups, places, layer.height, layer.width, layer.outputs)
    result = torch.empty(shape, dtype=gradient.dtype, device=gradient.device)
    _unpool[(triton.cdiv(result.numel(), 1024),)](
        gradient, choice, result, result.numel(), layer.height, layer.width, layer.outputs, block=1024
    )
    return result


def input_gradient(layer: Convolution, block: Tensor, gradient: Tensor, counts: Tensor, precision: str) -> Tensor:
    """Return the gradient (G, B, height, width, inputs) at the inputs from that at the product's output."""
    operand = weights_of(layer, block)[0].to(gradient.dtype).contiguous()
    groups, places = gradient.shape[:2]
    shape = (groups, places, layer.height, layer.width, layer.inputs)
    result = torch.zeros(shape, dtype=gradient.dtype, device=gradient.device)
    points = layer.height * layer.width
    pixels, wide = _covering(points, 128), _covering(layer.inputs, 128)
    _input_gradient[(groups * places * triton.cdiv(points, pixels), triton.cdiv(layer.inputs, wide))](
        gradient, operand, counts, result, places, **_shape(layer),
        precision=_dot_precision(gradient, precision), pixels=pixels, wide=wide, step=_step(layer.outputs),
    )  # fmt: skip
    return result


def _tile(layer: Convolution) -> dict[str, int]:
    """Return the size of a gradient tile and the pixels summed at a time: the same for norms and for sums."""
    wide = 32 if layer.inputs % 64 else 64 if layer.inputs % 128 else 128
    return {"high": _covering(layer.outputs, 128), "wide": wide, "pixels": _covering(layer.height * layer.width, 64)}


def squared_norms(layer: Convolution, x: Tensor, gradient: Tensor, counts: Tensor, precision: str) -> Tensor:
    """Return the squared norm of each sample's weight gradient, without the bias, (G, B)."""
    groups, places = gradient.shape[:2]
    tile = _tile(layer)
    blocks, parts = triton.cdiv(layer.outputs, tile["high"]), triton.cdiv(9 * layer.inputs, tile["wide"])
    squares = torch.zeros(groups * places, blocks, device=x.device)
    _squared_norms[(groups * places, blocks)](
        x, gradient, counts, squares, places, parts, **_shape(layer), **tile,
        precision=_dot_precision(x, precision),
    )  # fmt: skip
    return squares.sum(1).view(groups, places)


def weighted_sum(
    layer: Convolution, x: Tensor, gradient: Tensor, counts: Tensor, factor: Tensor, precision: str
) -> Tensor:
    """Return the sum over samples of factor (G, B) times their weight gradients, (G, planes, 9 inputs)."""
    groups, places = gradient.shape[:2]
    tile = _tile(layer)
    blocks, parts = triton.cdiv(layer.outputs, tile["high"]), triton.cdiv(9 * layer.inputs, tile["wide"])
    pieces = max(1, min(8, 512 // max(1, groups * blocks * parts)))
    sums = torch.empty(pieces, groups, layer.outputs, 9 * layer.inputs, device=x.device)
    _weighted_sum[(groups, blocks * parts, pieces)](
        x, gradient, counts, factor, sums, places, triton.cdiv(places, pieces), **_shape(layer), **tile,
        precision=_dot_precision(x, precision),
    )  # fmt: skip
    return sums.sum(0)


def bias_gradients(gradient: Tensor, choice: Tensor) -> Tensor:
    """Return each sample's bias gradient (G, B, planes) from the gradient at the pooled output."""
    groups, places, rows, columns, planes = gradient.shape
    sums = torch.empty(groups, places, planes, device=gradient.device)
    wide = _covering(planes, 256)
    _bias_gradients[(groups * places, triton.cdiv(planes, wide))](
        gradient, choice, sums, rows * columns, planes, wide=wide, step=max(1, 1024 // wide)
    )
    return sums
