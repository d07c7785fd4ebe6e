"""A trial of a large run with few seeds and rounds, from which the time of the whole run is estimated."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from fedlane.scenario import Scenario
from fedlane.simulation.simulation import Simulation

TRIAL_SEEDS, TRIAL_LEARNING_SEEDS, TRIAL_ROUNDS = 16, 4, 3
TRIAL_PAIRS = 20_000
"""Client-channel pairs, over all seeds, that a trial may have."""
MANY_SEEDS, MANY_PAIR_ROUNDS, MANY_LEARNED_ROUNDS = 500, 5e7, 2e4
"""A run is large from this number of seeds, of pairs x rounds x seeds, or of learned rounds x seeds."""


def is_large(scenario: Scenario, seeds: int, *, learning: bool) -> bool:
    """Return whether a run is long enough to be tried briefly first; a trial takes a second or two."""
    rounds = seeds * scenario.rounds
    pairs = scenario.network.clients * scenario.network.channels
    return seeds >= MANY_SEEDS or rounds * pairs >= MANY_PAIR_ROUNDS or (learning and rounds >= MANY_LEARNED_ROUNDS)


@dataclass(frozen=True)
class _Times:
    """Seconds that a small run takes to be prepared, and that one of its rounds takes."""

    preparation_s: float
    round_s: float


def estimated_seconds(scenario: Scenario, policy: str, seeds: Sequence[int], *, learning: bool, device: str) -> float:
    """Estimate how long a run takes here, in seconds.

    Times are measured with one seed and with several; the part that grows with the number of seeds is extrapolated.
    The writing of results is not included.

    Args:
        scenario: The scenario.
        policy: The policy's name.
        seeds: The seeds.
        learning: Whether the model is trained.
        device: "cpu" or "cuda".
    """
    pairs = scenario.network.clients * scenario.network.channels
    few = min(TRIAL_LEARNING_SEEDS if learning else TRIAL_SEEDS, len(seeds), max(1, TRIAL_PAIRS // pairs))
    changes: dict[str, object] = {"rounds": min(scenario.rounds, TRIAL_ROUNDS)}
    if scenario.privacy.mechanism != "none":  # the whole run's uploads, so that the noise stays the same
        changes["privacy.max_uploads"] = tuple(scenario.max_uploads.tolist())
    small = scenario.with_values(changes)

    def measured(count: int) -> _Times:
        started = time.perf_counter()
        simulation = Simulation(small, policy, seeds[:count], learning=learning, device=device)
        prepared = time.perf_counter()
        while not simulation.finished:
            simulation.step()
        rounds_s = time.perf_counter() - prepared
        return _Times(prepared - started, rounds_s / simulation.round)

    measured(1)  # compiles, calibrates and loads the data
    single, several = measured(1), measured(few)
    more = (len(seeds) - 1) / max(few - 1, 1)

    def extrapolated(one_seed_s: float, several_s: float) -> float:
        return one_seed_s + more * max(several_s - one_seed_s, 0.0)

    return extrapolated(single.preparation_s, several.preparation_s) + scenario.rounds * extrapolated(
        single.round_s, several.round_s
    )
