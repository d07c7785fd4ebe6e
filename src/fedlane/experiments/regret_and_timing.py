"""What the theorems promise beside what was measured: regret (Theorem 4) and decision time (Section V-C)."""

import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

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
"""U at N = 10."""
CHANNELS = (2, 5, 10, 20, 50, 100, 200)
"""N at U = 400."""
_TITLE_WIDTH = 58
_AT_ONCE, _INSTANCES, _REPETITIONS = 32, 5, 7


def mean_rewards(cell: Experiment, seed: int) -> FloatArray:
    """E[max{1 - d_ij / d_max, 0}] of every pair, (U, N), sampled: 10,000 draws a pair, read-only.

    It depends on the network alone, so that all policies of a setting share it.
    """
    return _mean_rewards(cell.task, cell.setting, cell.reading, seed)


@lru_cache(maxsize=1024)
def _mean_rewards(task: str, setting: str, reading: str, seed: int) -> FloatArray:
    network = prepare(Experiment(task, "random", setting, reading).scenario(), [seed]).network
    # The mean over [0, d_max] of P(d <= x) is the mean reward: a single cell is enough.
    rewards = network.distributions(1).cdf[0, :, :, 0]
    rewards.setflags(write=False)
    return rewards


def assignment_of(result: Result) -> IntArray:
    """(T, U): each client's channel, -1 for none."""
    assignment = np.full((len(result.client), len(result.quota)), -1, np.int64)
    round, channel = np.nonzero(result.client >= 0)
    assignment[round, result.client[round, channel]] = channel
    return assignment


def regret_panels(plan: ReproductionPlan, store: ResultStore) -> list[Panel]:
    """Cumulative pseudo-regret (reading 15) against rounds: the paper's policies, and the others beside the best.

    Theorem 4's bound is drawn for each of the paper's policies where it says something for every seed; where it does
    not, the first panel's title says why. It is not about other policies.
    """
    from fedlane.experiments.figures import LOOKS, label  # late: drawing may import this module

    cells = [cell for cell in FIGURES["fig-regret"].scheduled if cell.task in plan.tasks]
    if not cells:
        return []
    rounds = np.arange(1.0, store.rounds + 1)
    own: dict[str, Line] = {}
    others: dict[str, Line] = {}
    promises: list[Promise] = []
    for cell in cells:
        results = {seed: store.result(cell, seed) for seed in plan.seeds(cell)[:REGRET_SEEDS]}
        regret = np.stack([pseudo_regret(mean_rewards(cell, s), assignment_of(r)) for s, r in results.items()])
        colour, dash = LOOKS[cell.policy]
        line = Line(rounds, regret, colour, dash)
        if not cell.policy.startswith("mamab"):
            others[label(cell.policy)] = line
            continue
        own[label(cell.policy)] = line
        found = [promised_regret(cell, seed, result) for seed, result in results.items()]
        promises += found
        if all(promise.vacuous is None for promise in found):
            values = np.stack([promise.bound for promise in found])
            own[f"Theorem 4, {label(cell.policy)}"] = Line(rounds, values, colour, 2)
    best = min(own, key=lambda name: float(own[name].values[:, -1].mean()))
    title = "\n".join(["The paper's policies", *textwrap.wrap(_why_vacuous(promises), _TITLE_WIDTH)])
    axes = ("round", "cumulative pseudo-regret")
    beside = Panel("The others, and the best of the paper's", *axes, {best: own[best], **others})
    return [Panel(title, *axes, own), beside]


@dataclass(frozen=True)
class Promise:
    """Theorem 4 for one run."""

    room: float
    """Delta_min minus the run's largest queue: the theorem needs it positive."""
    bound: FloatArray
    """(T,): after every round."""
    vacuous: str | None
    """Why it says nothing after the last round; None where it does."""


def promised_regret(cell: Experiment, seed: int, result: Result) -> Promise:
    """Theorem 4 for one run of a policy of the paper, with the run's own Delta_min, Delta_max and largest queue."""
    scenario, found = cell.scenario(), gaps(mean_rewards(cell, seed))
    trade_off = float(resolved_parameters(make_policy(cell.policy, scenario.policies))["V"])
    queue = float(result.queue.max())
    bounds = [
        regret_bound(
            found,
            clients=scenario.network.clients,
            channels=scenario.network.channels,
            V=trade_off,
            rounds=t,
            largest_queue=queue,
        )
        for t in range(1, len(result.delay_s) + 1)
    ]
    return Promise(found.smallest - queue, np.array([bound.value for bound in bounds]), bounds[-1].vacuous)


def _why_vacuous(promises: Sequence[Promise]) -> str:
    """In how many runs Theorem 4 says nothing, and why in the one that comes closest to its condition."""
    empty = [promise for promise in promises if promise.vacuous is not None]
    if not empty:
        return ""
    closest = max(empty, key=lambda promise: promise.room)
    return f"Theorem 4's bound is vacuous in {len(empty)} of {len(promises)} runs: in the closest, {closest.vacuous}"


def complexity_panels() -> list[Panel]:
    """Decision time of the matchings behind OM and GMBA against U and N, log-log, with exponents by least squares.

    Estimates are random. A call decides for many networks at once, so that Python's share is small: two seconds in all.
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
    """k of y = c x^k, by least squares on logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _decision_times(clients: int, channels: int) -> FloatArray:
    """(2, S): seconds a decision of OM and of GMBA, each the median of repetitions on one of S sets of networks."""
    rng = generator(0, "complexity", clients * 1_000_000 + channels)
    times = np.empty((2, _INSTANCES))
    for s in range(_INSTANCES):
        estimates = rng.random((_AT_ONCE, clients, channels))
        order = np.argsort(rng.random((_AT_ONCE, clients)), axis=1)
        times[:, s] = (
            _median_s(lambda e=estimates: max_min_matching(e)),  # type: ignore[misc]
            _median_s(lambda e=estimates, o=order: greedy_matching(e, o)),  # type: ignore[misc]
        )
    return times / _AT_ONCE


def _median_s(call: Callable[[], object]) -> float:
    call()  # compiles, and warms caches
    seconds = []
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))
