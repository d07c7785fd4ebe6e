"""FedLane: fast and private federated learning over wireless channels."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from fedlane.moved import MovedModules

__version__ = "0.1.0"

_HOME = {
    "BatchPolicy": "fedlane.scheduling",
    "Choice": "fedlane.scheduling",
    "Policy": "fedlane.scheduling",
    "Run": "fedlane.simulation",
    "Scenario": "fedlane.scenario",
    "Simulation": "fedlane.simulation.run",
    "check_policy": "fedlane.rounds",
    "greedy_matching": "fedlane.matching",
    "max_min_matching": "fedlane.matching",
    "make_policy": "fedlane.scheduling",
    "policies": "fedlane.scheduling",
    "presets": "fedlane.scenario",
    "register": "fedlane.scheduling",
    "simulate": "fedlane.simulation",
    "sweep": "fedlane.experiments.sweep",
}

__all__ = [
    "BatchPolicy",
    "Choice",
    "Policy",
    "Run",
    "Scenario",
    "Simulation",
    "__version__",
    "check_policy",
    "greedy_matching",
    "make_policy",
    "max_min_matching",
    "policies",
    "presets",
    "register",
    "simulate",
    "sweep",
]

sys.meta_path.append(MovedModules())

if TYPE_CHECKING:
    from fedlane.experiments.sweep import sweep
    from fedlane.matching import greedy_matching, max_min_matching
    from fedlane.rounds import check_policy
    from fedlane.scenario import Scenario, presets
    from fedlane.scheduling import BatchPolicy, Choice, Policy, make_policy, policies, register
    from fedlane.simulation import Run, simulate
    from fedlane.simulation.run import Simulation


def __getattr__(name: str) -> Any:
    """Load a name on first use, so that parts of the package work without the dependencies of others."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedlane' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
