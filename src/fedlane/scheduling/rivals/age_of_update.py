"""Age of update: serves the clients whose last update is oldest.

Yang, Arafa, Quek and Poor, *Age-Based Scheduling Policy for Federated Learning in Mobile Edge Networks* (2020,
arXiv 1910.14648): A_i(t+1) = 0 if client i's update arrived in round t, else A_i(t) + 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.records import BoolArray, Context, Feedback, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.policy import check_within
from fedlane.scheduling.rivals.client_choice import ClientChoice, largest


@dataclass(frozen=True)
class AgeOfUpdate(ClientChoice):
    """Serves the N available clients of largest age; ties are broken at random.

    The state holds the round of each client's last punctual upload, -1 for none.
    """

    name: ClassVar[str] = "age-of-update"
    summary: ClassVar[str] = "the clients whose last punctual update is oldest (Yang et al. 2020)"

    def init(self, problem: Problem) -> State:
        """Return empty statistics; nobody has uploaded."""
        return {**super().init(problem), "last": np.full(problem.quotas.shape, -1, np.int64)}

    def chosen(self, state: State, context: Context, rng: RoundRng) -> BoolArray:
        """Return the clients of largest age."""
        age = (context.round - state["last"]).astype(np.float64)
        keys = rng.uniform(context.available.shape[1])
        return largest(age, context.available, context.problem.channels, keys)

    def update(self, state: State, feedback: Feedback) -> State:
        """Remember who was punctual."""
        last = np.where(feedback.punctual, feedback.context.round, state["last"])
        return {**super().update(state, feedback), "last": last}

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the statistics and the rounds."""
        state = super().check_state(state, problem)
        check_within("last", state["last"], -1, problem.rounds - 1)
        return state
