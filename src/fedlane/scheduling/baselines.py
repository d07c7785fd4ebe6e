"""The paper's baselines: Random, Round Robin and Single-UCB (Section VI; reading 14 in docs/reading-the-paper.md)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.matching import random_matching, serve_in_order
from fedlane.records import BoolArray, Context, Feedback, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.estimates import check_statistics, rewards
from fedlane.scheduling.policy import Policy, problem_of
from fedlane.scheduling.restoring import check_within
from fedlane.validate import at_least


@dataclass(frozen=True)
class Random(Policy):
    """N random clients, each on a random channel."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "random clients on random channels"
    per_client: ClassVar[frozenset[str]] = frozenset()

    def init(self, problem: Problem) -> State:
        """Return an empty state: nothing is learned."""
        return {}

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Draw a random matching of the available clients."""
        clients, channels = context.available.shape[1], problem_of(context).channels
        keys = rng.uniform(clients + channels)
        return random_matching(context.available, keys[:, :clients], keys[:, clients:])


@dataclass(frozen=True)
class RoundRobin(Policy):
    """Serves ceil(U / N) groups of clients in turn; the last group may leave channels idle.

    A group's channels rotate from one of its turns to the next. A group without available clients is skipped.
    """

    name: ClassVar[str] = "round-robin"
    summary: ClassVar[str] = "groups of clients in turn"
    per_client: ClassVar[frozenset[str]] = frozenset()

    def init(self, problem: Problem) -> State:
        """Start with the first group."""
        return {"turn": np.zeros(problem.replicas, np.int64)}

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Serve the next group that has an available client."""
        clients, channels = context.available.shape[1], problem_of(context).channels
        group_of, place = np.divmod(np.arange(clients), channels)
        groups = int(group_of[-1]) + 1
        turn, active = self._next(state["turn"], context, group_of, groups)
        served = (group_of == (turn % groups)[:, None]) & context.available & active[:, None]
        return np.where(served, (place + (turn // groups)[:, None]) % channels, -1)

    def update(self, state: State, feedback: Feedback) -> State:
        """Continue after the group that was served."""
        group_of = np.arange(feedback.assignment.shape[1]) // problem_of(feedback).channels
        groups = int(group_of[-1]) + 1
        served = feedback.assignment >= 0
        group = group_of[np.argmax(served, axis=1)]
        step = np.where(served.any(axis=1), (group - state["turn"]) % groups, 0)
        return {"turn": state["turn"] + step + 1}

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the turn, which advances by at most the number of groups in a round."""
        state = super().check_state(state, problem)
        check_within("turn", state["turn"], 0, problem.rounds * problem.clients)
        return state

    @staticmethod
    def _next(turn: IntArray, context: Context, group_of: IntArray, groups: int) -> tuple[IntArray, BoolArray]:
        """Return the next turn whose group has an available client, and whether there is one; both (R,)."""
        member = group_of[None, :] == np.arange(groups)[:, None]
        alive = (context.available[:, None, :] & member).any(axis=2)
        ahead = np.take_along_axis(alive, (turn[:, None] + np.arange(groups)) % groups, axis=1)
        return turn + np.argmax(ahead, axis=1), alive.any(axis=1)


@dataclass(frozen=True)
class SingleUcb(Policy):
    """One index per client, mean reward + x sqrt(2 ln t / n_i); the N best clients on random channels (Xia 2020)."""

    name: ClassVar[str] = "single-ucb"
    summary: ClassVar[str] = "one bandit index per client, random channels"
    per_client: ClassVar[frozenset[str]] = frozenset({"count", "reward"})

    exploration: float = 0.1

    def __post_init__(self) -> None:
        at_least("exploration", self.exploration, 0)

    def init(self, problem: Problem) -> State:
        """Return zero counts and reward sums, each (R, U)."""
        shape = problem.quotas.shape
        return {"count": np.zeros(shape, np.int64), "reward": np.zeros(shape)}

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Serve the clients with the largest indices; clients never tried come first."""
        clients, channels = context.available.shape[1], problem_of(context).channels
        keys = rng.uniform(clients + channels)
        count = state["count"]
        radius = np.sqrt(2 * np.log(context.round + 1) / np.maximum(count, 1))
        index = np.where(count > 0, state["reward"] / np.maximum(count, 1) + self.exploration * radius, np.inf)
        index[~context.available] = -np.inf
        order = np.lexsort((keys[:, :clients], -index), axis=1)  # best first, ties at random
        return serve_in_order(order, np.argsort(keys[:, clients:], axis=1), context.available)

    def update(self, state: State, feedback: Feedback) -> State:
        """Add the rewards of the assigned clients."""
        assigned = feedback.assignment >= 0
        reward = np.where(assigned, rewards(feedback, problem_of(feedback).deadline_s), 0.0)
        return {"count": state["count"] + assigned, "reward": state["reward"] + reward}

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the counts and the reward sums."""
        state = super().check_state(state, problem)
        check_statistics(state, problem)
        return state
