"""FedLane's policies and privacy mechanisms in a real Flower federation. Needs the extra `flower`."""

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "CommandSwitch": "client.switch",
    "GuardSettings": "server.settings",
    "LaneClient": "client",
    "LaneMod": "client.mod",
    "LaneStrategy": "server.strategy",
    "LaneSwitch": "client.switch",
    "NoSwitch": "client.switch",
    "PolicyRoutingSwitch": "client.switch",
    "ScheduleSettings": "server.settings",
    "Via": "client.switch",
    "evaluate_arrays": "client.weights",
    "first_arrays": "client.weights",
    "lane_app": "client",
    "new_ledger": "client.ledger_file",
}

__all__ = [
    "CommandSwitch",
    "GuardSettings",
    "LaneClient",
    "LaneMod",
    "LaneStrategy",
    "LaneSwitch",
    "NoSwitch",
    "PolicyRoutingSwitch",
    "ScheduleSettings",
    "Via",
    "evaluate_arrays",
    "first_arrays",
    "lane_app",
    "new_ledger",
]

if TYPE_CHECKING:
    from fedlane.flower.client.client import LaneClient, lane_app
    from fedlane.flower.client.ledger_file import new_ledger
    from fedlane.flower.client.mod import LaneMod
    from fedlane.flower.client.switch import CommandSwitch, LaneSwitch, NoSwitch, PolicyRoutingSwitch, Via
    from fedlane.flower.client.weights import evaluate_arrays, first_arrays
    from fedlane.flower.server.settings import GuardSettings, ScheduleSettings
    from fedlane.flower.server.strategy import LaneStrategy


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: every message starts a process, so unneeded imports cost time."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedlane.flower' has no attribute '{name}'")
    try:
        module = importlib.import_module(f"fedlane.flower.{_HOME[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        from fedlane.validate import missing_extra

        raise missing_extra(f"fedlane.flower.{name}", "flower") from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
