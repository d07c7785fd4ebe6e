"""The theory plane: the paper's theorems as functions."""

from fedlane.theory.convergence import BoundInputs, convex_bound, drift, model_divergence, nonconvex_bound
from fedlane.theory.divergence import theta
from fedlane.theory.matching_program import Optimum
from fedlane.theory.optimum import optimum, quota_benchmark
from fedlane.theory.quotas import feasible_scale, quotas
from fedlane.theory.regret import Bound, gaps, pseudo_regret, queue_stability, regret_bound

__all__ = [
    "Bound",
    "BoundInputs",
    "Optimum",
    "convex_bound",
    "drift",
    "feasible_scale",
    "gaps",
    "model_divergence",
    "nonconvex_bound",
    "optimum",
    "pseudo_regret",
    "queue_stability",
    "quota_benchmark",
    "quotas",
    "regret_bound",
    "theta",
]
