"""The paper's baselines Random and Round Robin (Section VII; reading 14 in docs/reading-the-paper.md).

Its third baseline, Single-UCB, is in `client_ucb`.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.matching import random_matching
from fedlane.records import BoolArray, Context, Feedback, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.policy import BatchPolicy, check_within


@dataclass(frozen=True)
class Random(BatchPolicy):
    """N random clients, each on a random channel."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "random clients on random channels"

    def init(self, problem: Problem) -> State:
        """Return an empty state: nothing is learned."""
        return {}

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Draw a random matching of the available clients."""
        clients, channels = context.available.shape[1], context.problem.channels
        keys = rng.uniform(clients + channels)
        return random_matching(context.available, keys[:, :clients], keys[:, clients:])


@dataclass(frozen=True)
class RoundRobin(BatchPolicy):
    """Serves ceil(U / N) groups of clients in turn; the last group may leave channels idle.

    A group's channels rotate from one of its turns to the next. A group without available clients is skipped.
    """

    name: ClassVar[str] = "round-robin"
    summary: ClassVar[str] = "groups of clients in turn"

    def init(self, problem: Problem) -> State:
        """Start with the first group."""
        return {"turn": np.zeros(problem.replicas, np.int64)}

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Serve the next group that has an available client."""
        clients, channels = context.available.shape[1], context.problem.channels
        group_of, place = np.divmod(np.arange(clients), channels)
        groups = int(group_of[-1]) + 1
        turn, active = self._next(state["turn"], context, group_of, groups)
        served = (group_of == (turn % groups)[:, None]) & context.available & active[:, None]
        return np.where(served, (place + (turn // groups)[:, None]) % channels, -1)

    def update(self, state: State, feedback: Feedback) -> State:
        """Continue after the group that was served."""
        group_of = np.arange(feedback.channel.shape[1]) // feedback.context.problem.channels
        groups = int(group_of[-1]) + 1
        served = feedback.channel >= 0
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
