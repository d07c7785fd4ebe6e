"""The scheduling plane: which client uses which channel in a round."""

from fedlane.matching import greedy_matching, max_min_matching, max_sum_matching
from fedlane.scheduling.policy import BatchPolicy, Choice, Policy, lift
from fedlane.scheduling.registry import make_policy, policies, register

__all__ = [
    "BatchPolicy",
    "Choice",
    "Policy",
    "greedy_matching",
    "lift",
    "make_policy",
    "max_min_matching",
    "max_sum_matching",
    "policies",
    "register",
]
