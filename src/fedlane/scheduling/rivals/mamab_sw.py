"""`mamab-om` with a sliding window, after SW-UCB.

Garivier and Moulines, *On Upper-Confidence Bound Policies for Non-Stationary Bandit Problems* (2008, arXiv 0805.3415):
counts and mean rewards are those of the last W rounds, W = 4 sqrt(T ln T) in their experiments. The bonus is the one of
`mamab-om` on these counts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedlane.records import Context, Feedback, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.mamab import MamabOm
from fedlane.scheduling.policy import fitting_state
from fedlane.scheduling.ranges import ParameterRange, Tunable
from fedlane.scheduling.rivals.recent_rounds import (
    append_recent,
    check_recent,
    empty_recent,
    recent_statistics,
)
from fedlane.validate import at_least


@dataclass(frozen=True)
class MamabSw(MamabOm):
    """`mamab-om` on the statistics of the last ``window`` rounds; 0 stands for 4 sqrt(T ln T)."""

    name: ClassVar[str] = "mamab-sw"
    summary: ClassVar[str] = "mamab-om on a sliding window of rounds (Garivier and Moulines 2008)"
    ranges: ClassVar[Mapping[str, Tunable]] = {
        **MamabOm.ranges,
        "window": ParameterRange(10, 1000, "log", integer=True),
    }

    window: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("window", self.window, 0)

    def rows(self, problem: Problem) -> int:
        """Return the number of rounds in the window, at most all."""
        published = math.ceil(4 * math.sqrt(problem.rounds * math.log(max(problem.rounds, 2))))
        return max(1, min(self.window or published, problem.rounds))

    def init(self, problem: Problem) -> State:
        """Return an empty record of rounds."""
        return empty_recent(problem, self.rows(problem))

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Select as `mamab-om` does, with the statistics of the window."""
        return super().select(recent_statistics(state, context.problem.clients), context, rng)

    def update(self, state: State, feedback: Feedback) -> State:
        """Record the round."""
        append_recent(state, feedback)
        return state

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the record."""
        state = fitting_state(self.init(problem), state)
        check_recent(state, problem)
        return state
