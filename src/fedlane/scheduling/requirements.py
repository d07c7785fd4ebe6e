"""What a policy may require of a run, and whether a run can supply it."""

from typing import TYPE_CHECKING

from fedlane.validate import InputError, nearest

if TYPE_CHECKING:
    from fedlane.scheduling.policy import Policy

REQUIREMENTS = frozenset({"channel_state", "distributions", "losses", "sizes"})
"""Everything that a policy may declare in `requires`; a simulation supplies it."""
FEDERATED = frozenset({"losses", "sizes"})
"""What a real federation can supply of it."""

LEAGUES = ("delays", "losses", "channels")
"""What a policy may know (`Policy.knows`): measured delays; losses too; the channels' state or distributions too."""


def knowledge(requires: object) -> str:
    """Return what a policy knows that requires these things: one of `LEAGUES`."""
    names = requires if isinstance(requires, frozenset | set) else frozenset()
    if names & {"channel_state", "distributions"}:
        return "channels"
    return "losses" if "losses" in names else "delays"


def check_requirements(policy: "Policy", *, learning: bool = True) -> None:
    """Raise `InputError` if a policy requires something that no run supplies, or no run without learning."""
    declared: object = policy.requires
    if not isinstance(declared, frozenset | set):
        raise InputError(f"policy {policy.name}: requires must be a set of names, got {declared!r}")
    for name in sorted(declared - REQUIREMENTS):
        known = nearest(name, REQUIREMENTS) or f": choose from {', '.join(sorted(REQUIREMENTS))}"
        raise InputError(f"policy {policy.name} requires '{name}', which no run supplies{known}")
    check_losses(policy, learning=learning)


def requires_losses(policy: "Policy") -> bool:
    """Return whether a policy schedules by the losses that clients report, so that training influences the schedule."""
    return "losses" in policy.requires


def check_losses(policy: "Policy", *, learning: bool) -> None:
    """Raise `InputError` if a policy requires losses in a run that does not train."""
    if requires_losses(policy) and not learning:
        raise InputError(
            f"policy {policy.name} requires losses, which clients report when they train: run it with learning "
            "(without --no-learning, or with learning=True)"
        )


def check_federated(policy: "Policy", *, losses: bool = False) -> None:
    """Raise `InputError` if a policy requires something that a real federation does not have.

    Args:
        policy: The policy.
        losses: Whether the operator states that clients report their losses.
    """
    if requires_losses(policy) and not losses:
        raise InputError(
            f"policy {policy.name} requires losses, which real clients do not report by default: set losses=True in "
            "LaneStrategy and report_losses=True in every LaneClient"
        )
    lacking = sorted(policy.requires - FEDERATED)
    if lacking:
        raise InputError(f"policy {policy.name} requires {', '.join(lacking)}, which a federation does not have")


def check_schedule(policy: "Policy") -> None:
    """Raise `InputError` if a policy's schedule cannot be saved, to train from it on another machine."""
    if requires_losses(policy):
        raise InputError(
            f"policy {policy.name} requires losses, so its schedule cannot be trained from later: run it with learning "
            "on the other machine (fedlane run --device)"
        )
