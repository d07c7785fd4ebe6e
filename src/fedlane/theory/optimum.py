"""The smallest mean delay that any policy can reach while every client meets its quota: a linear program.

The rounds of a stationary network are independent, so a policy that does not see a round's channels beforehand is
characterised, in the long run, by the share of rounds in which it plays each full matching (one that saturates the
smaller side, reading 7). The mean delay and each client's punctual share are linear in these shares:

    min sum_m w_m c_m   subject to   sum_m w_m p_im >= beta_i for all i,   sum_m w_m = 1,   w >= 0,

where c_m is the expected slowest delay of matching m and p_im the probability that client i is punctual in it (0 if m
leaves it out). No such policy has a smaller long-run mean. A finite run may end a little below it, because it may end
with quotas that are not served yet. Numbered readings are explained in docs/reading-the-paper.md.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linprog

from fedlane.records import FloatArray
from fedlane.theory.column_generation import generate_columns
from fedlane.theory.matching_program import EXACT_GAP, MatchingProgram, Optimum, full_matchings, mixture
from fedlane.validate import InputError

EXACT_MATCHINGS = 200_000
"""Largest number of full matchings for which the program is solved with all of them."""


def optimum(
    cdf: ArrayLike, success: ArrayLike, quotas: ArrayLike, deadline_s: float, *, gap: float | None = None
) -> Optimum:
    """Return the mixture of full matchings with the smallest mean delay that serves the quotas.

    Up to `EXACT_MATCHINGS` matchings are all part of the program, and the result is exact for the given distributions.
    Beyond that, only a result within a stated gap can be had, by column generation. The cells of ``cdf`` and its
    estimation add an error of their own: on the paper's networks, 32 cells give 0.05% to
    0.2% more than 128.

    Args:
        cdf: Mean of P(delay <= x) over each of G equal cells of the time up to the deadline (U, N, G), as in
            `DelayDistributions.cdf`.
        success: Probability that an upload is punctual (U, N).
        quotas: Share of rounds in which each client must be punctual (U,).
        deadline_s: Deadline of a round, in seconds.
        gap: Largest acceptable relative distance from the optimum, for networks that are too large for the exact
            program; the result states the gap that was proved.

    Returns:
        The mixture, its mean delay and its certificate.

    Raises:
        InputError: An argument is wrong, no policy can serve the quotas, the network is too large for an exact
            solution and no gap is given, or the gap cannot be proved.

    Examples:
        A fast client alone would take 1 s a round; the slow one needs a quarter of the rounds at 3 s.

        >>> cdf = [[[0.0, 1.0, 1.0, 1.0]], [[0.0, 0.0, 0.0, 1.0]]]
        >>> best = optimum(cdf, success=[[1.0], [1.0]], quotas=[0.5, 0.25], deadline_s=4.0)
        >>> round(best.mean_delay_s, 6)
        1.5
    """
    program = _checked(cdf, success, quotas, deadline_s)
    program.require_feasible()
    if gap is not None and not 0 <= gap < math.inf:
        raise InputError(f"gap must be at least 0 and finite, got {gap}")
    if program.matchings <= EXACT_MATCHINGS:
        return _exact(program)
    clients, channels = program.success.shape
    if gap is None:
        raise InputError(
            f"{clients} clients on {channels} channels have {program.matchings:,} matchings, more than the "
            f"{EXACT_MATCHINGS:,} that are solved exactly: ask for a gap, for example gap=0.05"
        )
    best = generate_columns(program, gap)
    if best.gap > gap + EXACT_GAP:
        raise InputError(f"the gap that could be proved is {best.gap:.3g}, more than the {gap:g} asked for")
    return best


def _checked(cdf: ArrayLike, success: ArrayLike, quotas: ArrayLike, deadline_s: float) -> MatchingProgram:
    values, p, beta = (np.asarray(array, np.float64) for array in (cdf, success, quotas))
    fits = values.ndim == 3 and p.shape == values.shape[:2] and beta.shape == p.shape[:1]
    if not fits or values.size == 0:
        raise InputError(
            f"cdf must be (U, N, G), success (U, N) and quotas (U,), got {values.shape}, {p.shape} and {beta.shape}"
        )
    for name, array in (("cdf", values), ("success", p), ("quotas", beta)):
        if not np.all((array >= 0) & (array <= 1)):
            raise InputError(f"{name} must be between 0 and 1")
    if not 0 < deadline_s < math.inf:
        raise InputError(f"deadline_s must be greater than 0 and finite, got {deadline_s}")
    return MatchingProgram(values, p, beta, float(deadline_s))


def quota_benchmark(mean_rewards: ArrayLike, success: ArrayLike, quotas: ArrayLike) -> float:
    """Return the largest long-run mean of a round's smallest mean reward that serves the quotas.

    Theorem 4 measures regret against mu*, the best single matching, which ignores the quotas: a policy that serves them
    has linear regret against it. This is the benchmark of a policy that serves them (reading 15).

    Args:
        mean_rewards: Mean reward of every pair (U, N), between 0 and 1.
        success: Probability that an upload is punctual (U, N).
        quotas: Share of rounds in which each client must be punctual (U,).

    Raises:
        InputError: An argument is wrong, no policy can serve the quotas, or there are more than `EXACT_MATCHINGS`
            matchings.

    Examples:
        >>> round(quota_benchmark([[0.9], [0.4]], success=[[1.0], [1.0]], quotas=[0.0, 0.2]), 6)
        0.8
    """
    program = _checked(np.asarray(mean_rewards, np.float64)[..., None], success, quotas, 1.0)
    program.require_feasible()
    if program.matchings > EXACT_MATCHINGS:
        raise InputError(f"there are {program.matchings:,} matchings, more than {EXACT_MATCHINGS:,}")
    matchings = full_matchings(*program.success.shape)
    rewards = np.where(matchings >= 0, program.cdf[np.arange(matchings.shape[1]), matchings, 0], np.inf).min(axis=1)
    weights, _ = _solved(-rewards, program.punctual(matchings), program.quotas)
    return float(weights @ rewards / weights.sum())


def _exact(program: MatchingProgram) -> Optimum:
    matchings = full_matchings(*program.success.shape)
    cost_s, punctual = program.delays_s(matchings), program.punctual(matchings)
    weights, prices = _solved(cost_s / program.deadline_s, punctual, program.quotas)
    prices_s = prices * program.deadline_s
    lower_s = float(program.quotas @ prices_s + (cost_s - prices_s @ punctual).min())
    best = mixture(matchings, cost_s, weights, lower_s, prices_s)
    if best.mean_delay_s - lower_s > EXACT_GAP * program.deadline_s:
        raise RuntimeError(f"the optimum {best.mean_delay_s:g} s has a certificate of {lower_s:g} s only")
    return best


def _solved(cost: FloatArray, punctual: FloatArray, quotas: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weights (K,) of the cheapest mixture of matchings that serves the quotas, and the prices of the quotas (U,)."""
    solution = linprog(cost, A_ub=-punctual, b_ub=-quotas, A_eq=np.ones((1, len(cost))), b_eq=[1.0], method="highs")
    if not solution.success:
        raise RuntimeError(f"the linear program of the optimum failed: {solution.message}")
    return np.asarray(solution.x), np.maximum(-solution.ineqlin.marginals, 0.0)
