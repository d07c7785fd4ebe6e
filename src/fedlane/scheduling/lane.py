"""`lane`, FedLane's own policy: a round costs its slowest member, so weigh matchings by the whole round's delay.

Each round it picks the matching that maximises

    sum_i Q_i p_ij  -  V N E[max of the assigned delays] / d_max,

the drift-plus-penalty rule with the paper's queues weighted by the chance p_ij that the assignment serves them
(reading 12). Each pair's delay distribution is learned from its own history, minus an optimism bonus; a pair never
tried is tried first. It packs slow clients together.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.records import Context, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.estimates import bonus, empty_statistics, mean, record
from fedlane.scheduling.lane_kernels import search_batch
from fedlane.scheduling.policy import Policy, check_trade_off
from fedlane.scheduling.queues import updated_queues

CELLS = 32
"""Cells over [0, d_max] in which a delay distribution is kept."""


@dataclass(frozen=True)
class Lane(Policy):
    """Drift plus penalty on the expected slowest delay, with learned distributions."""

    name: ClassVar[str] = "lane"
    summary: ClassVar[str] = "FedLane's own: queues against the expected slowest delay of the round (default)"

    V: float = 5.0
    exploration: float = 0.03
    quota_slack: float = 0.125

    def __post_init__(self) -> None:
        check_trade_off(self.V, self.exploration, self.quota_slack)

    def init(self, problem: Problem) -> State:
        replicas, clients = problem.quotas.shape
        return {
            **empty_statistics(problem),
            "queue": np.zeros((replicas, clients)),
            "quota": self.quotas(problem),
            "deadline_s": np.full(replicas, problem.deadline_s),
            "previous": np.full((replicas, clients), -1, np.int64),
            # Histories only of pairs that were tried: pair -> slot -> row of cells.
            "slot": np.full((replicas, clients, problem.channels), -1, np.int32),
            "slots": np.zeros(replicas, np.int64),
            "history": np.zeros((replicas, min(64, clients * problem.channels), CELLS), np.float32),
        }

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        count = state["count"]
        optimism = bonus(count, self.exploration)
        chance = np.minimum(mean(state["success"], count) + optimism, 1.0)
        reward = np.minimum(mean(state["reward"], count) + optimism, 1.0)
        weight = state["queue"][..., None] * chance
        first = 1e3 * (1.0 + self.V * count.shape[2] + state["queue"].max(axis=1))
        weight += np.where(count > 0, 0.0, first[:, None, None])
        assignment: IntArray = search_batch(
            weight,
            reward,
            optimism * CELLS,
            count,
            state["slot"],
            state["history"],
            context.available,
            state["previous"],
            self.V,
        )
        return assignment

    def update(self, state: State, feedback: Feedback) -> State:
        pair = record(state, feedback, state["deadline_s"])
        state = _with_slots(state, pair)
        replica, client, _ = pair
        delay = (feedback.delays.total_s / state["deadline_s"][:, None])[replica, client]
        rows = replica, state["slot"][pair]
        state["history"][rows] += cell_cdf(delay)
        return {
            **state,
            "queue": updated_queues(state["queue"], state["quota"], feedback.punctual),
            "previous": feedback.assignment,
        }


def cell_cdf(delay: FloatArray) -> FloatArray:
    """The step function 1{delay <= x} averaged over each cell, (..., CELLS); delay in units of the deadline."""
    return np.clip(np.arange(1, CELLS + 1) - delay[..., None] * CELLS, 0.0, 1.0)


def _with_slots(state: State, pair: tuple[IntArray, IntArray, IntArray]) -> State:
    """Give every pair just tried for the first time a row of its own; the table doubles when it is full."""
    fresh = state["slot"][pair] < 0
    replica, client, channel = (index[fresh] for index in pair)
    if len(replica) == 0:
        return state
    slots = state["slots"]
    added = np.bincount(replica, minlength=len(slots))
    rank = np.arange(len(replica)) - (np.cumsum(added) - added)[replica]
    state["slot"][replica, client, channel] = slots[replica] + rank
    history = state["history"]
    needed = int((slots + added).max())
    if needed > history.shape[1]:
        pairs = state["slot"].shape[1] * state["slot"].shape[2]
        more = min(pairs, max(needed, 2 * history.shape[1])) - history.shape[1]
        history = np.concatenate([history, np.zeros((len(slots), more, CELLS), np.float32)], axis=1)
    return {**state, "slots": slots + added, "history": history}
