"""A policy that notes in a file how often it was started, and that can kill its process."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from fedlane.scheduling.baselines import Random

COUNTED = "support.counted_policy:Counted"
"""The name of the policy on the command line."""


@dataclass(frozen=True)
class Counted(Random):
    """`random`, which appends a line to the file $COUNTED_LOG whenever a simulation starts."""

    name = "counted"
    tag: int = 0
    kill: bool = False

    def init(self, problem):
        log = os.environ.get("COUNTED_LOG")
        if log and problem.rounds > 0 and problem.quotas.any():  # the memory estimate asks for a state without quotas
            with Path(log).open("a") as file:
                file.write(f"{self.tag}\n")
        return super().init(problem)

    def select(self, state, context, rng):
        flag = os.environ.get("KILL_ONCE")
        if self.kill and flag and not Path(flag).exists():
            Path(flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kill and os.environ.get("KILL_ALWAYS"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().select(state, context, rng)
