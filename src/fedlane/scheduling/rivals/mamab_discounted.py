"""`mamab-om` with discounted statistics, after D-UCB.

Garivier and Moulines, *On Upper-Confidence Bound Policies for Non-Stationary Bandit Problems* (2008, arXiv 0805.3415):
before each round is added, counts and reward sums are multiplied by gamma = 1 - 1 / (4 sqrt(T)), the value of their
experiments. The bonus has the form of `mamab-om`'s, x sqrt((U + 2) ln n / n_ij), with discounted counts n_ij and, as in
D-UCB, the logarithm of the discounted number of rounds n.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.records import Feedback, FloatArray, IntArray, Problem, State
from fedlane.scheduling.estimates import STATISTICS
from fedlane.scheduling.mamab import MamabOm
from fedlane.scheduling.ranges import ParameterRange, Tunable
from fedlane.validate import InputError

_NEGLIGIBLE = 1e-100  # a smaller count is 0, since the bonus divides by it


@dataclass(frozen=True)
class MamabDiscounted(MamabOm):
    """`mamab-om` on statistics that fade by the factor ``discount`` per round; 0 stands for 1 - 1 / (4 sqrt(T))."""

    name: ClassVar[str] = "mamab-discounted"
    summary: ClassVar[str] = "mamab-om with discounted statistics (Garivier and Moulines 2008)"
    ranges: ClassVar[Mapping[str, Tunable]] = {**MamabOm.ranges, "discount": ParameterRange(0.8, 0.999)}

    discount: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.discount <= 1:
            raise InputError(f"discount must be at least 0 and at most 1, got {self.discount}")

    def factor(self, problem: Problem) -> float:
        """Return gamma."""
        return self.discount or 1.0 - 1.0 / (4.0 * math.sqrt(problem.rounds))

    def init(self, problem: Problem) -> State:
        """Return the state of `mamab-om`, with counts that need not be integers."""
        state = super().init(problem)
        return {key: array.astype(np.float64) if key in STATISTICS else array for key, array in state.items()}

    def bonus(self, count: IntArray) -> FloatArray:
        """Return x sqrt((U + 2) ln n / n_ij), where n is the discounted number of rounds, (R, U, N).

        The logarithm of `mamab-om` is of the client's own count, which fades: a client that is not served would lose
        its bonus.
        """
        clients, channels = count.shape[1:]
        rounds = np.maximum(count.sum(axis=(1, 2)) / channels, 1.0)
        result = np.full(count.shape, np.inf)
        np.divide((clients + 2) * np.log(rounds)[:, None, None], count, out=result, where=count > 0)
        return np.where(count > 0, self.exploration * np.sqrt(result), np.inf)

    def update(self, state: State, feedback: Feedback) -> State:
        """Discount the past, then add the round."""
        factor = self.factor(feedback.context.problem)
        forgotten = state["count"] * factor < _NEGLIGIBLE
        for key in STATISTICS:
            state[key][...] = np.where(forgotten, 0.0, factor * state[key])
        return super().update(state, feedback)
