"""The linear program of the optimum: its matchings, their costs, and the form of its solution."""

import math
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from fedlane.records import FloatArray, IntArray
from fedlane.theory.quotas import feasible_scale
from fedlane.validate import InputError

EXACT_GAP = 1e-6
"""Largest relative difference between the solution and its certificate that counts as rounding."""
_BLOCK = 4096


@dataclass(frozen=True)
class Optimum:
    """The best mixture of matchings, and the certificate that no mixture is better.

    Attributes:
        mean_delay_s: Mean delay of a round with the mixture, in seconds.
        matchings: Each client's channel in the K matchings that are used, -1 for none (K, U).
        weights: Share of rounds of each of these matchings (K,); they sum to 1.
        lower_bound_s: Mean delay in seconds that no mixture undercuts, from the prices by duality.
        prices_s: Seconds by which the mean delay rises per unit of each client's quota (U,).
    """

    mean_delay_s: float
    matchings: IntArray
    weights: FloatArray
    lower_bound_s: float
    prices_s: FloatArray

    @property
    def gap(self) -> float:
        """How far the mixture may be from the best one, relative to the lower bound; 0 up to rounding if exact."""
        if self.lower_bound_s > 0:
            return max(self.mean_delay_s / self.lower_bound_s - 1.0, 0.0)
        return 0.0 if self.mean_delay_s <= 0 else math.inf


@dataclass(frozen=True)
class MatchingProgram:
    """The linear program of a network with U clients and N channels.

    Attributes:
        cdf: Mean of P(delay <= x) over each of G cells of the time up to the deadline (U, N, G).
        success: Probability of a punctual upload (U, N).
        quotas: Share of rounds in which each client must be punctual (U,).
        deadline_s: Deadline of a round, in seconds.
    """

    cdf: FloatArray
    success: FloatArray
    quotas: FloatArray
    deadline_s: float

    @property
    def matchings(self) -> int:
        """Number of full matchings."""
        small, large = sorted(self.success.shape)
        return math.perm(large, small)

    def delays_s(self, matchings: IntArray) -> FloatArray:
        """(K,): expected slowest delay of matchings (K, U), where a late upload counts as the deadline.

        P(slowest <= x) is the product of the pairs' distribution functions, since their delays are independent.
        """
        result = np.empty(len(matchings))
        for start in range(0, len(matchings), _BLOCK):
            block = matchings[start : start + _BLOCK]
            product = np.ones((len(block), self.cdf.shape[2]))
            for client in range(block.shape[1]):
                played = np.flatnonzero(block[:, client] >= 0)
                product[played] *= self.cdf[client, block[played, client]]
            result[start : start + _BLOCK] = self.deadline_s * (1.0 - product.mean(axis=1))
        return result

    def punctual(self, matchings: IntArray) -> FloatArray:
        """(U, K): probability that each client is punctual in matchings (K, U)."""
        clients = np.arange(matchings.shape[1])[:, None]
        return np.where(matchings.T >= 0, self.success[clients, np.maximum(matchings.T, 0)], 0.0)

    def require_feasible(self) -> None:
        """Raise `InputError` if no mixture of matchings serves the quotas."""
        scale = feasible_scale(self.success, self.quotas)
        if scale < 1.0 - 1e-9:
            raise InputError(
                f"no policy can serve these quotas: the best possible policy serves {abs(scale):.4g} of them"
            )


def full_matchings(clients: int, channels: int) -> IntArray:
    """(K, U): every full matching, as each client's channel, -1 for none."""
    small, large = sorted((clients, channels))
    count = math.perm(large, small)
    taken = np.fromiter((taker for row in permutations(range(large), small) for taker in row), np.int64, count * small)
    taken = taken.reshape(count, small)
    if clients <= channels:
        return taken
    matchings = np.full((count, clients), -1, np.int64)
    np.put_along_axis(matchings, taken, np.arange(channels)[None].repeat(count, axis=0), axis=1)
    return matchings


def mixture(
    matchings: IntArray, cost_s: FloatArray, weights: FloatArray, lower_bound_s: float, prices_s: FloatArray
) -> Optimum:
    """Return the optimum with the matchings (K, U) that have a weight, the largest weight first."""
    used = np.argsort(-weights, kind="stable")
    used = used[weights[used] > 1e-10]
    share = weights[used] / weights[used].sum()
    return Optimum(float(share @ cost_s[used]), matchings[used], share, lower_bound_s, prices_s)
