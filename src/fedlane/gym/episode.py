"""Episodes of many replicas at once: scores are turned into a matching, which is played on the network and rewarded.

A replica is the network of a seed, the same network that `simulate(..., seeds=[seed])` uses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedlane.gym.memory import empty_memory, observation, remember
from fedlane.matching import max_sum_matching
from fedlane.records import BoolArray, Context, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.rounds import Outcome, Rounds
from fedlane.scenario import Scenario
from fedlane.scheduling.policy import BatchPolicy
from fedlane.simulation.setup import prepare
from fedlane.simulation.world import SimulatedWorld
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
class _Agent(BatchPolicy):
    """The agent outside: its state is the memory that observations are made from, and it gives its scores to `step`."""

    name: ClassVar[str] = "agent"
    quota_slack: float = 0.0

    def init(self, problem: Problem) -> State:
        return empty_memory(problem)

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        raise NotImplementedError("the environment orders what the agent's scores say")

    def update(self, state: State, feedback: Feedback) -> State:
        return remember(state, feedback)


class Episode:
    """An episode of R replicas.

    Args:
        terms: Scenario and reward weights.
        seeds: Seed of each replica's network (R,).

    Attributes:
        rounds: Clock, queues and charges; what the agent remembers is the state of its policy.
        context: What the agent sees before the next round, besides its memory.
    """

    def __init__(self, terms: EpisodeTerms, seeds: Sequence[int]) -> None:
        at_least("seed", min(seeds), 0)
        self.terms, self.seeds = terms, tuple(seeds)
        setup = prepare(terms.scenario, seeds)
        self.world = SimulatedWorld(setup)
        self.rounds = Rounds(
            _Agent(terms.quota_slack),
            setup.problem,
            seeds,
            max_uploads=setup.mechanism.max_uploads,
            wait_s=setup.problem.deadline_s,
        )
        self.context = self.rounds.context(self.world.present(self.rounds))

    @property
    def finished(self) -> bool:
        """Whether the last round has ended."""
        return self.rounds.finished

    def observe(self) -> NDArray[np.float32]:
        """Return the observation before the next round (R, U, N, F)."""
        return observation(self.rounds.state, self.context, self.rounds.quota)

    def step(self, scores: FloatArray) -> tuple[Outcome, FloatArray]:
        """Run one round with the matching of ``scores`` (R, U, N); return its outcome and the reward (R,).

        reward = -d(t) / d_max - sum_i Q_i(t) (beta_i - s_i(t)) / (V N), where d is the round's capped delay, Q_i the
        queue before the round, beta_i the quota, and s_i is 1 if client i met the deadline, else 0. This is the
        drift-plus-penalty objective of `lane`, divided by V N.
        """
        rounds, problem, queue = self.rounds, self.rounds.problem, self.rounds.queue
        orders = rounds.order(matched(scores, self.context.available))
        rounds.start(orders)
        outcome = rounds.settle(self.world.attempt(rounds, orders))
        owed = (queue * (rounds.quota * outcome.present - outcome.punctual)).sum(axis=1)
        reward = -outcome.delay_s / problem.deadline_s - owed / (self.terms.V * problem.channels)
        self.context = rounds.context(self.world.present(rounds))
        return outcome, reward


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
