"""The slow, obviously correct reference: one client, one sample at a time, PyTorch's layers and autograd."""

import torch
from torch.nn.functional import conv2d, cross_entropy, max_pool2d

from fedlane.learning.architectures import Dense


def scores(layers, flat, image):
    """Class scores of one image (height, width, planes) with flat weights."""
    h, at = image, 0
    for layer in layers:
        weights = flat[at : at + layer.size]
        at += layer.size
        bias = weights[-layer.outputs :]
        if isinstance(layer, Dense):
            h = weights[: -layer.outputs].view(layer.outputs, layer.inputs) @ h.reshape(-1) + bias
            h = h.relu() if layer.relu else h
        else:
            kernel = weights[: -layer.outputs].view(layer.outputs, 3, 3, layer.inputs).permute(0, 3, 1, 2)
            h = conv2d(h.permute(2, 0, 1)[None], kernel, bias, padding=1)
            h = max_pool2d(h.relu(), 2)[0].permute(1, 2, 0)
    return h


def gradient(layers, flat, image, label):
    """The cross-entropy gradient of one sample."""
    weights = flat.clone().requires_grad_()
    loss = cross_entropy(scores(layers, weights, image)[None], torch.tensor([label]))
    return torch.autograd.grad(loss, weights)[0]


def clipped(vector, clip_norm):
    """The vector, scaled down to the clip norm if it is longer."""
    return vector if clip_norm is None else vector * min(1.0, clip_norm / max(float(vector.norm()), 1e-30))


def train(layers, flat, images, labels, batches, learning_rate, clip_norm, divisor):
    """The weights after tau steps w -= eta / b * sum of clipped gradients, for tau lists of sample indices."""
    for batch in batches:
        step = sum(clipped(gradient(layers, flat, images[s], int(labels[s])), clip_norm) for s in batch)
        flat = flat - learning_rate / int(divisor) * step
    return flat
