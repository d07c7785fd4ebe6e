"""Fused GPU kernels (Triton) for private training: noise, the two-layer perceptron and convolutions.

PyTorch's own operations write every intermediate result to memory. These kernels keep them in registers. Without Triton
or without a GPU, `fedlane.learning` uses PyTorch's operations, which compute the same up to rounding.
"""

import importlib.util

import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None


def usable(tensor: torch.Tensor) -> bool:
    """Return whether the fused kernels can work on this tensor."""
    return HAS_TRITON and tensor.device.type == "cuda"


def convolution_format() -> str:
    """Return the format of the operands in convolutions.

    It is bfloat16, `bf16`, unless PyTorch is set to exact products (``torch.set_float32_matmul_precision("highest")``):
    then it is float32, `ieee`. Products are accumulated in float32. Clipping stays sound: the norm is that of the
    gradient as it was computed and is added.
    """
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "bf16"


def dense_format() -> str:
    """Return the format of the operands in the perceptron's products: `tf32`, or `ieee` as above."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
