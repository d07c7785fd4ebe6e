"""The optimum as a yardstick for runs: the smallest long-run mean delay on each seed's network, computed once."""

import hashlib
import math

import numpy as np

from fedlane.cache import remembered
from fedlane.network import RadioNetwork
from fedlane.records import FloatArray
from fedlane.simulation.setup import Setup
from fedlane.theory import feasible_scale, optimum

OPTIMUM_SLACK = 0.125
"""Share by which the quotas are lowered, as `lane` does: the full quotas leave no room for late uploads."""
OPTIMUM_CELLS = 128
"""Cells of the delay distributions."""
OPTIMUM_MATCHINGS = 20_000
"""Networks with more matchings have no yardstick, because the program would take seconds for each seed."""


def optimal_delays(setup: Setup) -> FloatArray | None:
    """Solve the linear program of `fedlane.theory.optimum` for every seed, or read its solution from the cache.

    Args:
        setup: The prepared run.

    Returns:
        (R,): smallest long-run mean delay of a round in seconds while every client meets its quota, lowered by
        `OPTIMUM_SLACK`; NaN on networks where no policy can serve that much. None for networks that the program does
        not describe (only the stationary radio model has independent rounds and pairs; budgets must last for all
        rounds) or that have more than `OPTIMUM_MATCHINGS` matchings.
    """
    problem, network = setup.problem, setup.network
    small, large = sorted((problem.clients, problem.channels))
    described = type(network) is RadioNetwork and setup.stationary
    if not described or math.perm(large, small) > OPTIMUM_MATCHINGS:
        return None
    if np.any(setup.mechanism.max_uploads < problem.rounds):
        return None
    truth = network.distributions(OPTIMUM_CELLS)
    return np.array(
        [
            _solved(cdf, success, (1.0 - OPTIMUM_SLACK) * quotas, problem.deadline_s)
            for cdf, success, quotas in zip(truth.cdf, truth.success, problem.quotas, strict=True)
        ]
    )


def _solved(cdf: FloatArray, success: FloatArray, quotas: FloatArray, deadline_s: float) -> float:
    """The smallest mean delay of one network, NaN if the quotas cannot be served; a cached list is empty then."""

    def solve() -> list[float]:
        if feasible_scale(success, quotas) < 1.0:
            return []
        return [optimum(cdf, success, quotas, deadline_s).mean_delay_s]

    digest = hashlib.sha256()
    for array in (cdf, success, quotas):
        digest.update(np.ascontiguousarray(array).tobytes())
    key = {"inputs": digest.hexdigest(), "deadline_s": deadline_s, "version": 1}
    values = remembered("optimum", key, solve, lambda values: all(0 <= value <= deadline_s for value in values[:2]))
    return values[0] if values else math.nan
