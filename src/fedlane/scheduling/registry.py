"""Policies by name: ``name``, ``name:key=value,...``, or a third party's ``package.module:Class``."""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any

from fedlane.scheduling.baselines import Random, RoundRobin, SingleUcb
from fedlane.scheduling.genie import Genie
from fedlane.scheduling.lane import Lane
from fedlane.scheduling.mamab import MamabGmba, MamabOm
from fedlane.scheduling.policy import Policy, SinglePolicy, lift
from fedlane.validate import InputError, nearest, unknown

PolicyClass = type[Policy] | type[SinglePolicy]

_policies: dict[str, PolicyClass] = {
    policy.name: policy for policy in (Lane, MamabOm, MamabGmba, Random, RoundRobin, SingleUcb, Genie)
}


def register(policy: PolicyClass) -> PolicyClass:
    """Make a policy known by its ``name``; usable as a class decorator. Packages may instead declare an entry point
    in the group ``fedlane.policies``."""
    _policies[policy.name] = policy
    return policy


def policies() -> dict[str, PolicyClass]:
    """Every known policy by name: built in, registered, and declared by installed packages."""
    known = dict(_policies)
    for entry in entry_points(group="fedlane.policies"):
        known.setdefault(entry.name, entry.load())
    return known


def parameters(policy: PolicyClass) -> dict[str, Any]:
    """A policy's parameters and their defaults."""
    try:
        return {field.name: field.default for field in fields(policy)}  # type: ignore[arg-type]
    except TypeError:  # not a dataclass: no parameters
        return {}


def split_name(text: str) -> tuple[str, dict[str, str]]:
    """``name:key=value,key=value`` as name and inline parameters; an import path keeps its own colon."""
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


def make_policy(text: str, settings: Mapping[str, Mapping[str, Any]] | None = None) -> Policy:
    """The policy that a user named. Inline parameters beat ``settings[name]``, which beat the policy's defaults."""
    name, inline = split_name(text)
    known = policies()
    settings = settings or {}
    for other in settings:
        if other not in known and other != name:
            raise InputError(f"unknown policy 'policies.{other}'{nearest(other, known)}")
    chosen = known.get(name) or _import(name, known)
    defaults = parameters(chosen)
    values = {**settings.get(name, {}), **inline}
    for key in values:
        if key not in defaults:
            raise InputError(f"policy {name} has no parameter '{key}'{nearest(key, defaults)}")
    try:
        policy = chosen(**{key: _converted(name, key, value, defaults[key]) for key, value in values.items()})
    except InputError as error:
        raise InputError(f"policy {name}: {error}") from None
    return lift(policy) if isinstance(policy, SinglePolicy) else policy


def resolved_parameters(policy: Policy) -> dict[str, Any]:
    """The parameters a policy object runs with."""
    subject = getattr(policy, "single", policy)
    return {key: getattr(subject, key) for key in parameters(type(subject))}


def _converted(name: str, key: str, value: Any, default: Any) -> Any:
    """A parameter in the type of its default."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[str(value).lower()]
        number = type(default)(value)
        if isinstance(number, float) and number - number != 0:
            raise ValueError
        return number
    except (ValueError, KeyError):
        kind = {float: "a finite number", int: "a whole number", bool: "true or false"}.get(type(default), "text")
        raise InputError(f"policy {name}: {key} must be {kind}, got '{value}'") from None


def _import(name: str, known: Mapping[str, PolicyClass]) -> PolicyClass:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise unknown("policy", name, known)
    sys.path.insert(0, "")  # a file in the current folder, as `python -m` would find it
    try:
        loaded = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's own module may fail in any way
        raise InputError(f"policy '{name}' cannot be imported: {error}") from error
    finally:
        sys.path.remove("")
    if not (isinstance(loaded, type) and issubclass(loaded, Policy | SinglePolicy)):
        raise InputError(f"policy '{name}' must be a subclass of Policy or SinglePolicy")
    return loaded
