"""Whole runs in one call."""

import warnings
from collections.abc import Callable, Sequence

from fedlane.scenario import Scenario
from fedlane.scheduling.policy import Policy, SinglePolicy
from fedlane.simulation.results import Run
from fedlane.simulation.setup import learning_task
from fedlane.simulation.simulation import Simulation
from fedlane.trackers import Tracker, Tracking

__all__ = ["Simulation", "learning_task", "simulate"]


def simulate(
    scenario: Scenario | str,
    policy: str | Policy | SinglePolicy = "lane",
    *,
    rounds: int | None = None,
    seeds: Sequence[int] = (0,),
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
        seeds: One seed per replica, all different.
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
    simulation = Simulation(scenario, policy, seeds, learning=learning, device=device)
    if simulation.caution is not None:
        warnings.warn(simulation.caution, stacklevel=2)
    tracking = Tracking(trackers)
    with tracking.closing():
        tracking.start(simulation.scenario, simulation.label, simulation.info.seeds, round=simulation.round)
        simulation.play(tracking, None if progress is None else lambda: progress(simulation.round))
        result = simulation.result()
        tracking.end(result.summary, "finished")
    return result
