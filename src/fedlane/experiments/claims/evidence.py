"""What the paper's claims are judged by: comparisons over seeds, and the stored cells and networks behind them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedlane.experiments.figures import label
from fedlane.experiments.regret_and_timing import assignment_of, mean_rewards
from fedlane.experiments.reproduce import BASELINES, BOTH, PAPER, ReproductionPlan
from fedlane.experiments.store import Experiment, ResultStore
from fedlane.network import Network
from fedlane.records import FloatArray, IntArray
from fedlane.simulation.setup import prepare
from fedlane.simulation.summary import interval
from fedlane.theory.regret import Gaps, gaps, pseudo_regret, queue_stability

KINDS = ("mamab-om", "mamab-gmba")
STEPS = ((1, 10), (10, 100))
UCB = BASELINES[2:]
POINT = 0.01
"""One point of accuracy: less counts as nothing."""
LITTLE = 0.05
"""A loss of delay that counts as little."""
LEAKAGE = 12.05
CALIBRATED, LITERAL = "calibrated", "literal"
NETWORK_SEEDS = 20
"""Seeds whose networks are sampled for the mean rewards."""
ONLY = {"fashion-mnist": "F", "cifar10": "C"}
"""Tasks as letters, in the labels of cases."""


class NotComputedError(Exception):
    """What a claim needs is not in the store."""


@dataclass(frozen=True)
class Case:
    """One comparison: a number a seed whose mean must lie above (or below) a bound, with its whole 95% interval."""

    label: str
    values: FloatArray
    """(S,): paired by seed."""
    policy: str = ""
    """The paper's policy that it is about, where that matters."""
    bound: float = 0.0
    below: bool = False

    @cached_property
    def interval(self) -> tuple[float, float, float]:
        """Mean, low and high end of the Student interval over seeds."""
        found = interval(self.values)
        mean, low, high = found["mean"], found["low"], found["high"]
        if mean is None or low is None or high is None:
            raise NotComputedError("an interval needs two seeds")
        return mean, low, high

    @property
    def margin(self) -> float:
        """From the interval's nearer end to the bound; positive where the case holds."""
        _, low, high = self.interval
        return self.bound - high if self.below else low - self.bound

    @property
    def holds(self) -> bool:
        return self.margin > 0


@dataclass(frozen=True)
class Finding:
    """What the judging of a claim found."""

    cases: Sequence[Case]
    """By the calibrated reading, at every V."""
    literal: Callable[[], Sequence[Case]] | None = None
    """The same with the paper's own exploration bonus (reading 11)."""
    free_v: bool = False
    """The paper does not say which V: V = 100 decides where not all do (reading 14)."""
    alternative: tuple[int, Sequence[Case]] | None = None
    """A reading that may save the claim, and its cases."""
    note: str = ""


@dataclass(frozen=True)
class Schedules:
    """The schedules of a cell, a row for each seed."""

    delay_s: FloatArray
    """(S, T)"""
    assigned: FloatArray
    """(S, U): share of rounds."""
    punctual: FloatArray
    quota: FloatArray
    growth: FloatArray
    """(S,): how fast the queues grew at the end, a round."""

    @property
    def total_s(self) -> FloatArray:
        """(S,): D, the cumulative delay."""
        return np.asarray(self.delay_s.sum(axis=1))

    def shortfall(self, of: str) -> FloatArray:
        """(S,): by how much the shares of rounds, assigned or punctual, miss the quotas, mean over clients."""
        share = self.assigned if of == "assigned" else self.punctual
        return np.asarray(np.maximum(self.quota - share, 0.0).mean(axis=1))

    def within(self, budget_s: float) -> FloatArray:
        """(S,): K, the rounds completed within a total time."""
        return np.asarray((np.cumsum(self.delay_s, axis=1) <= budget_s).sum(axis=1), np.float64)


@dataclass(frozen=True)
class Networks:
    """The true networks of some seeds of a task."""

    network: Network
    mu: FloatArray
    """(S, U, N): mean reward E[max(1 - d / d_max, 0)], so that d_max (1 - mu) is the mean of min(d, d_max)."""


@dataclass(frozen=True)
class Rewards:
    """What a policy made of its networks."""

    regret: FloatArray
    """(S, T): missed in each round, mu* minus the smallest mean reward of the assigned."""
    chosen: FloatArray
    """(S,): mean over rounds and assigned pairs of their mean reward."""
    error: FloatArray
    """(S, 3): mean error of the sample means over all pairs after T/4, T/2 and T rounds; 0 for a pair never tried."""


class Evidence:
    """Lookups in a store for a plan; each is made once."""

    def __init__(self, plan: ReproductionPlan, store: ResultStore) -> None:
        self.plan, self.store = plan, store
        self._schedules: dict[Experiment, Schedules] = {}
        self._curves: dict[Experiment, tuple[FloatArray, FloatArray]] = {}
        self._networks: dict[str, Networks] = {}
        self._rewards: dict[Experiment, Rewards] = {}

    def tasks(self, both: bool = True) -> Iterator[tuple[str, str]]:
        """The plan's tasks and their letters; Fashion-MNIST alone for the figures that show no other."""
        wanted = [task for task in (BOTH if both else BOTH[:1]) if task in self.plan.tasks]
        if not wanted:
            raise NotComputedError("the plan leaves the task out")
        return ((task, ONLY[task]) for task in wanted)

    def schedules(self, cell: Experiment) -> Schedules:
        if cell not in self._schedules:
            seeds = self.plan.seeds(cell)
            self._need("schedule", cell, seeds)
            results = [self.store.result(cell, seed) for seed in seeds]
            self._schedules[cell] = Schedules(
                np.stack([result.delay_s for result in results]),
                np.stack([result.share("assigned") for result in results]),
                np.stack([result.share() for result in results]),
                np.stack([result.quota for result in results]),
                np.array([queue_stability(result.queue).growth for result in results]),
            )
        return self._schedules[cell]

    def total_s(self, cell: Experiment) -> FloatArray:
        return self.schedules(cell).total_s

    def accuracy(self, cell: Experiment) -> FloatArray:
        """(S, K): at the tested rounds, the first of which is before any learning to speak of."""
        return self._learned(cell)[0]

    def clock_s(self, cell: Experiment) -> FloatArray:
        """(S, K): the time at which each round was tested."""
        return self._learned(cell)[1]

    def _learned(self, cell: Experiment) -> tuple[FloatArray, FloatArray]:
        if cell not in self._curves:
            seeds = range(self.plan.learning_seeds)
            self._need("schedule", cell, seeds)
            self._need("learned", cell, seeds)
            curves = [self.store.result(cell, seed).learned for seed in seeds]
            self._curves[cell] = (
                np.concatenate([each.accuracy for each in curves if each is not None]),
                np.concatenate([each.clock_s for each in curves if each is not None]),
            )
        return self._curves[cell]

    def _need(self, kind: str, cell: Experiment, seeds: range) -> None:
        missing = self.store.missing(kind, cell, seeds)
        if missing or not seeds:
            raise NotComputedError(f"{kind} of {cell.name}: {len(missing)} of {len(seeds)} seeds missing")

    def _network_seeds(self) -> range:
        return range(min(NETWORK_SEEDS, max(self.plan.delay_seeds, self.plan.learning_seeds)))

    def networks(self, task: str) -> Networks:
        """The networks of the base setting, which all policies share."""
        if task not in self._networks:
            base, seeds = Experiment(task, "random"), self._network_seeds()
            mu = np.stack([mean_rewards(base, seed) for seed in seeds])
            self._networks[task] = Networks(prepare(base.scenario(), seeds).network, mu)
        return self._networks[task]

    def rewards(self, cell: Experiment) -> Rewards:
        """Regret, choice and estimates of a policy in the base setting; its delays are played again."""
        if cell not in self._rewards:
            self._need("schedule", cell, self._network_seeds())
            results = [self.store.result(cell, seed) for seed in self._network_seeds()]
            networks = self.networks(cell.task)
            mu = networks.mu
            assignment = np.stack([assignment_of(result) for result in results])
            regret = [pseudo_regret(mean, chosen) for mean, chosen in zip(mu, assignment, strict=True)]
            chosen = [_mean_of_chosen(mean, each) for mean, each in zip(mu, assignment, strict=True)]
            self._rewards[cell] = Rewards(
                np.diff(np.stack(regret), axis=1, prepend=0.0),
                np.array(chosen),
                _estimate_error(networks, assignment),
            )
        return self._rewards[cell]

    def gaps(self, task: str) -> list[Gaps]:
        """Theorem 4's gaps of each network."""
        return [gaps(mean) for mean in self.networks(task).mu]


def _mean_of_chosen(mu: FloatArray, assignment: IntArray) -> float:
    """The mean reward (U, N) of the pairs that were assigned, (T, U)."""
    round, client = np.nonzero(assignment >= 0)
    return float(mu[client, assignment[round, client]].mean())


def _estimate_error(networks: Networks, assignment: IntArray) -> FloatArray:
    """(S, 3): mean |sample mean - mu| after a quarter, half and all of the rounds, (S, T, U) assigned."""
    count, total = np.zeros_like(networks.mu), np.zeros_like(networks.mu)
    rounds, errors = assignment.shape[1], []
    for t in range(rounds):
        replica, client = np.nonzero(assignment[:, t] >= 0)
        pair = replica, client, assignment[replica, t, client]
        delay_s = networks.network.delays(t, assignment[:, t]).total_s[replica, client]
        count[pair] += 1
        total[pair] += np.maximum(1.0 - delay_s / networks.network.deadline_s, 0.0)
        if t + 1 in (rounds // 4, rounds // 2, rounds):
            errors.append(np.abs(total / np.maximum(count, 1) - networks.mu).mean(axis=(1, 2)))
    return np.stack(errors, axis=1)


def less(name: str, small: FloatArray, large: FloatArray, policy: str = "") -> Case:
    """small < large, as a share of large's mean; seeds are paired."""
    return Case(name, (large - small) / large.mean(), policy)


def mean_accuracy(e: Evidence, cell: Experiment) -> FloatArray:
    return e.accuracy(cell).mean(axis=1)


def both_readings(cases: Callable[[str], list[Case]], free_v: bool = False) -> Finding:
    return Finding(cases(CALIBRATED), lambda: cases(LITERAL), free_v=free_v)


def accuracy_above(e: Evidence, both: bool, setting: str, others: Sequence[str], reading: str) -> list[Case]:
    return [
        Case(
            f"{letter} {label(policy)} over {label(other)}",
            mean_accuracy(e, Experiment(task, policy, setting, reading))
            - mean_accuracy(e, Experiment(task, other, setting)),
            policy,
        )
        for task, letter in e.tasks(both)
        for policy in PAPER
        for other in others
    ]


def final_note(e: Evidence, both: bool, setting: str, others: Sequence[str]) -> str:
    cases = [
        Case(
            "",
            e.accuracy(Experiment(task, policy, setting))[:, -1] - e.accuracy(Experiment(task, other, setting))[:, -1],
        )
        for task, _ in e.tasks(both)
        for policy in PAPER
        for other in others
    ]
    return f"final accuracy: {counted(cases)} hold"


def delay_falls_with_v(
    e: Evidence, both: bool, setting: str, reading: str, steps: Sequence[tuple[int, int]] = STEPS
) -> list[Case]:
    return [
        less(
            f"{letter} {label(kind)} V={high} below V={low}",
            e.total_s(Experiment(task, f"{kind}:V={high}", setting, reading)),
            e.total_s(Experiment(task, f"{kind}:V={low}", setting, reading)),
        )
        for task, letter in e.tasks(both)
        for kind in KINDS
        for low, high in steps
    ]


def shortfall_rises(
    e: Evidence, both: bool, kinds: Sequence[str], setting: str, reading: str, of: str = "assigned"
) -> list[Case]:
    """With every step of V the quota shortfall of assigned (or punctual) shares rises and the delay falls."""
    cases = []
    for task, letter in e.tasks(both):
        for kind in kinds:
            for low, high in STEPS:
                small, large = (e.schedules(Experiment(task, f"{kind}:V={v}", setting, reading)) for v in (low, high))
                name = f"{letter} {setting} {label(kind)} V={low} to {high}"
                cases.append(Case(f"{name}, shortfall", large.shortfall(of) - small.shortfall(of)))
                cases.append(less(f"{name}, delay", large.total_s, small.total_s))
    return cases


def shortfall_note(cases: Sequence[Case], punctual: Sequence[Case]) -> str:
    found = f"shortfall rises {counted(cases[::2])}, delay falls {counted(cases[1::2])}"
    return f"{found}; by punctual shares shortfall rises {counted(punctual[::2])}"


def correlation(a: FloatArray, b: FloatArray) -> FloatArray:
    """(S,): of each row of two arrays (S, n); 0 where one does not vary."""
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    scale = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return np.asarray(np.divide((a * b).sum(axis=1), scale, out=np.zeros(len(a)), where=scale > 0))


def time_to(accuracy: FloatArray, clock_s: FloatArray, target: float, otherwise: FloatArray) -> FloatArray:
    """(S,): when accuracy (S, K) first reaches the target."""
    reached = accuracy >= target
    first = np.take_along_axis(clock_s, reached.argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.where(reached.any(axis=1), first, otherwise)


def counted(cases: Sequence[Case]) -> str:
    return f"{sum(case.holds for case in cases)} of {len(cases)}"
