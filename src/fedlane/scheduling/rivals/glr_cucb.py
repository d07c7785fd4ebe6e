"""GLR-CUCB: a combinatorial bandit that restarts when a test detects a change of a pair's reward.

Zhou, Wang, Varshney and Lim (2020, arXiv 1908.10402), which the asynchronous scheduler of arXiv 2503.01324 builds on.
With t counted from the last restart and n_ij from it as well, the matching maximises the sum of

    Q_i min(p_ij + b_ij, 1) + V min(r_ij + b_ij, 1),   b_ij = x sqrt(3 ln t / (2 n_ij)),

in a share of the rounds with one pair forced, each in turn. A pair's rewards X_1 ... X_n have changed if

    max_s  s kl(mean of X_1..s, mean of all) + (n - s) kl(mean of X_s+1..n, mean of all)  >=  ln(3 n^(3/2) / delta),

the generalised likelihood ratio of Besson and Kaufmann (2019, arXiv 1902.01575); then all pairs start afresh.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.matching import max_sum_matching
from fedlane.records import BoolArray, Context, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.estimates import STATISTICS, check_statistics, empty_statistics, optimistic_mean, record
from fedlane.scheduling.policy import BatchPolicy, check_trade_off, check_within
from fedlane.scheduling.ranges import EXPLORATION, QUOTA_SLACK, TRADE_OFF, ParameterRange, Tunable
from fedlane.scheduling.rivals.recent_rounds import append_recent, check_recent, empty_recent
from fedlane.validate import InputError, at_least


@dataclass(frozen=True)
class GlrCucb(BatchPolicy):
    """CUCB with queues, forced exploration and global restarts; the test sees the last ``history`` rounds.

    ``delta`` is the probability of a false alarm in a pair's test; 0 stands for 1 / sqrt(T). The state also holds the
    round in which each replica last started (R,).
    """

    name: ClassVar[str] = "glr-cucb"
    summary: ClassVar[str] = "a bandit that starts afresh when a test detects a change (Zhou et al. 2020)"
    ranges: ClassVar[Mapping[str, Tunable]] = {
        "V": TRADE_OFF,
        "exploration": EXPLORATION,
        "forced_share": ParameterRange(0.001, 0.5, "log"),
        "delta": ParameterRange(1e-4, 0.5, "log"),
        "quota_slack": QUOTA_SLACK,
    }

    V: float = 5.0
    exploration: float = 1.0
    forced_share: float = 0.1
    delta: float = 0.0
    history: int = 500
    quota_slack: float = 0.125

    def __post_init__(self) -> None:
        check_trade_off(self.V, self.exploration, self.quota_slack)
        for name, value in (("forced_share", self.forced_share), ("delta", self.delta)):
            if not 0 <= value < 1:
                raise InputError(f"{name} must be at least 0 and less than 1, got {value}")
        at_least("history", self.history, 2)

    def init(self, problem: Problem) -> State:
        """Return empty statistics and history."""
        return {
            **empty_statistics(problem),
            **empty_recent(problem, max(2, min(self.history, problem.rounds))),
            "start": np.zeros(problem.replicas, np.int64),
        }

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Serve the matching with the largest optimistic sum; pairs never tried since the restart come first."""
        count, age = state["count"], context.round - state["start"]
        bonus = np.full(count.shape, np.inf)
        np.divide(1.5 * np.log(np.maximum(age, 1))[:, None, None], count, out=bonus, where=count > 0)
        bonus = np.where(count > 0, self.exploration * np.sqrt(bonus), np.inf)
        value = context.queue[..., None] * optimistic_mean(state["success"], count, bonus)
        value += self.V * optimistic_mean(state["reward"], count, bonus)
        value[(count == 0) | self._forced(age, count.shape)] = np.inf
        value[~context.available] = -np.inf
        return max_sum_matching(value)

    def _forced(self, age: IntArray, shape: tuple[int, ...]) -> BoolArray:
        """Return the pair that each replica must try (R, U, N): every pair once in pairs / forced_share rounds."""
        replicas, pairs = shape[0], shape[1] * shape[2]
        forced = np.zeros((replicas, pairs), np.bool_)
        if self.forced_share > 0:
            turn = age % math.ceil(pairs / self.forced_share)
            due = np.flatnonzero(turn < pairs)
            forced[due, turn[due]] = True
        return forced.reshape(shape)

    def update(self, state: State, feedback: Feedback) -> State:
        """Add the measured delays, test the pairs that were used, and start afresh where one has changed."""
        record(state, feedback)
        append_recent(state, feedback)
        changed = self.changed(state, feedback)
        for key in STATISTICS:
            state[key][changed] = 0
        state["recent_client"][changed] = -1
        return {**state, "start": np.where(changed, feedback.context.round + 1, state["start"])}

    def changed(self, state: State, feedback: Feedback) -> BoolArray:
        """Return the replicas in which a pair of this round has changed (R,)."""
        rounds, rows = feedback.context.problem.rounds, state["recent_client"].shape[1]
        delta = self.delta or 1.0 / math.sqrt(rounds)
        in_order = (feedback.context.round + 1 + np.arange(rows)) % rows
        client = state["recent_client"][:, in_order].transpose(0, 2, 1)  # (R, N, W), oldest first
        now = client[..., -1:]
        used = (client == now) & (now >= 0)
        statistic = likelihood_ratio(state["recent_reward"][:, in_order].transpose(0, 2, 1), used)
        threshold = np.log(3.0 * np.maximum(used.sum(axis=2), 1) ** 1.5 / delta)
        return np.asarray((statistic >= threshold).any(axis=1))

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the statistics, the history and the restarts."""
        state = super().check_state(state, problem)
        check_statistics(state, problem)
        check_recent(state, problem)
        check_within("start", state["start"], 0, problem.rounds)
        return state


def likelihood_ratio(reward: FloatArray, used: BoolArray) -> FloatArray:
    """Return the largest likelihood ratio over all splits of a sequence (...,); 0 for fewer than two rewards.

    Args:
        reward: (..., W) rewards from 0 to 1, oldest first.
        used: (..., W) which of them belong to the sequence.
    """
    number: IntArray = np.cumsum(used, axis=-1)
    total: FloatArray = np.cumsum(reward * used, axis=-1)
    count, final = number[..., -1:], total[..., -1:]
    after: IntArray = count - number
    mean = final / np.maximum(count, 1)
    first, second = total / np.maximum(number, 1), (final - total) / np.maximum(after, 1)
    ratio = number * _divergence(first, mean) + after * _divergence(second, mean)
    result: FloatArray = np.where(used & (after > 0), ratio, 0.0).max(axis=-1)
    return result


def _divergence(p: FloatArray, q: FloatArray) -> FloatArray:
    """Return kl(p, q) between Bernoulli distributions; both are kept 1e-10 away from 0 and 1."""
    p, q = np.clip(p, 1e-10, 1 - 1e-10), np.clip(q, 1e-10, 1 - 1e-10)
    return np.asarray(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
