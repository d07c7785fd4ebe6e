"""Policies with one bandit index per client: CS-UCB-Q and the plain index (reading 14 in docs/reading-the-paper.md).

Both choose the clients with the largest indices and give them random channels; neither learns which channel suits a
client.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.matching import serve_in_order
from fedlane.records import Context, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.estimates import check_statistics, mean
from fedlane.scheduling.policy import BatchPolicy, check_within, updated_queues
from fedlane.scheduling.ranges import EXPLORATION, ParameterRange, Tunable
from fedlane.validate import InputError, at_least


class ClientUcb(BatchPolicy):
    """Base of the policies with one index per client: its statistics, and the choice by the index."""

    def init(self, problem: Problem) -> State:
        """Return zero counts and reward sums, each (R, U)."""
        shape = problem.quotas.shape
        return {"count": np.zeros(shape, np.int64), "reward": np.zeros(shape)}

    @abstractmethod
    def index(self, state: State, context: Context) -> FloatArray:
        """Return the index of every client, (R, U)."""

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Serve the available clients with the largest indices on random channels; ties are broken at random."""
        clients, channels = context.available.shape[1], context.problem.channels
        keys = rng.uniform(clients + channels)
        index = np.where(context.available, self.index(state, context), -np.inf)
        order = np.lexsort((keys[:, :clients], -index), axis=1)
        return serve_in_order(order, np.argsort(keys[:, clients:], axis=1), context.available)

    def update(self, state: State, feedback: Feedback) -> State:
        """Add the rewards of the assigned clients."""
        assigned = feedback.channel >= 0
        reward = np.where(assigned, feedback.reward, 0.0)
        return {"count": state["count"] + assigned, "reward": state["reward"] + reward}

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the counts and the reward sums."""
        state = super().check_state(state, problem)
        check_statistics(state, problem)
        return state


def radius(count: IntArray, round: int) -> FloatArray:
    """Return the bonus sqrt(2 ln t / n_i) with t = ``round`` + 1 and n_i = max(count, 1), (R, U)."""
    return np.asarray(np.sqrt(2 * np.log(round + 1) / np.maximum(count, 1)))


@dataclass(frozen=True)
class UcbIndex(ClientUcb):
    """The index mean reward + x sqrt(2 ln t / n_i), without quotas; clients never tried come first."""

    name: ClassVar[str] = "ucb-index"
    summary: ClassVar[str] = "one bandit index per client without quotas, random channels"
    ranges: ClassVar[Mapping[str, Tunable]] = {"exploration": EXPLORATION}

    exploration: float = 0.1

    def __post_init__(self) -> None:
        at_least("exploration", self.exploration, 0)

    def index(self, state: State, context: Context) -> FloatArray:
        """Return the index of every client, (R, U)."""
        count = state["count"]
        tried = mean(state["reward"], count) + self.exploration * radius(count, context.round)
        return np.where(count > 0, tried, np.inf)


@dataclass(frozen=True)
class CsUcbQ(ClientUcb):
    """CS-UCB-Q of Xia et al. (2020): the index (1 - beta) min(mean + sqrt(2 ln t / n_i), 1) + beta D_i(t).

    The mean of a client never tried counts as 1. The fairness queue D_i(t) = [D_i(t-1) + beta_i - b_i(t-1)]^+ grows by
    the client's quota, unless the client is absent, and falls by 1 with each selection b_i, whether or not the upload
    was punctual; D_i(0) = 0. The state holds the queue D(t-1), the selection b(t-1) and the absence in the round
    before, 0 or 1, each (R, U).
    """

    name: ClassVar[str] = "cs-ucb-q"
    summary: ClassVar[str] = "bandit index and fairness queue per client, random channels; the paper's Single-UCB"
    version: ClassVar[int] = 2  # the state of version 1 does not say who was absent
    ranges: ClassVar[Mapping[str, Tunable]] = {"beta": ParameterRange(0.01, 0.99)}

    beta: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise InputError(f"beta must be at least 0 and at most 1, got {self.beta}")

    def init(self, problem: Problem) -> State:
        """Return zero counts, reward sums and queues; nobody was selected before."""
        shape = problem.quotas.shape
        counts = {name: np.zeros(shape, np.int64) for name in ("selected", "absent")}
        return {**super().init(problem), "queue": np.zeros(shape), **counts}

    def index(self, state: State, context: Context) -> FloatArray:
        """Return the index of every client, (R, U)."""
        count = state["count"]
        tried = np.minimum(mean(state["reward"], count) + radius(count, context.round), 1.0)
        queue = self._queue(state, context.problem)
        return (1.0 - self.beta) * np.where(count > 0, tried, 1.0) + self.beta * queue

    def update(self, state: State, feedback: Feedback) -> State:
        """Add the rewards of the assigned clients, and remember the queues and who was selected."""
        queue = self._queue(state, feedback.context.problem)
        selected = (feedback.channel >= 0).astype(np.int64)
        absent = (~feedback.context.present).astype(np.int64)
        return {**super().update(state, feedback), "queue": queue, "selected": selected, "absent": absent}

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the counts, the reward sums and the queues."""
        if "queue" not in state:
            raise InputError("state.queue is missing: the former single-ucb, which had no queue, is called ucb-index")
        state = super().check_state(state, problem)
        check_within("queue", state["queue"], 0, problem.rounds * max(1.0, problem.quotas.max(initial=0.0)))
        check_within("selected", state["selected"], 0, 1)
        check_within("absent", state["absent"], 0, 1)
        return state

    def _queue(self, state: State, problem: Problem) -> FloatArray:
        """Return D(t), (R, U)."""
        return updated_queues(state["queue"], self.quotas(problem), state["selected"] > 0, state["absent"] == 0)
