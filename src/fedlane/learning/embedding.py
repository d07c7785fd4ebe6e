"""The embedding layer over many weight sets: vectors of tokens, and gradients of single samples.

A token may occur several times in a sample. Its gradient is then a sum, whose terms may cancel, so it is computed: the
norm is taken of the same numbers that are subtracted later (see `layers`). It is kept at the token's first place in the
sample, so that its memory does not depend on the size of the vocabulary.
"""

import torch
from torch import Tensor

from fedlane.learning.architectures import Embedding


def look_up(layer: Embedding, block: Tensor, tokens: Tensor) -> Tensor:
    """Return the vectors of tokens (G, B, L) from the flat weights (G, tokens * width), (G, B, L * width)."""
    table = block.reshape(-1, layer.width)
    return torch.nn.functional.embedding(_rows(layer, tokens), table).flatten(2)


def token_gradients(layer: Embedding, tokens: Tensor, gradient: Tensor) -> Tensor:
    """Return each sample's gradient of each of its tokens.

    Args:
        layer: The layer.
        tokens: (G, B, L).
        gradient: (G, B, L * width) gradient at the layer's outputs.

    Returns:
        (G, B, L * width): the sum over a token's places at its first place, 0 at the others.
    """
    groups, samples, length = tokens.shape
    first = (tokens[..., None] == tokens[..., None, :]).to(torch.uint8).argmax(3)
    start = length * torch.arange(groups * samples, device=tokens.device).view(groups, samples, 1)
    summed = gradient.new_zeros(groups * samples * length, layer.width)
    summed.index_add_(0, (start + first).reshape(-1), gradient.reshape(-1, layer.width))
    return summed.view(groups, samples, -1)


def subtract_(layer: Embedding, block: Tensor, tokens: Tensor, gradients: Tensor) -> None:
    """Subtract gradients (G, B, L * width) of tokens (G, B, L), summed over the samples, from the flat weights."""
    step = block.new_zeros(len(block) * layer.tokens, layer.width)
    step.index_add_(0, _rows(layer, tokens).reshape(-1), gradients.reshape(-1, layer.width))
    block -= step.view(len(block), -1)


def _rows(layer: Embedding, tokens: Tensor) -> Tensor:
    """Return the rows of tokens (G, B, L) in the tables of all weight sets, one below the other."""
    return tokens + layer.tokens * torch.arange(len(tokens), device=tokens.device).view(-1, 1, 1)
