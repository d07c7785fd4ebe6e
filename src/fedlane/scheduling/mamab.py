"""The paper's policies: Algorithm 1 with optimal matching (OM) or with greedy matching (GMBA, Algorithm 2).

Numbered readings are explained in docs/reading-the-paper.md.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.matching import greedy_matching, max_min_matching, random_matching
from fedlane.records import BoolArray, Context, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.estimates import (
    bonus,
    check_statistics,
    empty_statistics,
    mean,
    optimistic_mean,
    record,
)
from fedlane.scheduling.policy import BatchPolicy, check_trade_off
from fedlane.scheduling.ranges import EXPLORATION, QUOTA_SLACK, TRADE_OFF, Choices, ParameterRange, Tunable
from fedlane.validate import InputError, positive


@dataclass(frozen=True)
class _Mamab(BatchPolicy):
    """Algorithm 1: a random matching with probability exp(-t / T0), else a matching on the perturbed estimate."""

    ranges: ClassVar[Mapping[str, Tunable]] = {
        "V": TRADE_OFF,
        "exploration": EXPLORATION,
        "T0": ParameterRange(1.0, 300.0, "log"),
        "quota_slack": QUOTA_SLACK,
        "queue_weight": Choices(("additive", "success")),
    }

    V: float = 100.0
    exploration: float = 0.1
    T0: float = 100.0
    quota_slack: float = 0.0
    queue_weight: str = "additive"

    def __post_init__(self) -> None:
        check_trade_off(self.V, self.exploration, self.quota_slack)
        positive("T0", self.T0)
        if self.queue_weight not in ("additive", "success"):
            raise InputError(f"queue_weight must be 'additive' or 'success', got '{self.queue_weight}'")

    def init(self, problem: Problem) -> State:
        """Return empty statistics."""
        return empty_statistics(problem)

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Return a random matching or one based on the estimate, depending on the round's random number."""
        clients, channels = state["count"].shape[1:]
        keys = rng.uniform(1 + 2 * clients + channels)
        kappa, client_keys, order_keys, channel_keys = np.split(keys, np.cumsum([1, clients, clients]), axis=1)
        assignment = random_matching(context.available, client_keys, channel_keys)
        # The matching drawn at the end of round t - 1 serves round t; the first round is always random (reading 13).
        explore = 1.0 if context.round == 0 else np.exp(-(context.round - 1) / self.T0)
        exploit = kappa[:, 0] < 1.0 - explore
        if exploit.any():
            every = bool(exploit.all())  # no copy of the state is needed
            some = state if every else {key: array[exploit] for key, array in state.items()}
            estimate = self.estimate(some, context.queue[exploit])
            estimate[~context.available[exploit]] = -np.inf
            assignment[exploit] = self.match(
                estimate, order_keys[exploit], context.available[exploit], context.previous[exploit]
            )
        return assignment

    def estimate(self, state: State, queue: FloatArray) -> FloatArray:
        """Return e_ij = Q_i + V (mean reward + bonus), equation (11), (R, U, N); +inf for a pair that was never tried.

        With ``queue_weight="success"`` the queue is weighted by the probability that the assignment serves it,
        Q_i p_ij + V (...); p_ij is optimistic, and both p_ij and the index are clipped at 1 (reading 12).
        """
        count = state["count"]
        optimism = self.bonus(count)
        queue = queue[..., None]
        if self.queue_weight == "success":
            queue = queue * optimistic_mean(state["success"], count, optimism)
            result = optimistic_mean(state["reward"], count, optimism)
        else:
            result = mean(state["reward"], count)
            result += optimism
        tried = count > 0
        np.multiply(result, self.V, out=result, where=tried)
        result[~tried] = np.inf
        result += queue
        return result

    def bonus(self, count: IntArray) -> FloatArray:
        """Return the optimism bonus of every pair, (R, U, N); +inf for a pair that was never tried."""
        return bonus(count, self.exploration)

    @abstractmethod
    def match(self, estimate: FloatArray, keys: FloatArray, available: BoolArray, previous: IntArray) -> IntArray:
        """Return a matching on the estimate (R, U, N); ``keys`` (R, U) are uniform, ``previous`` (R, U) is a(t - 1)."""

    def update(self, state: State, feedback: Feedback) -> State:
        """Add the measured delays to the statistics."""
        record(state, feedback)
        return state

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the statistics."""
        state = super().check_state(state, problem)
        check_statistics(state, problem)
        return state


@dataclass(frozen=True)
class MamabOm(_Mamab):
    """OM (Section V-A): the exact max-min matching."""

    name: ClassVar[str] = "mamab-om"
    summary: ClassVar[str] = "the paper's bandit with optimal max-min matching"

    def match(self, estimate: FloatArray, keys: FloatArray, available: BoolArray, previous: IntArray) -> IntArray:
        """Return the max-min matching."""
        return max_min_matching(estimate)


@dataclass(frozen=True)
class MamabGmba(_Mamab):
    """GMBA (Algorithm 2): a greedy matching in random order, used only if it beats last round's matching."""

    name: ClassVar[str] = "mamab-gmba"
    summary: ClassVar[str] = "the paper's bandit with greedy matching or last round's, whichever is better"

    def match(self, estimate: FloatArray, keys: FloatArray, available: BoolArray, previous: IntArray) -> IntArray:
        """Return a greedy matching in random order, or the previous one unless the greedy one is strictly better."""
        order = np.argsort(np.where(available, keys, np.inf), axis=1, kind="stable")
        greedy = greedy_matching(estimate, order)
        same_size = np.sum(previous >= 0, axis=1) == np.sum(greedy >= 0, axis=1)
        usable = same_size & ~np.any((previous >= 0) & ~available, axis=1)
        keep = usable & ~(_smallest(estimate, greedy) > _smallest(estimate, previous))
        return np.where(keep[:, None], previous, greedy)


def _smallest(estimate: FloatArray, assignment: IntArray) -> FloatArray:
    """Return the smallest estimate among the assigned pairs of each replica, (R,)."""
    values = np.take_along_axis(estimate, np.maximum(assignment, 0)[..., None], axis=2)[..., 0]
    result: FloatArray = np.where(assignment >= 0, values, np.inf).min(axis=1)
    return result
