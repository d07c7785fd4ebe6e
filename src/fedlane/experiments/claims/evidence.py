"""Evidence for the paper's claims: quantities from stored results and simulated networks, one row per seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedlane.experiments.claims.cases import NotComputedError
from fedlane.experiments.labels import BOTH_TASKS, FASHION_MNIST, TASK_LETTERS
from fedlane.experiments.long_runs import LONG_FACTOR, long_plan, long_store
from fedlane.experiments.readings.axes import PaperReading
from fedlane.experiments.regret_and_timing import assignment_of, mean_rewards
from fedlane.experiments.reproduce import ReproductionPlan
from fedlane.experiments.store import Experiment, ResultStore, under
from fedlane.network import Network
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.simulation.setup import FEASIBILITY_SAMPLES, prepare
from fedlane.theory import quota_benchmark
from fedlane.theory.regret import Gaps, gaps, pseudo_regret, queue_stability

FEASIBLE_MARGIN = 0.02
"""Share of the quotas to spare on networks that count as feasible; the probabilities come from 2,000 samples."""
NETWORK_SEEDS = 20
"""Number of seeds whose networks are sampled for the mean rewards."""


@dataclass(frozen=True)
class Schedules:
    """Schedules of an experiment, one row per seed."""

    delay_s: FloatArray
    """(S, T): duration of each round."""
    assigned: FloatArray
    """(S, U): share of rounds in which each client was assigned."""
    punctual: FloatArray
    """(S, U): share of rounds in which each client was punctual."""
    quota: FloatArray
    """(S, U)"""
    growth: FloatArray
    """(S,): growth of the longest queue per round, from the third to the last quarter of the rounds."""

    @property
    def total_s(self) -> FloatArray:
        """(S,): cumulative delay D."""
        return np.asarray(self.delay_s.sum(axis=1))

    def shortfall(self, of: str) -> FloatArray:
        """(S,): amount by which the assigned (or punctual) shares fall short of the quotas, mean over clients."""
        share = self.assigned if of == "assigned" else self.punctual
        return np.asarray(np.maximum(self.quota - share, 0.0).mean(axis=1))

    def rounds_within(self, budget_s: float) -> FloatArray:
        """(S,): rounds K completed within a time budget."""
        return np.asarray((np.cumsum(self.delay_s, axis=1) <= budget_s).sum(axis=1), np.float64)


@dataclass(frozen=True)
class Networks:
    """True networks of a task's first seeds."""

    network: Network
    mu: FloatArray
    """(S, U, N): mean reward E[max(1 - d / d_max, 0)]; the mean of min(d, d_max) is d_max (1 - mu)."""


@dataclass(frozen=True)
class Rewards:
    """Regret, choices and estimates of a policy on the true networks."""

    regret: FloatArray
    """(S, T): regret of each round, mu* minus the smallest mean reward of an assigned pair."""
    chosen: FloatArray
    """(S,): mean reward of the assigned pairs, averaged over rounds and pairs."""
    error: FloatArray
    """(S, 3): error of the sample means, averaged over all pairs, after T/4, T/2 and T rounds.

    The estimate of a pair that was never tried is 0.
    """


class Evidence:
    """Reads a plan's results from a store and caches them.

    Args:
        plan: The plan.
        store: The store.
        reading: A reading of the map; it takes the place of the calibrated one.
        long_factor: Length of the long runs relative to the store's.
    """

    def __init__(
        self,
        plan: ReproductionPlan,
        store: ResultStore,
        reading: PaperReading | None = None,
        long_factor: int = LONG_FACTOR,
    ) -> None:
        self.plan, self.store, self.reading, self.long_factor = plan, store, reading, long_factor
        self._schedules: dict[Experiment, Schedules] = {}
        self._curves: dict[Experiment, tuple[FloatArray, FloatArray]] = {}
        self._networks: dict[str, Networks] = {}
        self._rewards: dict[Experiment, Rewards] = {}

    def tasks(self, both: bool = True) -> Iterator[tuple[str, str]]:
        """The plan's tasks and their letters; only Fashion-MNIST for figures that show no other task."""
        wanted = [task for task in (BOTH_TASKS if both else (FASHION_MNIST,)) if task in self.plan.tasks]
        if not wanted:
            raise NotComputedError("the task is not part of the plan")
        return ((task, TASK_LETTERS[task]) for task in wanted)

    def read(self, experiment: Experiment) -> Experiment:
        """Return the experiment under this evidence's reading."""
        return under(experiment, self.reading)

    def schedules(self, experiment: Experiment) -> Schedules:
        """Schedules of all planned seeds."""
        experiment = self.read(experiment)
        if experiment not in self._schedules:
            seeds = self.plan.seeds(experiment)
            self._require("schedule", experiment, seeds)
            results = [self.store.result(experiment, seed) for seed in seeds]
            self._schedules[experiment] = Schedules(
                np.stack([result.delay_s for result in results]),
                np.stack([result.share("assigned") for result in results]),
                np.stack([result.share() for result in results]),
                np.stack([result.quota for result in results]),
                np.array([queue_stability(result.queue).growth for result in results]),
            )
        return self._schedules[experiment]

    def total_s(self, experiment: Experiment) -> FloatArray:
        """(S,): cumulative delay."""
        return self.schedules(experiment).total_s

    def accuracy(self, experiment: Experiment) -> FloatArray:
        """(S, K): accuracy at the tested rounds; at the first of them the model has learned little."""
        return self._learned(experiment)[0]

    def mean_accuracy(self, experiment: Experiment) -> FloatArray:
        """(S,): accuracy, mean over the tested rounds."""
        return self.accuracy(experiment).mean(axis=1)

    def clock_s(self, experiment: Experiment) -> FloatArray:
        """(S, K): simulated time of each test."""
        return self._learned(experiment)[1]

    def _learned(self, experiment: Experiment) -> tuple[FloatArray, FloatArray]:
        experiment = self.read(experiment)
        if experiment not in self._curves:
            seeds = self.plan.learned_seeds
            self._require("schedule", experiment, seeds)
            self._require("learned", experiment, seeds)
            curves = [self.store.result(experiment, seed).learned for seed in seeds]
            self._curves[experiment] = (
                np.concatenate([curve.accuracy for curve in curves if curve is not None]),
                np.concatenate([curve.clock_s for curve in curves if curve is not None]),
            )
        return self._curves[experiment]

    def _require(self, kind: str, experiment: Experiment, seeds: Sequence[int]) -> None:
        missing = self.store.missing(kind, experiment, seeds)
        if missing or not seeds:
            raise NotComputedError(f"{kind} of {experiment.name}: {len(missing)} of {len(seeds)} seeds missing")

    def _network_seeds(self) -> Sequence[int]:
        return self.plan.scheduled_seeds[:NETWORK_SEEDS]

    def networks(self, task: str) -> Networks:
        """Networks of the base setting, which all policies share."""
        if task not in self._networks:
            base, seeds = self.read(Experiment(task, "random")), self._network_seeds()
            mu = np.stack([mean_rewards(base, seed) for seed in seeds])
            self._networks[task] = Networks(prepare(base.scenario(), seeds).network, mu)
        return self._networks[task]

    def rewards(self, experiment: Experiment) -> Rewards:
        """Regret, choices and estimates of a policy in the base setting; delays are simulated again."""
        experiment = self.read(experiment)
        if experiment not in self._rewards:
            self._require("schedule", experiment, self._network_seeds())
            results = [self.store.result(experiment, seed) for seed in self._network_seeds()]
            networks = self.networks(experiment.task)
            assignment = np.stack([assignment_of(result) for result in results])
            pairs = list(zip(networks.mu, assignment, strict=True))
            regret = [pseudo_regret(mu, assigned) for mu, assigned in pairs]
            chosen = [_mean_of_chosen(mu, assigned) for mu, assigned in pairs]
            self._rewards[experiment] = Rewards(
                np.diff(np.stack(regret), axis=1, prepend=0.0),
                np.array(chosen),
                _estimate_error(networks, assignment),
            )
        return self._rewards[experiment]

    @cached_property
    def long(self) -> "Evidence":
        """Evidence from the long runs, which exist for the seeds `long_plan` and for Fashion-MNIST."""
        return Evidence(long_plan(self.plan), long_store(self.store, self.long_factor), self.reading)

    def feasible(self, task: str, slack: float) -> BoolArray:
        """(S,): whether the quotas, lowered by a slack, can be served with `FEASIBLE_MARGIN` to spare."""
        setup = prepare(self.read(Experiment(task, "random")).scenario(), self.plan.scheduled_seeds)
        scale = setup.feasible_scale((1.0 - slack) * setup.problem.quotas)
        assert scale is not None, "the paper's networks are small and stationary"
        return np.asarray(scale >= 1.0 + FEASIBLE_MARGIN)

    def regret(self, experiment: Experiment, slack: float | None) -> tuple[FloatArray, FloatArray]:
        """(S, T) regret after each round and (S,) mean reward of the benchmark, on the seeds that have a benchmark.

        The benchmark is mu*, or with a slack the best policy that serves the quotas lowered by it.
        """
        seeds, base = self.plan.scheduled_seeds, self.read(Experiment(experiment.task, "random"))
        experiment = self.read(experiment)
        self._require("schedule", experiment, seeds)
        setup = prepare(base.scenario(), seeds)
        success = setup.network.success_probability(FEASIBILITY_SAMPLES)
        use = np.ones(len(seeds), np.bool_) if slack is None else self.feasible(experiment.task, slack)
        regret, benchmark = [], []
        for r in np.flatnonzero(use).tolist():
            mu = mean_rewards(base, seeds[r])
            best = gaps(mu).best
            against = best if slack is None else quota_benchmark(mu, success[r], (1 - slack) * setup.problem.quotas[r])
            cumulative = pseudo_regret(mu, assignment_of(self.store.result(experiment, seeds[r])))
            regret.append(cumulative + np.arange(1, len(cumulative) + 1) * (against - best))
            benchmark.append(against)
        if not regret:
            raise NotComputedError("no network of the plan can serve the quotas")
        return np.stack(regret), np.array(benchmark)

    def gaps(self, task: str) -> list[Gaps]:
        """The gaps of Theorem 4 for each network."""
        return [gaps(mu) for mu in self.networks(task).mu]


def _mean_of_chosen(mu: FloatArray, assignment: IntArray) -> float:
    """Mean of the rewards mu (U, N) over the pairs of an assignment (T, U)."""
    round, client = np.nonzero(assignment >= 0)
    return float(mu[client, assignment[round, client]].mean())


def _estimate_error(networks: Networks, assignment: IntArray) -> FloatArray:
    """(S, 3): mean |sample mean - mu| after T/4, T/2 and T rounds of an assignment (S, T, U)."""
    count, total = np.zeros_like(networks.mu), np.zeros_like(networks.mu)
    rounds, errors = assignment.shape[1], []
    clock_s = np.zeros(len(assignment))  # the paper's network does not depend on it
    for t in range(rounds):
        replica, client = np.nonzero(assignment[:, t] >= 0)
        pair = replica, client, assignment[replica, t, client]
        delay_s = networks.network.delays(t, clock_s, assignment[:, t]).total_s[replica, client]
        count[pair] += 1
        total[pair] += np.maximum(1.0 - delay_s / networks.network.deadline_s, 0.0)
        if t + 1 in (rounds // 4, rounds // 2, rounds):
            errors.append(np.abs(total / np.maximum(count, 1) - networks.mu).mean(axis=(1, 2)))
    return np.stack(errors, axis=1)
