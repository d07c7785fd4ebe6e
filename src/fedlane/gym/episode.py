"""Episodes of many replicas at once: scores are turned into a matching, which is played on the network and rewarded.

A replica is the network of a seed, the same network that `simulate(..., seeds=[seed])` uses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlane.gym.memory import empty_memory, observation, remember
from fedlane.matching import max_sum_matching
from fedlane.records import BoolArray, Delays, Feedback, FloatArray, IntArray
from fedlane.scenario import Scenario
from fedlane.simulation.attendance import Attendance
from fedlane.simulation.round import round_delay_s
from fedlane.simulation.setup import prepare
from fedlane.validate import InputError, at_least, positive


@dataclass(frozen=True)
class EpisodeTerms:
    """The scenario of an episode and the weights of its reward.

    Attributes:
        scenario: The scenario.
        V: Weight of time against queues in the reward.
        quota_slack: Share by which the quotas are reduced.
    """

    scenario: Scenario
    V: float
    quota_slack: float

    @classmethod
    def of(cls, scenario: Scenario | str, rounds: int | None, V: float, quota_slack: float) -> "EpisodeTerms":
        """Return checked terms, with ``rounds`` instead of the scenario's if given."""
        loaded = Scenario.load(scenario) if isinstance(scenario, str) else scenario
        positive("V", V)
        if not 0 <= quota_slack < 1:
            raise InputError(f"quota_slack must be at least 0 and less than 1, got {quota_slack}")
        return cls(loaded if rounds is None else loaded.with_values({"rounds": rounds}), V, quota_slack)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of clients and channels, (U, N)."""
        return self.scenario.network.clients, self.scenario.network.channels


@dataclass(frozen=True)
class Outcome:
    """Outcome of one round in every replica.

    Attributes:
        reward: Reward (R,).
        delay_s: Delay of the round, capped at the deadline, in seconds (R,).
        assignment: Each client's channel (R, U), -1 if unassigned.
        punctual: Whether each client met the deadline (R, U).
        delays: Each client's delays, +inf if it was late: the parts that a server observes.
    """

    reward: FloatArray
    delay_s: FloatArray
    assignment: IntArray
    punctual: BoolArray
    delays: Delays


class Episode:
    """An episode of R replicas.

    Args:
        terms: Scenario and reward weights.
        seeds: Seed of each replica's network (R,).
    """

    def __init__(self, terms: EpisodeTerms, seeds: Sequence[int]) -> None:
        at_least("seed", min(seeds), 0)
        self.terms, self.seeds = terms, tuple(seeds)
        setup = prepare(terms.scenario, seeds)
        self.network, self.problem = setup.network, setup.problem
        self._attendance = Attendance(setup)
        self._spent_j = np.zeros(self.problem.quotas.shape)
        self.max_uploads = setup.mechanism.max_uploads
        self.memory = empty_memory(self.problem, (1.0 - terms.quota_slack) * self.problem.quotas)
        self.uploads = np.zeros(self.problem.quotas.shape, np.int64)
        self.clock_s = np.zeros(len(self.seeds))
        self.round = 0

    @property
    def finished(self) -> bool:
        """Whether the last round was played."""
        return self.round >= self.problem.rounds

    @property
    def available(self) -> BoolArray:
        """Whether each client is there and has privacy budget left (R, U)."""
        return np.asarray(self.present & (self.uploads < self.max_uploads))

    @property
    def present(self) -> BoolArray:
        """Whether each client is there (R, U)."""
        return self._attendance.present(self.clock_s, self._spent_j)

    def observe(self) -> NDArray[np.float32]:
        """Return the observation before the next round (R, U, N, F)."""
        return observation(self.memory, self.round, self.available)

    def play(self, scores: FloatArray) -> Outcome:
        """Play one round with the matching of ``scores`` (R, U, N).

        reward = -d(t) / d_max - sum_i Q_i(t) (beta_i - s_i(t)) / (V N), where d is the round's capped delay, Q_i the
        queue before the round, beta_i the quota, and s_i is 1 if client i met the deadline, else 0. This is the
        drift-plus-penalty objective of `lane`, divided by V N.
        """
        present = self.present
        assignment = matched(scores, present & (self.uploads < self.max_uploads))
        attempts = self._attendance.attempt(self.round, self.clock_s, assignment)
        punctual = attempts.punctual
        feedback = Feedback(self.round, assignment, attempts.delays, punctual, self.problem, present)
        delay_s = round_delay_s(feedback, self.problem.deadline_s)
        shortfall = (self.memory["queue"] * (self.memory["quota"] * present - punctual)).sum(axis=1)
        reward = -delay_s / self.problem.deadline_s - shortfall / (self.terms.V * self.problem.channels)
        observed = feedback.observed()
        self.memory = remember(self.memory, observed)
        self.uploads += assignment >= 0
        self.clock_s += delay_s
        self._spent_j += attempts.energy_j
        self.round += 1
        return Outcome(reward, delay_s, assignment, punctual, observed.delays)


def matched(scores: FloatArray, available: BoolArray) -> IntArray:
    """Return the matching of the scores: as many pairs with scores of at least 0 as possible, then the largest sum.

    Negative scores and unavailable clients exclude their pairs, so every action gives a valid matching.

    Args:
        scores: Scores (R, U, N), finite.
        available: Whether each client may be selected (R, U).

    Returns:
        Each client's channel (R, U), -1 if unassigned.

    Raises:
        InputError: A score is not finite.
    """
    if not np.isfinite(scores).all():
        raise InputError("scores must be finite numbers")
    allowed = (scores >= 0) & available[..., None]
    return max_sum_matching(np.where(allowed, scores, -np.inf))
