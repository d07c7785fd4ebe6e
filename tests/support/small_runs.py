"""Scenarios whose privacy costs nothing to account for, and runs of them."""

from fedlane import Scenario, Simulation

UNSAMPLED = Scenario.load("quickstart").with_values({"learning.batch_size": 800})
"""The preset `quickstart` with all 800 records of a client in every sample: epsilon has a closed form."""
UNPROTECTED = Scenario.load("quickstart").with_values({"privacy.mechanism": "none"})
"""The preset `quickstart` without privacy."""
PAPER = Scenario.load("paper-fmnist").with_values({"privacy.mechanism": "none"})
"""The paper's network without privacy."""


def played(scenario, policy="lane", seeds=(0, 1), **options):
    """Play a run in memory; ``options`` are those of `Simulation`."""
    simulation = Simulation(scenario, policy, seeds, **options)
    simulation.play()
    return simulation
