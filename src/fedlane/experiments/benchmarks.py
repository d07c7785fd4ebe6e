"""Speed, measured beside a reference in the same run: the driver of `fedlane bench`.

One thread throughout: nothing measured here starts another. Times are the best of several, since other work on the
machine can only add to them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedlane.matching import max_min_matching
from fedlane.records import Context
from fedlane.rng import RoundStreams
from fedlane.scenario import Scenario
from fedlane.scheduling.lane import CELLS
from fedlane.simulation.run import Simulation


@dataclass(frozen=True)
class Figure:
    """One measured figure, as text for a table."""

    what: str
    measured: str
    reference: str
    ratio: str
    bound: str


def matching() -> list[Figure]:
    """`max_min_matching` against SciPy's `linear_sum_assignment` on the same matrix."""
    rng = np.random.default_rng(0)
    max_min_matching(rng.random((2, 10, 4)))  # compile
    figures = []
    for clients, channels, bound_effect in ((1000, 100, 1.0), (10_000, 1000, 0.1)):
        plain = rng.random((clients, channels))
        for name, matrix, bound in (
            ("a uniform effect per client", plain + rng.random((clients, 1)), bound_effect),
            ("plain uniform", plain, 1.0),
        ):
            ours, scipy = best_of(
                5, partial(max_min_matching, matrix), partial(linear_sum_assignment, matrix, maximize=True)
            )
            figures.append(
                Figure(
                    what=f"max_min_matching, {clients:,} x {channels:,}, {name}",
                    measured=f"{ours * 1e3:.2f} ms",
                    reference=f"SciPy linear_sum_assignment {scipy * 1e3:.2f} ms",
                    ratio=f"{ours / scipy:.3f}",
                    bound=f"at most {bound:g}",
                )
            )
    batch = rng.random((10_000, 10, 4))
    ours, scipy = best_of(
        3, lambda: max_min_matching(batch), lambda: [linear_sum_assignment(m, maximize=True) for m in batch]
    )
    figures.append(
        Figure(
            what="max_min_matching, a batch of 10,000 of 10 x 4, each",
            measured=f"{ours * 1e2:.2f} us",
            reference=f"SciPy linear_sum_assignment in a loop {scipy * 1e2:.2f} us",
            ratio=f"{ours / scipy:.3f}",
            bound="at most 10 us",
        )
    )
    return figures


def schedule() -> list[Figure]:
    """Whole schedules: many replicas at once against one at a time; and the time of single decisions."""
    paper = Scenario.load("paper-fmnist")
    figures = []
    for policy in ("mamab-om", "lane"):
        _run(paper.with_values({"rounds": 20}), policy, [0])  # compile
        together = _run(paper, policy, range(200))
        alone = np.mean([_run(paper, policy, [seed]) for seed in range(5)])
        figures.append(
            Figure(
                what=f"{policy}, paper-fmnist, 200 replicas x 500 rounds, setup and delays included",
                measured=f"{together:.2f} s",
                reference=f"one replica at a time {200 * alone:.1f} s",
                ratio=f"{together / (200 * alone):.3f}",
                bound="under 5 s" if policy == "mamab-om" else "",
            )
        )
    small, large = decision_s(100, 10), decision_s(1000, 100)
    figures.append(
        Figure(
            what="lane, one decision at 1,000 clients x 100 channels, every pair known (slowest of 20)",
            measured=f"{large * 1e3:.1f} ms",
            reference=f"100 x 10: {small * 1e3:.2f} ms",
            ratio=f"{large / small:.1f}",
            bound="at most 50 ms",
        )
    )
    return figures


def decision_s(clients: int, channels: int) -> float:
    """The slowest of 20 decisions of `lane` in a network where it has seen every pair five times: the hard case."""
    scenario = Scenario.load("paper-fmnist").with_values(
        {
            "rounds": 1,
            "network.clients": clients,
            "network.channels": channels,
            "compute.frequency_low_hz": [20e3, 0.0],
            "compute.frequency_high_hz": [200e3, 0.0],
            "compute.cycles_per_sample": 0.3 * clients,
        }
    )
    simulation = Simulation(scenario, "lane", [0])
    truth = simulation.setup.air.distributions(CELLS)
    pairs = clients * channels
    state = {
        **simulation.policy.init(simulation.setup.problem),
        "count": np.full((1, clients, channels), 5, np.int32),
        "success": np.rint(5 * truth.success).astype(np.int32),
        "reward": 5 * truth.cdf.mean(axis=3),
        "slot": np.arange(pairs, dtype=np.int32).reshape(1, clients, channels),
        "slots": np.array([pairs]),
        "history": (5 * truth.cdf).astype(np.float32).reshape(1, pairs, CELLS),
    }
    rng = np.random.default_rng(0)
    streams = RoundStreams([0], "policy")
    times = []
    for round in range(21):
        state["queue"] = rng.exponential(5.0, (1, clients))
        context = Context(round, np.ones((1, clients), np.bool_))
        start = time.perf_counter()
        state["previous"] = simulation.policy.select(state, context, streams.at(round))
        times.append(time.perf_counter() - start)
    return max(times[1:])


def best_of(repeats: int, *calls: Callable[[], object]) -> list[float]:
    """The shortest time of each call in seconds, the calls taking turns so that a noisy moment hits all alike."""
    best = [np.inf] * len(calls)
    for _ in range(repeats):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - start)
    return best


def _run(scenario: Scenario, policy: str, seeds: range | list[int]) -> float:
    start = time.perf_counter()
    simulation = Simulation(scenario, policy, seeds)
    while not simulation.finished:
        simulation.step()
    simulation.result()
    return time.perf_counter() - start
