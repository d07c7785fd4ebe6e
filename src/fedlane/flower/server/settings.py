"""The settings of `LaneStrategy` in two groups: how rounds are scheduled, and what is accepted from nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

from fedlane.scheduling.policy import BatchPolicy, Policy
from fedlane.validate import LARGEST_WEIGHT, InputError, at_least, positive


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """How `LaneStrategy` schedules its rounds.

    Attributes:
        lanes: Number of lanes; at most one client uses a lane in a round.
        deadline_s: Seconds from sending a round's orders until replies are too late.
        policy: A policy's name, with optional parameters (`"mamab-om:V=10"`), or a policy object.
        quotas: Each client's minimum share of rounds by name, 0 for the others. By default quotas follow from the label
            counts and noise that the clients release.
        min_clients: Number of clients to wait for before the first round.
        local_iterations: Training steps of an order; by default each client's own number.
        evaluate_every: Number of rounds between evaluations; the model is also evaluated after the last round.
        seed: Seed of the policy's random numbers.
        losses: Whether clients report their losses (`LaneClient(report_losses=True)`), for a policy that requires them.

    Examples:
        >>> from fedlane.flower import ScheduleSettings
        >>> ScheduleSettings(lanes=3, deadline_s=15.0).policy
        'lane'
    """

    lanes: int
    deadline_s: float
    policy: str | BatchPolicy | Policy = "lane"
    quotas: Mapping[str, float] | None = None
    min_clients: int = 1
    local_iterations: int | None = None
    evaluate_every: int = 1
    seed: int = 0
    losses: bool = False

    def __post_init__(self) -> None:
        at_least("lanes", self.lanes, 1)
        positive("deadline_s", self.deadline_s)
        at_least("min_clients", self.min_clients, 1)
        at_least("evaluate_every", self.evaluate_every, 1)
        if self.local_iterations is not None:
            at_least("local_iterations", self.local_iterations, 1)
        for name, quota in (self.quotas or {}).items():
            if not 0 <= quota <= 1:
                raise InputError(f"quotas[{name!r}] must be at least 0 and at most 1, got {quota}")


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """Which nodes and which updates `LaneStrategy` accepts.

    Attributes:
        capacity: Maximum number of clients, including those that have left.
        trust_names: Whether a name may move to a new node while its old node is not connected. Without node
            authentication, a restarted node has a new id. Any admitted node can then take the name of a client that
            is away; the name returns when the old node id comes back.
        max_update_norm: Largest norm of an update; by default it follows the norms of the clients' updates.
        max_weight: Largest absolute weight of the model. `LaneClient` refuses a model with weights above the default,
            so raise it only for clients with your own training function.

    Examples:
        >>> from fedlane.flower import GuardSettings
        >>> GuardSettings(max_update_norm=5.0).capacity
        64
    """

    capacity: int = 64
    trust_names: bool = False
    max_update_norm: float | None = None
    max_weight: float = LARGEST_WEIGHT

    def __post_init__(self) -> None:
        at_least("capacity", self.capacity, 1)
        positive("max_weight", self.max_weight)
        if self.max_update_norm is not None:
            positive("max_update_norm", self.max_update_norm)


class SettingsByKeyword(TypedDict, total=False):
    """The fields of both groups as keyword arguments."""

    lanes: int
    deadline_s: float
    policy: str | BatchPolicy | Policy
    quotas: Mapping[str, float] | None
    min_clients: int
    local_iterations: int | None
    evaluate_every: int
    seed: int
    losses: bool
    capacity: int
    trust_names: bool
    max_update_norm: float | None
    max_weight: float


def grouped(
    schedule: ScheduleSettings | None, guard: GuardSettings | None, keywords: Mapping[str, Any]
) -> tuple[ScheduleSettings, GuardSettings]:
    """Return both groups, with the fields that ``keywords`` names replaced; raise `TypeError` for an unknown name."""
    scheduled = {field.name for field in fields(ScheduleSettings)}
    guarded = {field.name for field in fields(GuardSettings)}
    for name in keywords:
        if name not in scheduled | guarded:
            raise TypeError(f"LaneStrategy.__init__() got an unexpected keyword argument '{name}'")
    timing = {name: value for name, value in keywords.items() if name in scheduled}
    limits = {name: value for name, value in keywords.items() if name in guarded}
    return (
        ScheduleSettings(**timing) if schedule is None else replace(schedule, **timing),
        replace(guard or GuardSettings(), **limits),
    )
