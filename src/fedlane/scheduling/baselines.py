"""The paper's baselines: Random, Round Robin and Single-UCB (Section VI; reading 14)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.matching import random_matching, serve_in_order
from fedlane.records import Context, Feedback, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.estimates import rewards
from fedlane.scheduling.policy import Policy
from fedlane.validate import at_least


def _size(problem: Problem) -> dict[str, np.ndarray]:
    """The number of channels, which a policy without pair statistics has to remember."""
    return {"channels": np.full(problem.replicas, problem.channels)}


@dataclass(frozen=True)
class Random(Policy):
    """N clients at random, each on a random channel."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "random clients on random channels"

    def init(self, problem: Problem) -> State:
        return _size(problem)

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        clients, channels = context.available.shape[1], int(state["channels"][0])
        keys = rng.uniform(clients + channels)
        return random_matching(context.available, keys[:, :clients], keys[:, clients:])


@dataclass(frozen=True)
class RoundRobin(Policy):
    """ceil(U / N) groups in turn; the last may leave channels idle. A group's channels rotate from turn to turn.

    A group with nobody available is passed over.
    """

    name: ClassVar[str] = "round-robin"
    summary: ClassVar[str] = "groups of clients in turn"

    def init(self, problem: Problem) -> State:
        return {**_size(problem), "turn": np.zeros(problem.replicas, np.int64)}

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        clients, channels = context.available.shape[1], int(state["channels"][0])
        group_of, place = np.divmod(np.arange(clients), channels)
        groups = int(group_of[-1]) + 1
        turn, active = self._next(state["turn"], context, group_of, groups)
        mine = (group_of == (turn % groups)[:, None]) & context.available & active[:, None]
        return np.where(mine, (place + (turn // groups)[:, None]) % channels, -1)

    def update(self, state: State, feedback: Feedback) -> State:
        channels = int(state["channels"][0])
        group_of = np.arange(feedback.assignment.shape[1]) // channels
        groups = int(group_of[-1]) + 1
        served = feedback.assignment >= 0
        group = group_of[np.argmax(served, axis=1)]
        step = np.where(served.any(axis=1), (group - state["turn"]) % groups, 0)
        return {**state, "turn": state["turn"] + step + 1}

    @staticmethod
    def _next(turn: IntArray, context: Context, group_of: IntArray, groups: int) -> tuple[IntArray, np.ndarray]:
        """The next turn whose group has somebody available, and whether there is one; both (R,)."""
        member = group_of[None, :] == np.arange(groups)[:, None]
        alive = (context.available[:, None, :] & member).any(axis=2)
        ahead = np.take_along_axis(alive, (turn[:, None] + np.arange(groups)) % groups, axis=1)
        return turn + np.argmax(ahead, axis=1), alive.any(axis=1)


@dataclass(frozen=True)
class SingleUcb(Policy):
    """One index per client, mean reward + x sqrt(2 ln t / n_i); the best N, on random channels (Xia 2020)."""

    name: ClassVar[str] = "single-ucb"
    summary: ClassVar[str] = "one bandit index per client, random channels"

    exploration: float = 0.1

    def __post_init__(self) -> None:
        at_least("exploration", self.exploration, 0)

    def init(self, problem: Problem) -> State:
        shape = problem.quotas.shape
        return {
            **_size(problem),
            "count": np.zeros(shape, np.int64),
            "reward": np.zeros(shape),
            "deadline_s": np.full(problem.replicas, problem.deadline_s),
        }

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        clients, channels = context.available.shape[1], int(state["channels"][0])
        keys = rng.uniform(clients + channels)
        count = state["count"]
        radius = np.sqrt(2 * np.log(context.round + 1) / np.maximum(count, 1))
        index = np.where(count > 0, state["reward"] / np.maximum(count, 1) + self.exploration * radius, np.inf)
        index[~context.available] = -np.inf
        order = np.lexsort((keys[:, :clients], -index), axis=1)  # best first, ties at random
        return serve_in_order(order, np.argsort(keys[:, clients:], axis=1), context.available)

    def update(self, state: State, feedback: Feedback) -> State:
        assigned = feedback.assignment >= 0
        reward = np.where(assigned, rewards(feedback, state["deadline_s"]), 0.0)
        return {**state, "count": state["count"] + assigned, "reward": state["reward"] + reward}
