"""Gradients of single records for the usual layers of a user's module, without torch.func.

A batch passes through the module once. Hooks note the inputs of every layer with parameters, and on the way back the
gradients at its outputs. Together they give each record's gradient, which is stored: its norm is taken of the array
that is added later. The exception is a linear layer with one vector per record, whose gradient is an outer product (see
`fedlane.learning.layers`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlane.learning.module_layers import layer_name

Parts = dict[str, Tensor]


@dataclass(frozen=True)
class OuterProduct:
    """The gradients of a linear layer's matrix for B records: rows (B, out) times inputs (B, in)."""

    rows: Tensor
    inputs: Tensor

    def stored(self) -> Tensor:
        """Return the gradients as an array (B, out, in)."""
        return torch.einsum("bo,bi->boi", self.rows, self.inputs)


@dataclass
class LayerCall:
    """A call of a layer.

    Attributes:
        name: Name of the layer.
        inputs: (B, ...) input of the layer.
        gradient: (B, ...) gradient at the layer's output; None if the output does not reach the scores.
    """

    name: str
    inputs: Tensor
    gradient: Tensor | None = None

    def keep(self, gradient: Tensor) -> None:
        """Note the gradient at the output."""
        self.gradient = gradient


@dataclass
class RecordGradientSet:
    """The gradients of B records by name of the parameter."""

    parts: dict[str, Tensor | OuterProduct] = field(default_factory=dict)

    def add(self, name: str, part: Tensor | OuterProduct) -> None:
        """Add a part (B, ...); a layer that is used twice has two."""
        earlier = self.parts.get(name)
        if earlier is not None:
            part = _stored(earlier) + _stored(part)
        self.parts[name] = part

    def squared_norms(self) -> Tensor:
        """Return the squared norm of each record's gradient, (B,)."""
        squares = []
        for part in self.parts.values():
            if isinstance(part, OuterProduct):
                squares.append(part.rows.square().sum(1) * part.inputs.square().sum(1))
            else:
                squares.append(_memory_order(part)[0].square().sum(1))
        return torch.stack(squares).sum(0)

    def drop(self, dropped: Tensor) -> None:
        """Remove records, dropped (B,), whose gradients are not finite: a factor of 0 would leave NaN."""

        def blank(array: Tensor) -> Tensor:
            return array.masked_fill(dropped.view(-1, *(1,) * (array.ndim - 1)), 0)

        for name, part in self.parts.items():
            if isinstance(part, OuterProduct):
                self.parts[name] = OuterProduct(blank(part.rows), blank(part.inputs))
            else:
                self.parts[name] = blank(part)

    def sums(self, factor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the sum of the gradients times factor (B,), by name of the parameter."""
        for name, part in self.parts.items():
            if isinstance(part, OuterProduct):
                yield name, (part.rows * factor[:, None]).t() @ part.inputs
            else:
                rows, order = _memory_order(part)
                sizes = [part.shape[axis] for axis in order]
                yield name, (factor @ rows).view(sizes).permute([order.index(axis) for axis in range(1, part.ndim)])


def _memory_order(part: Tensor) -> tuple[Tensor, list[int]]:
    """Return an array (B, ...) as rows (B, n) without a copy where possible, and the order of its axes in a row."""
    order = sorted(range(1, part.ndim), key=part.stride, reverse=True)
    return part.permute(0, *order).flatten(1), order


def _stored(part: Tensor | OuterProduct) -> Tensor:
    return part.stored() if isinstance(part, OuterProduct) else part


def _linear(layer: nn.Linear, x: Tensor, gradient: Tensor) -> dict[str, Tensor | OuterProduct]:
    if x.ndim == 2:
        return {"weight": OuterProduct(gradient, x), "bias": gradient}
    rows, inputs = gradient.flatten(1, -2), x.flatten(1, -2)
    return {"weight": torch.bmm(rows.transpose(1, 2), inputs), "bias": rows.sum(1)}


def _convolution(layer: nn.Conv1d | nn.Conv2d, x: Tensor, gradient: Tensor) -> Parts:
    """Multiply the gradient at each position by the patch that the kernel saw there."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    if any(layer._reversed_padding_repeated_twice):
        x = functional.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    kernel, stride, dilation = (_two(v) for v in (layer.kernel_size, layer.stride, layer.dilation))
    x = x[:, :, None] if x.ndim == 3 else x
    groups, records = layer.groups, len(x)
    rows = gradient.reshape(records * groups, layer.out_channels // groups, -1)
    bias = gradient.flatten(2).sum(2)
    if groups > 1:
        patches = functional.unfold(x, kernel, dilation=dilation, stride=stride)
        weight = torch.bmm(rows, patches.reshape(records * groups, -1, rows.shape[2]).transpose(1, 2))
        return {"weight": weight.view(records, *layer.weight.shape), "bias": bias}
    image = x.permute(0, 2, 3, 1).contiguous()  # planes last: a row of a patch is one piece of memory
    height, width = gradient.shape[-2] if gradient.ndim == 4 else 1, gradient.shape[-1]
    step, down, right, plane = image.stride()
    shape = (records, height, width, *kernel, image.shape[3])
    strides = (step, down * stride[0], right * stride[1], down * dilation[0], right * dilation[1], plane)
    patches = image.as_strided(shape, strides).reshape(records, height * width, -1)
    weight = torch.bmm(rows, patches).view(records, layer.out_channels, *kernel, image.shape[3])
    weight = weight.permute(0, 1, 4, 2, 3)
    return {"weight": weight if gradient.ndim == 4 else weight[:, :, :, 0], "bias": bias}


def _two(sizes: Sequence[int]) -> tuple[int, int]:
    """Return the sizes of a one- or two-dimensional kernel as those of a two-dimensional one."""
    return (1, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])


def _embedding(layer: nn.Embedding, tokens: Tensor, gradient: Tensor) -> Parts:
    records, rows = len(tokens), gradient.reshape(-1, layer.embedding_dim)
    if layer.padding_idx is not None:
        rows = rows.masked_fill((tokens == layer.padding_idx).reshape(-1, 1), 0)
    first = torch.arange(records, device=tokens.device)[:, None] * layer.num_embeddings
    table = rows.new_zeros(records * layer.num_embeddings, layer.embedding_dim)
    table.index_add_(0, (tokens.reshape(records, -1) + first).reshape(-1), rows)
    return {"weight": table.view(records, layer.num_embeddings, layer.embedding_dim)}


def _layer_norm(layer: nn.LayerNorm, x: Tensor, gradient: Tensor) -> Parts:
    normal = functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    shape = (len(x), -1, *layer.normalized_shape)
    return {"weight": (gradient * normal).reshape(shape).sum(1), "bias": gradient.reshape(shape).sum(1)}


def _group_norm(layer: nn.GroupNorm, x: Tensor, gradient: Tensor) -> Parts:
    normal = functional.group_norm(x, layer.num_groups, eps=layer.eps)
    shape = (*x.shape[:2], -1)
    return {"weight": (gradient * normal).reshape(shape).sum(2), "bias": gradient.reshape(shape).sum(2)}


RULES: dict[type[nn.Module], Callable[..., Mapping[str, Tensor | OuterProduct]]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}
"""How each type of layer computes the gradients of its parameters from inputs and output gradients."""


def slow_layer(module: nn.Module) -> str | None:
    """Return the first layer that has no fast path, with the reason, or None if all layers have one."""
    owners: dict[int, str] = {}
    for name, layer in module.named_modules(remove_duplicate=False):
        parameters = [parameter for parameter in layer._parameters.values() if parameter is not None]
        if not parameters:
            continue
        label = layer_name(module, name)
        if type(layer) not in RULES:
            return f"{label} has no fast path"
        if layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):
            return f"{label} has hooks or a forward function of its own"
        if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq):
            return f"{label} has max_norm or scale_grad_by_freq"
        if any(owners.setdefault(id(parameter), name) != name for parameter in parameters):
            return f"{label} shares its parameters with another layer"
    return None


@contextmanager
def _watched(module: nn.Module, calls: list[LayerCall], anchor: Tensor) -> Iterator[None]:
    """Note each call of a layer with parameters; outputs depend on the anchor, which is 0, so that they have gradients.

    A gradient is noted before the output may be changed in place, as by a ReLU.
    """
    handles = []
    for name, layer in module.named_modules():
        if type(layer) not in RULES or layer._parameters.get("weight") is None:
            continue

        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, name: str = name) -> Tensor:
            if len(inputs) != 1:
                raise ValueError(f"{layer_name(module, name)} is not called with one positional argument")
            calls.append(LayerCall(name, inputs[0].detach()))
            output = output if output.requires_grad else output + anchor
            output.register_hook(calls[-1].keep)  # type: ignore[no-untyped-call]
            return output

        handles.append(layer.register_forward_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def record_gradients(
    module: nn.Module, losses: Callable[[Tensor], Tensor], scores: Callable[[], Tensor], records: int
) -> RecordGradientSet:
    """Return the gradient of every record's loss.

    Args:
        module: The module, all of whose layers have a fast path.
        losses: Function of the scores that returns the losses (B,).
        scores: Function that passes B records through the module and returns their scores (B, ...).
        records: B.

    Raises:
        ValueError: A layer's input does not have the records as its first axis.
    """
    calls: list[LayerCall] = []
    with torch.inference_mode(False), torch.enable_grad():
        anchor = torch.zeros((), requires_grad=True)
        with _watched(module, calls, anchor):
            loss = losses(scores()).sum()
        torch.autograd.grad(loss, anchor, allow_unused=True)
    result = RecordGradientSet()
    for call in calls:
        layer = module.get_submodule(call.name)
        if len(call.inputs) != records or call.inputs.ndim < 1 + isinstance(layer, nn.Linear):
            raise ValueError(f"{layer_name(module, call.name)} does not have the records as its first axis")
        if call.gradient is None:
            continue
        for key, part in RULES[type(layer)](layer, call.inputs, call.gradient).items():
            if layer._parameters.get(key) is not None:
                result.add(f"{call.name}.{key}" if call.name else key, part)
    return result
