"""Episodes of many replicas at once: scores become a matching, the network answers, the reward follows.

A replica is a network, named by its seed: the same that `simulate(..., seeds=[seed])` plays on, round by round.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlane.gym.memory import empty_memory, observation, remember
from fedlane.matching import max_sum_matching
from fedlane.records import BoolArray, Delays, Feedback, FloatArray, IntArray
from fedlane.scenario import Scenario
from fedlane.simulation.round import round_delay_s
from fedlane.simulation.setup import prepare
from fedlane.validate import InputError, at_least, positive


@dataclass(frozen=True)
class EpisodeTerms:
    """What an episode is: a scenario, and how time is weighed against queues."""

    scenario: Scenario
    V: float
    quota_slack: float

    @classmethod
    def of(cls, scenario: Scenario | str, rounds: int | None, V: float, quota_slack: float) -> "EpisodeTerms":
        """Checked, with ``rounds`` instead of the scenario's if given."""
        loaded = Scenario.load(scenario) if isinstance(scenario, str) else scenario
        positive("V", V)
        if not 0 <= quota_slack < 1:
            raise InputError(f"quota_slack must be at least 0 and less than 1, got {quota_slack}")
        return cls(loaded if rounds is None else loaded.with_values({"rounds": rounds}), V, quota_slack)

    @property
    def shape(self) -> tuple[int, int]:
        """(U, N)"""
        return self.scenario.network.clients, self.scenario.network.channels


@dataclass(frozen=True)
class Outcome:
    """One round of every replica."""

    reward: FloatArray
    """(R,)"""
    delay_s: FloatArray
    """(R,): the round's, capped at the deadline."""
    assignment: IntArray
    """(R, U): each client's channel, -1 for none."""
    punctual: BoolArray
    """(R, U)"""
    delays: Delays


class Episode:
    """R replicas from their first round to their last."""

    def __init__(self, terms: EpisodeTerms, seeds: Sequence[int]) -> None:
        at_least("seed", min(seeds), 0)
        self.terms, self.seeds = terms, tuple(seeds)
        setup = prepare(terms.scenario, seeds)
        self.network, self.problem = setup.network, setup.problem
        self.max_uploads = setup.mechanism.max_uploads
        self.memory = empty_memory(self.problem, (1.0 - terms.quota_slack) * self.problem.quotas)
        self.uploads = np.zeros(self.problem.quotas.shape, np.int64)
        self.clock_s = np.zeros(len(self.seeds))
        self.round = 0

    @property
    def finished(self) -> bool:
        return self.round >= self.problem.rounds

    @property
    def available(self) -> BoolArray:
        """(R, U): whose budget is not spent."""
        return np.asarray(self.uploads < self.max_uploads)

    def observe(self) -> NDArray[np.float32]:
        """(R, U, N, F)"""
        return observation(self.memory, self.round, self.available)

    def play(self, scores: FloatArray) -> Outcome:
        """One round with the matching of ``scores`` (R, U, N).

        reward = -d(t) / d_max - sum_i Q_i(t) (beta_i - s_i(t)) / (V N): d the round's delay, capped; Q_i the queue
        before the round; beta_i the quota; s_i 1 if client i was in time, else 0. It is what `lane` maximises
        (drift plus penalty), divided by V N.
        """
        assignment = matched(scores, self.available)
        delays = self.network.delays(self.round, assignment)
        punctual = delays.total_s <= self.problem.deadline_s  # NaN, an unassigned client, is not punctual
        feedback = Feedback(self.round, assignment, delays, punctual, self.problem)
        delay_s = round_delay_s(feedback, self.problem.deadline_s)
        shortfall = (self.memory["queue"] * (self.memory["quota"] - punctual)).sum(axis=1)
        reward = -delay_s / self.problem.deadline_s - shortfall / (self.terms.V * self.problem.channels)
        self.memory = remember(self.memory, feedback)
        self.uploads += assignment >= 0
        self.clock_s += delay_s
        self.round += 1
        return Outcome(reward, delay_s, assignment, punctual, delays)


def matched(scores: FloatArray, available: BoolArray) -> IntArray:
    """(R, U): as many pairs of score 0 or more as there can be, and among those the largest sum.

    ``scores`` (R, U, N). A negative score forbids its pair, as does an unavailable client: every action is a matching.
    """
    if not np.isfinite(scores).all():
        raise InputError("scores must be finite numbers")
    allowed = (scores >= 0) & available[..., None]
    return max_sum_matching(np.where(allowed, scores, -np.inf))
