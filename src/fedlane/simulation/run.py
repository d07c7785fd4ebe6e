"""Whole runs: `simulate` for one call, `Simulation` for whoever wants to follow round by round."""

import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np

from fedlane.records import DelayDistributions
from fedlane.rng import RoundStreams
from fedlane.scenario import Scenario
from fedlane.scheduling.lane import CELLS
from fedlane.scheduling.policy import Policy, SinglePolicy, lift
from fedlane.scheduling.queues import updated_queues
from fedlane.scheduling.registry import make_policy, resolved_parameters
from fedlane.simulation.results import Run, summarise
from fedlane.simulation.round import play_round
from fedlane.simulation.setup import prepare
from fedlane.simulation.trace import Trace, tables
from fedlane.validate import InputError, at_least

NO_LEARNING = "learning is not part of this version yet: the schedule alone is computed"


class Simulation:
    """A run in progress: every replica's world, the policy's state, and the trace so far."""

    def __init__(
        self, scenario: Scenario, policy: str | Policy | SinglePolicy = "lane", seeds: Sequence[int] = (0,)
    ) -> None:
        self.label = policy if isinstance(policy, str) else policy.name
        if isinstance(policy, str):
            policy = make_policy(policy, scenario.policies)
        elif isinstance(policy, SinglePolicy):
            policy = lift(policy)
        if len(seeds) == 0 or len(set(seeds)) != len(seeds):
            raise InputError(f"seeds must be at least one and all different, got {list(seeds)}")
        at_least("seed", min(seeds), 0)
        if "losses" in policy.requires:
            raise InputError(f"policy {policy.name} requires losses, which a run without learning does not have")
        self.policy = policy
        self.scenario = scenario.with_values(
            {f"policies.{policy.name}.{key}": value for key, value in resolved_parameters(policy).items()}
        )
        self.setup = prepare(scenario, seeds)
        problem = self.setup.problem
        self.quota = policy.quotas(problem)
        self.feasible_scale = self.setup.feasible_scale(self.quota)
        self.distributions: DelayDistributions | None = None
        if "distributions" in policy.requires:
            self.distributions = self.setup.air.distributions(CELLS)
        self.trace = Trace.empty(problem.replicas, problem.rounds, problem.clients, problem.channels)
        self._state = policy.init(problem)
        self._streams = RoundStreams(seeds, "policy")
        self._queue = np.zeros(problem.quotas.shape)
        self._uploads = np.zeros(problem.quotas.shape, np.int64)
        self._started = time.perf_counter()

    @property
    def round(self) -> int:
        """Rounds played so far."""
        return self.trace.rounds

    @property
    def finished(self) -> bool:
        return self.round == self.setup.problem.rounds

    def step(self) -> None:
        """Play one round in every replica."""
        available = self._uploads < self.scenario.max_uploads
        self._state, feedback = play_round(
            self.round, self.policy, self._state, self.setup.air, self._streams, available, self.distributions
        )
        self._uploads += feedback.assignment >= 0
        self._queue = updated_queues(self._queue, self.quota, feedback.punctual)
        self.trace.append(feedback, self._queue, available, self.setup.problem.deadline_s)

    def result(self) -> Run:
        """What has been played so far as a `Run`."""
        summary = summarise(
            self.label,
            resolved_parameters(self.policy),
            self.trace.played(),
            self.setup,
            self.quota,
            self.feasible_scale,
            time.perf_counter() - self._started,
        )
        return Run(scenario=self.scenario, tables=tables(self.trace, self.setup, self.quota), summary=summary)


def simulate(
    scenario: Scenario | str,
    policy: str | Policy | SinglePolicy = "lane",
    *,
    rounds: int | None = None,
    seeds: Sequence[int] = (0,),
    learning: bool = True,
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Run:
    """Run a scenario under a policy for some seeds at once; ``progress`` is called with the rounds played so far."""
    if learning:
        warnings.warn(NO_LEARNING, stacklevel=2)
    if isinstance(scenario, str):
        scenario = Scenario.load(scenario)
    if rounds is not None:
        scenario = scenario.with_values({"rounds": rounds})
    simulation = Simulation(scenario, policy, seeds)
    while not simulation.finished:
        simulation.step()
        if progress is not None:
            progress(simulation.round)
    return simulation.result()
