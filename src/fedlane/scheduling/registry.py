"""Policies by name: ``name``, ``name:key=value,...``, or an import path ``package.module:Class``."""

import functools
import importlib
import math
import sys
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fedlane.scheduling.baselines import Random, RoundRobin
from fedlane.scheduling.client_ucb import CsUcbQ, UcbIndex
from fedlane.scheduling.genie import Genie
from fedlane.scheduling.lane import Lane
from fedlane.scheduling.lane_2026 import Lane2026
from fedlane.scheduling.mamab import MamabGmba, MamabOm
from fedlane.scheduling.policy import BatchPolicy, Policy, lift
from fedlane.scheduling.rivals.age_of_update import AgeOfUpdate
from fedlane.scheduling.rivals.clairvoyant import Clairvoyant
from fedlane.scheduling.rivals.fedcs import FedCs
from fedlane.scheduling.rivals.glr_cucb import GlrCucb
from fedlane.scheduling.rivals.mamab_discounted import MamabDiscounted
from fedlane.scheduling.rivals.mamab_sw import MamabSw
from fedlane.scheduling.rivals.oort import Oort
from fedlane.scheduling.rivals.power_of_choice import PowerOfChoice
from fedlane.scheduling.rivals.proportional_fair import ProportionalFair
from fedlane.scheduling.rivals.rbcs_f import RbcsF
from fedlane.scheduling.rivals.thompson import Thompson
from fedlane.scheduling.rivals.tifl import Tifl
from fedlane.validate import InputError, nearest, unknown

PolicyClass = type[BatchPolicy] | type[Policy]

_policies: dict[str, PolicyClass] = {
    policy.name: policy
    for policy in (
        *(Lane, Lane2026, MamabOm, MamabGmba, Random, RoundRobin, CsUcbQ, UcbIndex, Genie),
        *(ProportionalFair, AgeOfUpdate, FedCs, RbcsF, Thompson, MamabSw, MamabDiscounted, GlrCucb),
        *(Clairvoyant, Oort, PowerOfChoice, Tifl),
    )
}
ALIASES = {"single-ucb": CsUcbQ.name}
"""Second names of policies."""
_FORMER_PARAMETERS = {
    (CsUcbQ.name, "exploration"): f"{CsUcbQ.name} has the parameter beta; the former single-ucb is called ucb-index",
}
"""What to say about a parameter that a policy had in earlier versions."""


def register(policy: PolicyClass) -> PolicyClass:
    """Register a policy class under its ``name``; can be used as a class decorator.

    Installed packages may instead declare an entry point in the group ``fedlane.policies``.

    Args:
        policy: The class to register; it replaces any other class of the same name.

    Returns:
        The class itself.

    Examples:
        >>> from fedlane import make_policy, register
        >>> from fedlane.scheduling.baselines import Random
        >>> @register
        ... class Dice(Random):
        ...     name = "dice"
        >>> make_policy("dice").name
        'dice'
    """
    _policies[policy.name] = policy
    return policy


def policies() -> dict[str, PolicyClass]:
    """Return every policy class by name: built-in ones, registered ones, and those of installed packages.

    A policy with a second name, such as ``single-ucb`` for ``cs-ucb-q``, is returned under both.

    Examples:
        >>> from fedlane import policies
        >>> "lane" in policies()
        True
    """
    classes = dict(_policies)
    for alias, name in ALIASES.items():  # unless a user's policy has that name
        classes.setdefault(alias, classes[name])
    for entry in _installed():
        classes.setdefault(entry.name, entry.load())
    return classes


@functools.cache
def _installed() -> tuple[EntryPoint, ...]:
    """Return the policies that installed packages declare, searched once: this reads every package's metadata."""
    return tuple(entry_points(group="fedlane.policies"))


def parameters(policy: PolicyClass) -> dict[str, Any]:
    """Return the parameters of a policy class and their defaults."""
    try:
        return {field.name: field.default for field in fields(policy)}  # type: ignore[arg-type]
    except TypeError:  # not a dataclass, so it has no parameters
        return {}


def split_name(text: str) -> tuple[str, dict[str, str]]:
    """Split ``name:key=value,key=value`` into the name and its parameters; the colon of an import path is kept."""
    name, *rest = text.split(":")
    if rest and "=" not in rest[0]:
        name = f"{name}:{rest.pop(0)}"
    inline = {}
    for item in filter(None, ":".join(rest).split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"policy '{text}': '{item}' must have the form key=value")
        inline[key.strip()] = value.strip()
    return name.strip(), inline


def make_policy(text: str, settings: Mapping[str, Mapping[str, Any]] | None = None) -> BatchPolicy:
    """Return the policy that ``text`` names.

    Args:
        text: A name with optional parameters, such as ``mamab-om:V=10,T0=50``, or an import path ``module:Class``.
        settings: Parameters by policy name, as in a scenario's ``[policies.NAME]``. Parameters in ``text`` override
            them, and they override the policy's defaults.

    Returns:
        The policy; one that is written for one network runs on many.

    Raises:
        InputError: The policy or a parameter is unknown, or a value is out of bounds.

    Examples:
        >>> from fedlane import make_policy
        >>> make_policy("mamab-om:V=10").V
        10.0
    """
    name, inline = split_name(text)
    classes = policies()
    settings = settings or {}
    chosen = classes.get(name) or _import(name, classes)
    class_name = getattr(chosen, "name", name)
    for other in settings:
        if other not in classes and other not in (name, class_name):
            raise InputError(f"unknown policy 'policies.{other}'{nearest(other, classes)}")
    defaults = parameters(chosen)
    # A run's scenario has the parameters of an imported class, or of a second name, under the class's name.
    names = (class_name, *(alias for alias, of in ALIASES.items() if of == class_name), name)
    values = {key: value for other in names for key, value in settings.get(other, {}).items()} | inline
    for key in values:
        if key not in defaults:
            former = _FORMER_PARAMETERS.get((class_name, key))
            hint = f": {former}" if former else nearest(key, defaults)
            raise InputError(f"policy {name} has no parameter '{key}'{hint}")
    try:
        policy = chosen(**{key: _converted(name, key, value, defaults[key]) for key, value in values.items()})
    except InputError as error:
        raise InputError(f"policy {name}: {error}") from None
    return lift(policy)


def resolved_parameters(policy: BatchPolicy) -> dict[str, Any]:
    """Return the parameters of a policy object."""
    subject = getattr(policy, "single", policy)
    return {key: getattr(subject, key) for key in parameters(type(subject))}


def _converted(name: str, key: str, value: Any, default: Any) -> Any:
    """Convert a parameter to the type of its default."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[str(value).lower()]
        number = type(default)(value)
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError
        return number
    except (ValueError, KeyError, OverflowError):
        kind = {float: "a finite number", int: "a whole number", bool: "true or false"}.get(type(default), "text")
        raise InputError(f"{key} must be {kind}, got '{str(value)[:60]}'") from None


def _import(name: str, classes: Mapping[str, PolicyClass]) -> PolicyClass:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise unknown("policy", name, classes)
    sys.path.insert(0, "")  # find a file in the current folder, as `python -m` does
    try:
        loaded = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may fail in any way
        raise InputError(f"policy '{name}' cannot be imported: {error}") from error
    finally:
        sys.path.remove("")
    if not (isinstance(loaded, type) and issubclass(loaded, BatchPolicy | Policy)):
        raise InputError(f"policy '{name}' must be a subclass of Policy or BatchPolicy")
    return loaded
