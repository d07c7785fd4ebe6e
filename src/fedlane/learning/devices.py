"""Devices by name, and data sets in their memory."""

import numpy as np
import torch
from torch import Tensor

from fedlane.learning.datasets import Samples
from fedlane.learning.input_range import check_inputs
from fedlane.learning.local import as_inputs
from fedlane.validate import InputError


def torch_device(name: str) -> torch.device:
    """Return the device by name; on a GPU, matrix products may use bfloat16 and TF32 (norms are summed in float32)."""
    if name == "cuda":
        if not torch.cuda.is_available():
            raise InputError("device cuda is not available here: PyTorch finds no GPU")
        torch.set_float32_matmul_precision("high")
    elif name != "cpu":
        raise InputError(f"device must be cpu or cuda, got '{name}'")
    return torch.device(name)


def resident(samples: Samples, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return images, bytes if the data set has bytes, and what is learned from them, labels or targets."""
    images = torch.from_numpy(np.array(samples.images)).to(device)
    check_inputs(images)
    return images, torch.from_numpy(samples.labels if samples.targets is None else samples.targets).to(device)


def squared_norms(images: Tensor) -> Tensor:
    """Return the squared norm of each image as a model input, a few thousand at a time; 0 for tokens."""
    if as_inputs(images[:1]).dtype == torch.int64:
        return torch.zeros(len(images), device=images.device)
    return torch.cat([as_inputs(piece).flatten(1).square().sum(1) for piece in torch.split(images, 4096)])
