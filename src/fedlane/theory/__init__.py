"""The theory plane: what the paper promises, as functions."""

from fedlane.theory.divergence import theta
from fedlane.theory.quotas import feasible_scale, quotas

__all__ = ["feasible_scale", "quotas", "theta"]
