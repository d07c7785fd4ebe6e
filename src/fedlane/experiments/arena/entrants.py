"""The entrants of the arena: policies with published defaults and with tuned values, their leagues, and yardsticks."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedlane.experiments.arena.tuned import TunedValues, parameter_text
from fedlane.scheduling.policy import requires_losses
from fedlane.scheduling.registry import make_policy, policies, split_name
from fedlane.validate import InputError

LEAGUES = {
    "delays": "knows the delays of its own past rounds",
    "losses": "knows delays, and the losses that clients report",
    "channels": "knows delays, and the channel state of the coming round",
}
"""Leagues by what a policy knows, in increasing order of knowledge."""
YARDSTICK = "yardstick"
"""Used in place of a league for rows that are shown but not ranked."""
YARDSTICKS = ("genie", "clairvoyant")
"""Policies that know what no server can know."""
OPTIMUM = "optimum"
"""The yardstick that is computed instead of played."""


@dataclass(frozen=True)
class Entrant:
    """A policy in the arena.

    Attributes:
        name: The policy's name, as in tables.
        policy: The policy with its parameters, as `make_policy` reads it.
        league: A key of `LEAGUES`, or `YARDSTICK`.
        tuned: Whether the parameters come from tuning.
        needs_losses: Whether it can only be played with learning.
    """

    name: str
    policy: str
    league: str
    tuned: bool = False
    needs_losses: bool = False

    @property
    def label(self) -> str:
        """The name, with a remark if the parameters are tuned."""
        return f"{self.name} (tuned)" if self.tuned else self.name


def built_in_policies() -> list[str]:
    """Return the names of FedLane's own policies, without aliases."""
    return [
        name
        for name, policy in policies().items()
        if policy.__module__.partition(".")[0] == "fedlane" and policy.name == name
    ]


def make_entrant(policy: str, *, name: str | None = None, tuned: bool = False) -> Entrant:
    """Return a policy as an entrant of its league.

    Args:
        policy: The policy's name or import path, with or without parameters.
        name: Name in tables; by default ``policy``.
        tuned: Whether the parameters come from tuning.

    Raises:
        InputError: The policy or a parameter is unknown, or the policy states a league that does not exist.
    """
    made = make_policy(policy)
    if made.knows not in LEAGUES:
        raise InputError(f"policy {policy}: knows must be one of {', '.join(LEAGUES)}, got '{made.knows}'")
    league = YARDSTICK if made.name in YARDSTICKS else made.knows
    return Entrant(name or policy, policy, league, tuned, requires_losses(made))


def entrants(names: Sequence[str], tuned: TunedValues) -> list[Entrant]:
    """Return the entrants for some policies: each with its defaults and, if there are any, with its tuned values.

    A policy that is named with parameters is one entrant, with these parameters.

    Args:
        names: The policies as the user named them.
        tuned: The tuned values by policy.

    Raises:
        InputError: A policy is unknown or named twice, or tuned values belong to another version of a policy.
    """
    if len(set(names)) < len(names):
        raise InputError(f"--policy names the same policy twice: {', '.join(names)}")
    chosen = []
    for name in names:
        plain = make_entrant(name)
        chosen.append(plain)
        values = tuned.parameters(name, make_policy(name).version) if not split_name(name)[1] else None
        if values:
            chosen.append(make_entrant(parameter_text(name, values), name=name, tuned=True))
    return chosen
