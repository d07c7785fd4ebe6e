"""A custom policy in one file: serve the client that has waited longest, on its fastest channel.

python examples/patient_policy.py                                       # checks the policy, then compares it
cd examples && fedlane compare paper-fmnist --policy patient_policy:Patient --policy lane --policy random --seeds 20
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane import Policy, check_policy, greedy_matching, simulate
from fedlane.records import Context, Feedback, IntArray, Problem, State


@dataclass(frozen=True)
class Patient(Policy):
    """Serve the longest-waiting clients first, each on its fastest free channel; untried channels come first."""

    name: ClassVar[str] = "patient"
    summary: ClassVar[str] = "longest wait first, on its fastest channel"

    optimism_s: float = 0.5  # a parameter: patient_policy:Patient:optimism_s=1

    def init(self, problem: Problem) -> State:
        pairs = (problem.clients, problem.channels)
        return {"waited": np.zeros(problem.clients), "tried": np.zeros(pairs), "delay_s": np.zeros(pairs)}

    def select(self, state: State, context: Context, rng: np.random.Generator) -> IntArray:
        tried = state["tried"]
        mean_s = state["delay_s"] / np.maximum(tried, 1)
        value = np.where(tried > 0, self.optimism_s / np.sqrt(np.maximum(tried, 1)) - mean_s, np.inf)
        value[~context.available] = -np.inf
        longest_first = np.lexsort((rng.random(len(value)), -np.where(context.available, state["waited"], -1.0)))
        return greedy_matching(value, longest_first)

    def update(self, state: State, feedback: Feedback) -> State:
        client = np.flatnonzero(feedback.channel >= 0)
        channel = feedback.channel[client]
        tried, delay_s = state["tried"].copy(), state["delay_s"].copy()
        tried[client, channel] += 1
        # The delay of a late client is +inf: nobody waits beyond the deadline.
        delay_s[client, channel] += np.minimum(feedback.delay_s[client], feedback.context.problem.deadline_s)
        return {"waited": np.where(feedback.punctual, 0.0, state["waited"] + 1), "tried": tried, "delay_s": delay_s}


if __name__ == "__main__":
    check_policy(Patient())
    for policy in (Patient(), "lane", "random"):
        result = simulate("paper-fmnist", policy, seeds=range(20), learning=False).summary
        print(f"{result['policy']:10} {result['cumulative_delay_s']['mean']:8.0f} s of simulated time")
