"""Compiled kernels for training on a CPU: drawing samples, gathering images, the middle part of the MLP, noise.

They are optional: without Numba, PyTorch does the same in many small operations that are mostly overhead.
"""

from fedlane.learning.cpu_kernels.mlp_step import mlp_tail
from fedlane.learning.cpu_kernels.normals import add_move_and_normals
from fedlane.learning.cpu_kernels.rows import gather_images, poisson_rows, sample_rows

__all__ = ["add_move_and_normals", "gather_images", "mlp_tail", "poisson_rows", "sample_rows"]
