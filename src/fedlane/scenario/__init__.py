"""Scenarios: frozen, validated settings, read from TOML files and ``--set`` options and stored with every result."""

import sys
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError, model_validator

from fedlane.records import FloatArray, IntArray
from fedlane.scenario.run_settings import RunSettings
from fedlane.scenario.sections import (
    ComputeSettings,
    Count,
    DataSettings,
    Finite,
    LearningSettings,
    NetworkSettings,
    PrivacySettings,
    Section,
)
from fedlane.scenario.text import explain, parse_value, to_toml
from fedlane.scenario.world_sections import AvailabilitySettings, EnergySettings
from fedlane.validate import InputError, ScenarioWarning, unknown

_PRESETS = resources.files("fedlane").joinpath("scenario", "presets")


class Scenario(Section):
    """Everything that defines a run except its policy and its seeds.

    Examples:
        >>> scenario = Scenario.load("quickstart").with_values({"network.clients": 20})
        >>> scenario.network.clients, scenario.rounds
        (20, 200)
    """

    name: str = "scenario"
    """Name of the scenario: the preset's, or the file's without its suffix."""
    rounds: Count = 500
    """Number of rounds."""
    network: NetworkSettings = NetworkSettings()
    """The radio network, or links of given rates."""
    compute: ComputeSettings = ComputeSettings()
    """Local computation."""
    data: DataSettings = DataSettings()
    """The data set and its partition."""
    learning: LearningSettings = LearningSettings()
    """Local training."""
    privacy: PrivacySettings = PrivacySettings(mechanism="none")
    """The privacy mechanism and the agreed budgets; without this table the mechanism is "none"."""
    availability: AvailabilitySettings = AvailabilitySettings()
    """Whether clients come and go."""
    energy: EnergySettings = EnergySettings()
    """The energy of a client's round."""
    policies: dict[str, dict[str, str | bool | int | Finite]] = Field(default_factory=dict)
    """Parameter KEY of the policy NAME, for example `policies.lane.V`; `fedlane list policies` lists them."""

    @model_validator(mode="before")
    @classmethod
    def _mechanism_of_a_table(cls, values: Any) -> Any:
        """Resolve a [privacy] table without a mechanism to "rigorous", and say so."""
        privacy = values.get("privacy") if isinstance(values, dict) else None
        if not isinstance(privacy, dict) or "mechanism" in privacy:
            return values
        name = values.get("name", "the scenario")
        _warn(f'{name} has [privacy] without a mechanism, so "rigorous" is used: epsilon holds for the whole run')
        return {**values, "privacy": {**privacy, "mechanism": "rigorous"}}

    @model_validator(mode="after")
    def _per_client(self) -> "Scenario":
        clients = self.network.clients
        for field, value in (
            ("compute.cycles_per_sample", self.compute.cycles_per_sample),
            ("compute.seconds", self.compute.seconds),
            ("learning.batch_size", self.learning.batch_size),
            ("privacy.epsilon", self.privacy.epsilon),
            ("privacy.delta", self.privacy.delta),
            ("privacy.max_uploads", self.privacy.max_uploads),
        ):
            if isinstance(value, tuple) and len(value) != clients:
                raise ValueError(f"{field} must be one value or one per client ({clients}), got {len(value)} values")
        ends = self.compute.frequency_low_hz, self.compute.frequency_high_hz
        for number in (1, clients):
            low, high = (offset + slope * number for offset, slope in ends)
            if not 0 < low <= high:
                raise ValueError(
                    "compute.frequency_low_hz must be greater than 0 and at most frequency_high_hz for every client, "
                    f"got {low:g} and {high:g} for client {number}"
                )
        if self.compute.model == "devices" and isinstance(self.learning.batch_size, tuple):
            raise ValueError('learning.batch_size must be one value for all clients with compute.model "devices"')
        return self

    @classmethod
    def load(cls, name_or_path: str | Path) -> "Scenario":
        """Load a preset or a TOML file.

        Args:
            name_or_path: Name of a preset (see `presets`), or path of a TOML file. The table ``[run]`` of a run
                folder's file is checked and left out; `RunSettings.load` reads it.

        Raises:
            InputError: There is no such preset or file, or it is not a valid scenario.
        """
        text = str(name_or_path)
        if text in presets():
            return cls._from_toml(_PRESETS.joinpath(f"{text}.toml").read_text(encoding="utf-8"), text)
        path = Path(text)
        if not path.is_file():
            raise _no_scenario(text)
        try:
            return cls._from_toml(path.read_text(encoding="utf-8"), path.stem)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"scenario file {text} cannot be read: {error}") from error

    @classmethod
    def _from_toml(cls, text: str, name: str) -> "Scenario":
        try:
            values = {"name": name, **tomllib.loads(text)}
            if "run" in values:
                RunSettings.from_values(values.pop("run"))
            return cls.from_values(values)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"scenario {name} is not valid TOML: {error}") from error
        except RecursionError:
            raise InputError(f"scenario {name} is not valid: its values are nested too deeply") from None

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Scenario":
        """Make a scenario from nested plain values, such as those of a TOML file.

        Without a table ``privacy``, the mechanism is "none". A table ``privacy`` without ``mechanism`` gets "rigorous",
        and a `ScenarioWarning` says so.

        Args:
            values: Values and tables by key; missing ones take their defaults.

        Raises:
            InputError: A value is wrong. The message names the field, the value and the bound.
        """
        try:
            return cls.model_validate(_plain(values))
        except ValidationError as error:
            raise InputError(explain(error, cls)) from None

    def with_values(self, changes: Mapping[str, Any]) -> "Scenario":
        """Return a copy with some values changed. A table changes the values that it names and keeps all others.

        A scenario without a table ``privacy`` that gets one of its values, but no mechanism, becomes "rigorous", and a
        `ScenarioWarning` says so. Another one names a changed value without effect under "none".

        Args:
            changes: New values by dotted key, such as ``{"network.clients": 20}``, or tables of new values, such as
                ``{"network": {"clients": 20}}``.

        Raises:
            InputError: A key is unknown, or a value is wrong.
        """
        return self._changed(changes.items())

    def _changed(self, changes: Iterable[tuple[str, Any]]) -> "Scenario":
        """Apply changes in turn."""
        values = self.model_dump(exclude_unset=True)
        for key, value in changes:
            *path, last = key.split(".")
            table = values
            for part in path:
                table = table.setdefault(part, {})
                if not isinstance(table, dict):
                    raise InputError(f"unknown key '{key}': '{part}' has no keys below it")
            table[last] = _merged(table.get(last), value)
        changed = self.from_values(values)
        if self.privacy.mechanism == changed.privacy.mechanism == "none":
            before = dict(self.privacy)
            idle = [name for name, value in changed.privacy if name != "mechanism" and value != before[name]]
            if idle:
                _warn(f'privacy.{idle[0]} has no effect, because privacy.mechanism is "none"')
        return changed

    def with_settings(self, settings: Sequence[str]) -> "Scenario":
        """Return a copy with ``--set`` options of the command line applied, as `with_values` does.

        Args:
            settings: Strings of the form ``key=value``, with the value in TOML.

        Raises:
            InputError: A setting is malformed, its key is unknown, or its value is wrong.
        """
        return self._changed([parse_value(setting) for setting in settings])

    def to_toml(self) -> str:
        """Return the scenario as TOML, with every value; `load` reads it back."""
        return to_toml(self.model_dump())

    def per_client(self, value: float | tuple[float, ...]) -> FloatArray:
        """Return a field that has one value, or one per client, as an array (U,)."""
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (self.network.clients,)).copy()

    @property
    def epsilon(self) -> FloatArray:
        """Each client's epsilon (U,); "nonuniform" is the paper's scheme, eps_i = 5 (floor((i - 1) / 2) + 3)."""
        if self.privacy.epsilon == "nonuniform":
            return self.per_client(tuple(5.0 * (i // 2 + 3) for i in range(self.network.clients)))
        return self.per_client(self.privacy.epsilon)

    @property
    def max_uploads(self) -> IntArray:
        """Largest number of uploads that each client may be charged for (U,)."""
        limit = self.privacy.max_uploads
        return self.per_client(self.rounds if limit == "rounds" else limit).astype(np.int64)


def presets() -> list[str]:
    """Return the names of the scenarios in the package."""
    return sorted(file.name.removesuffix(".toml") for file in _PRESETS.iterdir() if file.name.endswith(".toml"))


def _no_scenario(text: str) -> InputError:
    """The error for a scenario that is neither a preset nor a file; it names a file that may be meant."""
    path = Path(text)
    for other in (path.with_name(f"{path.name}.toml"), path.with_suffix(".toml"), path / "scenario.toml"):
        if other != path and other.is_file():
            return InputError(f"scenario file {text} does not exist (did you mean '{other}'?)")
    if path.suffix == ".toml":
        return InputError(f"scenario file {text} does not exist")
    if "/" in text or path.suffix:
        return InputError(f"scenario file {text} does not exist; scenario files end in .toml")
    return unknown("scenario", text, presets())


def _warn(text: str) -> None:
    """Issue a `ScenarioWarning` that names the caller's line instead of one of this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith((__name__, "pydantic")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, ScenarioWarning, stacklevel=level)


def _merged(before: Any, value: Any) -> Any:
    """Return ``value``; a table is merged into the table ``before``, at every depth."""
    if not isinstance(before, Mapping) or not isinstance(value, Mapping):
        return value
    return {**before, **{key: _merged(before.get(key), item) for key, item in value.items()}}


def _plain(value: Any) -> Any:
    """Convert lists to tuples and NumPy scalars to Python numbers, as the strict model requires."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return tuple(_plain(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value
