"""Measured regret compared with Theorem 4, and measured decision times (Section V-C)."""

import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedlane.experiments.labels import LINE_STYLES, policy_label
from fedlane.experiments.reproduce import FIGURES, ReproductionPlan
from fedlane.experiments.store import Experiment, Result, ResultStore
from fedlane.matching import greedy_matching, max_min_matching
from fedlane.records import FloatArray, IntArray
from fedlane.report.paper_figures import Line, Panel
from fedlane.rng import generator
from fedlane.scheduling.registry import make_policy, resolved_parameters
from fedlane.simulation.setup import prepare
from fedlane.theory import gaps, pseudo_regret, regret_bound

REGRET_SEEDS = 20
CLIENTS = (10, 20, 50, 100, 200, 500, 1000)
"""Numbers of clients U timed with N = 10 channels."""
CHANNELS = (2, 5, 10, 20, 50, 100, 200)
"""Numbers of channels N timed with U = 400 clients."""
_TITLE_WIDTH = 58
_NETWORKS_PER_CALL, _INSTANCES, _REPETITIONS = 32, 5, 7


def mean_rewards(experiment: Experiment, seed: int) -> FloatArray:
    """(U, N): E[max{1 - d_ij / d_max, 0}] of every pair, estimated from 10,000 draws; the array is read-only.

    The rewards depend on the network only, so all policies of a setting share them.
    """
    return _mean_rewards(experiment.task, experiment.setting, experiment.reading, seed)


@lru_cache(maxsize=1024)
def _mean_rewards(task: str, setting: str, reading: str, seed: int) -> FloatArray:
    network = prepare(Experiment(task, "random", setting, reading).scenario(), [seed]).network
    # The mean over [0, d_max] of P(d <= x) is the mean reward, so one cell of the distribution is enough.
    rewards = network.distributions(1).cdf[0, :, :, 0]
    rewards.setflags(write=False)
    return rewards


def assignment_of(result: Result) -> IntArray:
    """(T, U): channel of each client, -1 for none."""
    assignment = np.full((len(result.client), len(result.quota)), -1, np.int64)
    round, channel = np.nonzero(result.client >= 0)
    assignment[round, result.client[round, channel]] = channel
    return assignment


def regret_panels(plan: ReproductionPlan, store: ResultStore) -> list[Panel]:
    """Cumulative pseudo-regret (reading 15): the paper's policies, and the others with the best of the paper's.

    Theorem 4's bound is drawn for each of the paper's policies, which are the only ones it covers, if it is not
    vacuous for any seed; otherwise the first panel's title says why it is vacuous.
    """
    experiments = [experiment for experiment in FIGURES["fig-regret"].scheduled if experiment.task in plan.tasks]
    if not experiments:
        return []
    rounds = np.arange(1.0, store.rounds + 1)
    paper: dict[str, Line] = {}
    others: dict[str, Line] = {}
    promises: list[Promise] = []
    for experiment in experiments:
        results = {seed: store.result(experiment, seed) for seed in plan.seeds(experiment)[:REGRET_SEEDS]}
        regret = np.stack([pseudo_regret(mean_rewards(experiment, s), assignment_of(r)) for s, r in results.items()])
        colour, dash = LINE_STYLES[experiment.policy]
        line = Line(rounds, regret, colour, dash)
        if not experiment.policy.startswith("mamab"):
            others[policy_label(experiment.policy)] = line
            continue
        paper[policy_label(experiment.policy)] = line
        bounds = [promised_regret(experiment, seed, result) for seed, result in results.items()]
        promises += bounds
        if all(promise.vacuous is None for promise in bounds):
            values = np.stack([promise.bound for promise in bounds])
            paper[f"Theorem 4, {policy_label(experiment.policy)}"] = Line(rounds, values, colour, 2)
    best = min(paper, key=lambda name: float(paper[name].values[:, -1].mean()))
    title = "\n".join(["The paper's policies", *textwrap.wrap(_why_vacuous(promises), _TITLE_WIDTH)])
    axes = ("round", "cumulative pseudo-regret")
    comparison = Panel("The others, and the best of the paper's", *axes, {best: paper[best], **others})
    return [Panel(title, *axes, paper), comparison]


@dataclass(frozen=True)
class Promise:
    """Theorem 4's bound for one run."""

    room: float
    """Delta_min minus the run's largest queue; the theorem requires it to be positive."""
    bound: FloatArray
    """(T,): bound on the regret after each round."""
    vacuous: str | None
    """Why the bound is vacuous after the last round; None if it is not."""


def promised_regret(experiment: Experiment, seed: int, result: Result) -> Promise:
    """Theorem 4 for one run of a policy of the paper, with that run's Delta_min, Delta_max and largest queue."""
    scenario, run_gaps = experiment.scenario(), gaps(mean_rewards(experiment, seed))
    trade_off = float(resolved_parameters(make_policy(experiment.policy, scenario.policies))["V"])
    queue = float(result.queue.max())
    bounds = [
        regret_bound(
            run_gaps,
            clients=scenario.network.clients,
            channels=scenario.network.channels,
            V=trade_off,
            rounds=t,
            largest_queue=queue,
        )
        for t in range(1, len(result.delay_s) + 1)
    ]
    return Promise(run_gaps.smallest - queue, np.array([bound.value for bound in bounds]), bounds[-1].vacuous)


def _why_vacuous(promises: Sequence[Promise]) -> str:
    """Say in how many runs Theorem 4 is vacuous, and why it is in the run that comes closest to its condition."""
    vacuous = [promise for promise in promises if promise.vacuous is not None]
    if not vacuous:
        return ""
    closest = max(vacuous, key=lambda promise: promise.room)
    return f"Theorem 4's bound is vacuous in {len(vacuous)} of {len(promises)} runs: in the closest, {closest.vacuous}"


def complexity_panels() -> list[Panel]:
    """Decision times of the matchings of OM and GMBA against U and N, log-log, with fitted exponents.

    Estimates are random. A call decides for many networks at once, to limit Python's overhead. This takes two seconds.
    """
    return [
        _complexity_panel("U", [(clients, 10) for clients in CLIENTS], "10 channels", "clients U"),
        _complexity_panel("N", [(400, channels) for channels in CHANNELS], "400 clients", "channels N"),
    ]


def _complexity_panel(axis: str, sizes: Sequence[tuple[int, int]], fixed: str, x_label: str) -> Panel:
    x = np.array([clients if axis == "U" else channels for clients, channels in sizes], np.float64)
    times = np.stack([_decision_times(clients, channels) for clients, channels in sizes], axis=2)
    lines = {
        f"{name}, {axis}^{exponent(x, values.mean(axis=0)):.2f}": Line(x, values, colour)
        for colour, (name, values) in enumerate(zip(("OM", "GMBA"), times, strict=True))
    }
    return Panel(f"Decision time, {fixed}", x_label, "seconds a decision", lines, log=True)


def exponent(x: FloatArray, y: FloatArray) -> float:
    """The exponent k of y = c x^k, fitted by least squares on logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _decision_times(clients: int, channels: int) -> FloatArray:
    """(2, S): seconds per decision of OM and GMBA: medians over repetitions on each of S sets of networks."""
    rng = generator(0, "complexity", clients * 1_000_000 + channels)
    times = np.empty((2, _INSTANCES))
    for s in range(_INSTANCES):
        estimates = rng.random((_NETWORKS_PER_CALL, clients, channels))
        order = np.argsort(rng.random((_NETWORKS_PER_CALL, clients)), axis=1)
        times[:, s] = (
            _median_s(lambda e=estimates: max_min_matching(e)),  # type: ignore[misc]
            _median_s(lambda e=estimates, o=order: greedy_matching(e, o)),  # type: ignore[misc]
        )
    return times / _NETWORKS_PER_CALL


def _median_s(call: Callable[[], object]) -> float:
    call()  # compile, and warm up the caches
    seconds = []
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))
