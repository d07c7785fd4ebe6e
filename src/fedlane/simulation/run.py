"""Whole runs in one call."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np

from fedlane.scenario import Scenario
from fedlane.scheduling.policy import BatchPolicy, Policy
from fedlane.simulation.results import Run
from fedlane.simulation.setup import learning_task
from fedlane.simulation.simulation import Simulation
from fedlane.trackers import Tracker, Tracking
from fedlane.validate import InputError, ScenarioWarning, at_least

__all__ = ["Simulation", "learning_task", "seed_list", "simulate"]


def seed_list(seeds: int | Sequence[int]) -> Sequence[int]:
    """Return the seeds 0 to K-1 for a number K, and a list of seeds as it is.

    Raises:
        InputError: The number is less than 1.
    """
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        at_least("seeds", seeds, 1)
        return range(seeds)
    if isinstance(seeds, bool | float | str) or not hasattr(seeds, "__len__"):
        raise InputError(f"seeds must be a number of seeds or a list of seeds, got {seeds!r}")
    return seeds


def simulate(
    scenario: Scenario | str,
    policy: str | BatchPolicy | Policy = "lane",
    *,
    rounds: int | None = None,
    seeds: int | Sequence[int] = (0,),
    learning: bool = True,
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
    trackers: Sequence[Tracker] = (),
) -> Run:
    """Simulate a scenario under a policy, for several seeds together.

    Args:
        scenario: A scenario, a preset's name or the path of a TOML file.
        policy: A policy's name, with or without parameters (``mamab-om:V=10``), or a policy object.
        rounds: Number of rounds, instead of the scenario's.
        seeds: One seed per replica, all different; a number K stands for the seeds 0 to K-1.
        learning: Whether to train the model; if False, only the schedule is computed.
        device: Where the model is trained: ``cpu`` or ``cuda``.
        progress: Called after every round with the number of rounds played so far.
        trackers: Objects that log the run (see `fedlane.trackers`).

    Returns:
        The tables, the summary and the model of the run.

    Raises:
        InputError: If the scenario, the policy or the seeds are invalid.

    Examples:
        >>> from fedlane import simulate
        >>> run = simulate("quickstart", "lane", rounds=50, seeds=[0, 1], learning=False)
        >>> run.summary["rounds"], sorted(run.summary["cumulative_delay_s"])
        (50, ['high', 'low', 'mean'])
    """
    if isinstance(scenario, str):
        scenario = Scenario.load(scenario)
    if rounds is not None:
        scenario = scenario.with_values({"rounds": rounds})
    simulation = Simulation(scenario, policy, seed_list(seeds), learning=learning, device=device, bounded=True)
    if simulation.caution is not None:
        warnings.warn(simulation.caution, stacklevel=2)
    if (remark := simulation.setup.delta_remark) is not None:
        warnings.warn(remark, ScenarioWarning, stacklevel=2)
    tracking = Tracking(trackers)
    with tracking.closing():
        tracking.start(simulation.scenario, simulation.label, simulation.info.seeds, round=simulation.round)
        simulation.play(tracking, None if progress is None else lambda: progress(simulation.round))
        result = simulation.result()
        tracking.end(result.summary, "finished")
    return result
