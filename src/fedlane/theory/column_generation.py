"""The optimum of networks with too many matchings to list: column generation with a proved bound.

The program starts with a few matchings. Its prices y_i (seconds per unit of quota) define the pricing problem: find the
matching with the smallest c_m - sum_i y_i p_im. If it is smaller than the price of a round, the matching joins the
program. By duality, sum_i beta_i y_i plus a lower bound on the pricing problem is a lower bound on the optimum.

The pricing problem is solved by branch and bound, one seat at a time: a seat is a channel if there are more clients,
otherwise a client. A partial matching costs at least what it would cost if every free seat had the best distribution
and the best price at once. The number of steps is limited; what is cut off by the limit lowers the bound, so that the
bound is always valid.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from fedlane.records import FloatArray, IntArray
from fedlane.theory.matching_program import EXACT_GAP, MatchingProgram, Optimum, mixture
from fedlane.validate import InputError

MAX_PAIRS = 1000
"""Largest number of client-channel pairs for which column generation is tried."""
MAX_ROUNDS = 400
"""Largest number of times that the program is solved."""
QUICK_STEPS, THOROUGH_STEPS = 300, 60_000
"""Steps of branch and bound while the program improves, and for the bound at the end."""
_NEW_COLUMNS = 8
_PENALTY = 20.0
"""Cost of a missing unit of quota in deadlines, so that the first programs are feasible; raised if it is too small."""


@dataclass(frozen=True)
class Priced:
    """Solution of a pricing problem.

    Attributes:
        matchings: The best matchings that were met, the best first (K, U).
        value_s: c_m - sum_i y_i p_im of the first.
        bound_s: Lower bound on that of every matching.
    """

    matchings: IntArray
    value_s: float
    bound_s: float


def generate_columns(program: MatchingProgram, gap: float) -> Optimum:
    """Solve the program of a large network until the proved gap is at most ``gap``, or nothing more can be proved.

    Raises:
        InputError: The network has more than `MAX_PAIRS` pairs.
    """
    if program.success.size > MAX_PAIRS:
        clients, channels = program.success.shape
        raise InputError(
            f"the optimum of {clients} clients on {channels} channels cannot be computed: "
            f"column generation is limited to {MAX_PAIRS} pairs"
        )
    pricing = PricingProblem(program)
    columns = pricing.solve(np.full(len(program.quotas), program.deadline_s), QUICK_STEPS).matchings
    lower_s, steps, penalty = 0.0, QUICK_STEPS, _PENALTY * program.deadline_s
    for _ in range(MAX_ROUNDS):
        weights, prices_s, round_price_s, missing = _master(program, columns, penalty)
        priced = pricing.solve(prices_s, steps)
        lower_s = max(lower_s, float(program.quotas @ prices_s) + priced.bound_s)
        best = mixture(columns, program.delays_s(columns), weights, lower_s, prices_s)
        served = missing <= 1e-9
        if served and best.gap <= max(gap, EXACT_GAP):
            return best
        if priced.value_s < round_price_s - EXACT_GAP * program.deadline_s:
            columns = np.unique(np.concatenate([columns, priced.matchings]), axis=0)
        elif not served:
            penalty *= 10.0
        elif steps == THOROUGH_STEPS:
            return best
        else:
            steps = THOROUGH_STEPS
    if not served:
        raise InputError("no mixture that serves the quotas was found within the limit of column generation")
    return best


def _master(
    program: MatchingProgram, columns: IntArray, penalty_s: float
) -> tuple[FloatArray, FloatArray, float, float]:
    """Solve the program over the given matchings: weights, prices, price of a round, and the missing quota."""
    clients, count = len(program.quotas), len(columns)
    cost = np.concatenate([program.delays_s(columns), np.full(clients, penalty_s)]) / program.deadline_s
    rows = np.hstack([program.punctual(columns), np.eye(clients)])
    total = np.concatenate([np.ones(count), np.zeros(clients)])[None]
    solution = linprog(cost, A_ub=-rows, b_ub=-program.quotas, A_eq=total, b_eq=[1.0], method="highs")
    if not solution.success:
        raise RuntimeError(f"the linear program of the optimum failed: {solution.message}")
    prices_s = np.maximum(-solution.ineqlin.marginals, 0.0) * program.deadline_s
    round_price_s = float(solution.eqlin.marginals[0]) * program.deadline_s
    weights = np.asarray(solution.x)
    return weights[:count], prices_s, round_price_s, float(weights[count:].sum())


class PricingProblem:
    """Finds the matching with the smallest expected slowest delay minus the value of the quotas that it serves.

    Args:
        program: The linear program.
    """

    def __init__(self, program: MatchingProgram) -> None:
        self.program = program
        self.by_channel = program.success.shape[0] >= program.success.shape[1]
        cdf = np.swapaxes(program.cdf, 0, 1) if self.by_channel else program.cdf
        self.cdf: FloatArray = np.ascontiguousarray(cdf)  # (seats, takers, G)
        best = np.ones((len(cdf) + 1, cdf.shape[2]))
        for seat in range(len(cdf) - 1, -1, -1):
            best[seat] = best[seat + 1] * self.cdf[seat].max(axis=0)
        self.ahead: FloatArray = self.cdf * best[1:, None]  # with the best distributions of all later seats

    def solve(self, prices_s: FloatArray, steps: int) -> Priced:
        """Solve it for the given prices (U,), with at most ``steps`` partial matchings extended."""
        worth = prices_s[:, None] * self.program.success
        search = _Search(self, worth.T if self.by_channel else worth, steps)
        search.extend(0, np.ones(self.cdf.shape[2]), 0.0, [])
        taken = np.array([matching for _, matching in sorted(search.met, reverse=True)], np.int64)
        clients = self.program.success.shape[0]
        matchings = taken
        if self.by_channel:
            matchings = np.full((len(taken), clients), -1, np.int64)
            np.put_along_axis(matchings, taken, np.arange(taken.shape[1])[None].repeat(len(taken), axis=0), axis=1)
        return Priced(matchings, search.best_s, min(search.best_s, search.cut_s))


class _Search:
    """One run of branch and bound."""

    def __init__(self, problem: PricingProblem, worth: FloatArray, steps: int) -> None:
        self.problem, self.worth, self.steps = problem, worth, steps
        self.later = np.concatenate([np.cumsum(worth.max(axis=1)[::-1])[::-1][1:], [0.0]])
        self.best_s, self.cut_s = np.inf, np.inf
        self.met: list[tuple[float, tuple[int, ...]]] = []  # a heap; values are negated, so the worst comes first

    def extend(self, seat: int, product: FloatArray, worth_s: float, taken: list[int]) -> None:
        """Extend a partial matching by every taker of a seat, the most promising first."""
        self.steps -= 1
        cells, deadline_s = len(product), self.problem.program.deadline_s
        cost = deadline_s * (1.0 - self.problem.ahead[seat] @ product / cells)
        bound = cost - worth_s - self.worth[seat] - self.later[seat]
        bound[taken] = np.inf
        last = seat == len(self.worth) - 1
        for taker in np.argsort(bound):
            value = float(bound[taker])
            if value >= self.best_s and (len(self.met) >= _NEW_COLUMNS or not last):
                break
            if not np.isfinite(value):
                break
            if last:
                self._meet(value, (*taken, int(taker)))
            elif self.steps <= 0 and np.isfinite(self.best_s):
                self.cut_s = min(self.cut_s, value)
                break
            else:
                following = product * self.problem.cdf[seat, taker]
                self.extend(seat + 1, following, worth_s + float(self.worth[seat, taker]), [*taken, int(taker)])

    def _meet(self, value: float, matching: tuple[int, ...]) -> None:
        self.best_s = min(self.best_s, value)
        heapq.heappush(self.met, (-value, matching))
        if len(self.met) > _NEW_COLUMNS:
            heapq.heappop(self.met)
