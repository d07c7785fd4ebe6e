"""Fairness for free: a policy of twelve lines that weighs the run's queues against short rounds.

python examples/drift_policy.py                                         # checks the policy, then compares it
cd examples && fedlane compare paper-fmnist --policy drift_policy:Drift --policy lane --policy random --seeds 20
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane import Policy, check_policy, simulate
from fedlane.records import Context, Feedback, IntArray, Problem, State
from fedlane.scheduling import max_sum_matching


@dataclass(frozen=True)
class Drift(Policy):
    """Drift plus penalty: the largest sum of queue x share of uploads on time + V x mean reward."""

    name: ClassVar[str] = "drift"
    summary: ClassVar[str] = "drift plus penalty with mean rewards"

    V: float = 10.0

    def init(self, problem: Problem) -> State:
        pairs = (problem.clients, problem.channels)  # as if each pair had had one perfect upload: all are tried
        return {name: np.ones(pairs) for name in ("uploads", "punctual", "reward")}

    def select(self, state: State, context: Context, rng: np.random.Generator) -> IntArray:
        value = (context.queue[:, None] * state["punctual"] + self.V * state["reward"]) / state["uploads"]
        value[~context.available] = -np.inf
        return max_sum_matching(value)

    def update(self, state: State, feedback: Feedback) -> State:
        client = np.flatnonzero(feedback.channel >= 0)
        pair = client, feedback.channel[client]
        state["uploads"][pair] += 1
        state["punctual"][pair] += feedback.punctual[client]
        state["reward"][pair] += feedback.reward[client]
        return state


if __name__ == "__main__":
    check_policy(Drift())
    for policy in (Drift(), "lane", "random"):
        result = simulate("paper-fmnist", policy, seeds=range(20), learning=False).summary
        delay_s, participation = result["cumulative_delay_s"]["mean"], result["min_participation"]["mean"]
        print(f"{result['policy']:10} {delay_s:8.0f} s of simulated time, min. participation {participation:.2f}")
