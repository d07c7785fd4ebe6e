"""The same policies and mechanisms in a real federation: Flower, over real links. Needs the extra `flower`."""

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "CommandSwitch": "switch",
    "LaneClient": "client",
    "LaneMod": "mod",
    "LaneStrategy": "strategy",
    "LaneSwitch": "switch",
    "NoSwitch": "switch",
    "PolicyRoutingSwitch": "switch",
    "Via": "switch",
    "evaluate_arrays": "weights",
    "first_arrays": "weights",
    "lane_app": "client",
    "new_ledger": "ledgers",
}

__all__ = [
    "CommandSwitch",
    "LaneClient",
    "LaneMod",
    "LaneStrategy",
    "LaneSwitch",
    "NoSwitch",
    "PolicyRoutingSwitch",
    "Via",
    "evaluate_arrays",
    "first_arrays",
    "lane_app",
    "new_ledger",
]

if TYPE_CHECKING:
    from fedlane.flower.client import LaneClient, lane_app
    from fedlane.flower.ledgers import new_ledger
    from fedlane.flower.mod import LaneMod
    from fedlane.flower.strategy import LaneStrategy
    from fedlane.flower.switch import CommandSwitch, LaneSwitch, NoSwitch, PolicyRoutingSwitch, Via
    from fedlane.flower.weights import evaluate_arrays, first_arrays


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: every message starts a process, and no side needs the other's imports."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedlane.flower' has no attribute '{name}'")
    return getattr(importlib.import_module(f"fedlane.flower.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
