"""One frozen, validated object that is the config file, the command line's ``--set`` and the header of every result."""

import contextlib
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedlane.records import FloatArray, IntArray
from fedlane.scenario.text import explain, parse_value, to_toml
from fedlane.validate import InputError, unknown

Finite = Annotated[float, Field(allow_inf_nan=False)]
Decibel = Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
OneOrPerClient = Positive | Annotated[tuple[Positive, ...], Field(min_length=1)]
Epsilon = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Line = tuple[Finite, Finite]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rates = tuple[tuple[Positive, ...], ...]

_PRESETS = resources.files("fedlane").joinpath("scenario", "presets")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class NetworkSettings(_Section):
    """The air interface (paper, Sections II-A and VI)."""

    clients: Count = 10
    channels: Count = 4
    area_m: Positive = 2000.0
    bandwidth_up_hz: Positive = 15e3
    bandwidth_down_hz: Positive = 15e3
    power_up_dbm: Decibel = 23.0
    power_down_dbm: Decibel = 23.0
    noise_dbm: Decibel = -107.0
    path_loss_db: Decibel = 128.1
    path_loss_slope_db: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 37.6
    min_distance_m: Positive = 10.0
    fading: Literal["none", "rayleigh"] = "none"
    interference_db: tuple[Decibel, Decibel] = (-5.0, 10.0)
    payload_bits: Positive | Literal["model"] = 5000.0
    deadline_s: Positive = 5.0
    rates_mbps: Rates | tuple[Rates, ...] | None = None
    """Links of known rates instead of a radio: clients x channels, or a list of those, one for each round in turn."""
    floor_s: NotNegative | tuple[NotNegative, NotNegative] = 0.0
    """What the federation's software adds to every delay on such links; two values: uniform between them."""

    @model_validator(mode="after")
    def _ordered(self) -> "NetworkSettings":
        if self.interference_db[0] > self.interference_db[1]:
            raise ValueError(
                f"interference_db must be [low, high] with low at most high, got {list(self.interference_db)}"
            )
        if isinstance(self.floor_s, tuple) and self.floor_s[0] > self.floor_s[1]:
            raise ValueError(f"floor_s must be [low, high] with low at most high, got {list(self.floor_s)}")
        if self.rates_mbps is None:
            if self.floor_s != 0.0:
                raise ValueError("floor_s needs rates_mbps: a radio's delays have no floor")
            return self
        table = np.empty((0, 0))
        with contextlib.suppress(ValueError):  # rows of unlike lengths
            table = np.array(self.rates_mbps, np.float64)
        if table.ndim not in (2, 3) or not table.size or table.shape[-2:] != (self.clients, self.channels):
            raise ValueError(
                f"rates_mbps must be clients x channels ({self.clients} x {self.channels}) numbers, or a list of those"
            )
        return self


class ComputeSettings(_Section):
    """Local computation (paper, Section II-B): frequency uniform between two lines offset + slope * i, i from 1."""

    frequency_low_hz: Line = (10e3, 10e3)
    frequency_high_hz: Line = (30e3, 100e3)
    cycles_per_sample: OneOrPerClient = 3.0
    seconds: OneOrPerClient | None = None
    """Measured time of local training, instead of cycles over frequency."""


class DataSettings(_Section):
    """The data set and how it is spread over the clients (reading 17)."""

    dataset: Literal["fashion-mnist", "cifar10", "fashion-mnist-mini"] = "fashion-mnist"
    partition: Literal["dominant", "dirichlet", "shards", "iid"] = "dominant"
    noniid_degree: Share = 0.8
    imbalance: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0


class LearningSettings(_Section):
    """Local training (reading 16)."""

    model: str = "mlp"
    learning_rate: Positive = 0.1
    clip_norm: Positive = 1.0
    batch_size: Count | Annotated[tuple[Count, ...], Field(min_length=1)] = 64
    local_iterations: Count = 5
    evaluate_every: Count = 10


class PrivacySettings(_Section):
    """What each client agreed to: epsilon per round (`paper`) or over the whole horizon (`rigorous`)."""

    mechanism: Literal["none", "paper", "rigorous"] = "paper"
    epsilon: Epsilon | Annotated[tuple[Epsilon, ...], Field(min_length=1)] | Literal["nonuniform"] = 25.0
    delta: OneOrPerClient = 1e-3
    max_uploads: Count | Annotated[tuple[Count, ...], Field(min_length=1)] | Literal["rounds"] = "rounds"
    theta_noise: Literal["paper", "sqrt_d"] = "paper"
    histogram_noise: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 10.0
    least_noise: Positive = 0.5

    @model_validator(mode="after")
    def _delta_below_one(self) -> "PrivacySettings":
        if np.max(self.delta) >= 1:
            raise ValueError(f"delta must be less than 1, got {np.max(self.delta):g}")
        return self


class Scenario(_Section):
    """Everything that defines a run but its seeds and its policy."""

    name: str = "scenario"
    rounds: Count = 500
    network: NetworkSettings = NetworkSettings()
    compute: ComputeSettings = ComputeSettings()
    data: DataSettings = DataSettings()
    learning: LearningSettings = LearningSettings()
    privacy: PrivacySettings = PrivacySettings()
    policies: dict[str, dict[str, str | bool | int | Finite]] = {}

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
        return self

    @classmethod
    def load(cls, name_or_path: str | Path) -> "Scenario":
        """A preset by name, or a TOML file."""
        text = str(name_or_path)
        if text in presets():
            return cls._from_toml(
                resources.files("fedlane").joinpath("scenario", "presets", f"{text}.toml").read_text(), text
            )
        path = Path(text)
        if not path.is_file():
            if path.suffix == ".toml" or "/" in text:
                raise InputError(f"scenario file {text} does not exist")
            raise unknown("scenario", text, presets())
        try:
            return cls._from_toml(path.read_text(encoding="utf-8"), path.stem)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"scenario file {text} cannot be read: {error}") from error

    @classmethod
    def _from_toml(cls, text: str, name: str) -> "Scenario":
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"scenario {name} is not valid TOML: {error}") from error
        return cls.from_values({"name": name, **values})

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Scenario":
        """From nested plain values; a wrong one is an `InputError` that names field, value and bound."""
        try:
            return cls.model_validate(_plain(values))
        except ValidationError as error:
            raise InputError(explain(error, cls)) from None

    def with_values(self, changes: Mapping[str, Any]) -> "Scenario":
        """A copy with some values changed, by dotted name: ``with_values({"network.clients": 20})``."""
        values = self.model_dump()
        for key, value in changes.items():
            *path, last = key.split(".")
            table = values
            for part in path:
                table = table.setdefault(part, {})
                if not isinstance(table, dict):
                    raise InputError(f"unknown key '{key}': '{part}' has no keys below it")
            table[last] = value
        return self.from_values(values)

    def with_settings(self, settings: Sequence[str]) -> "Scenario":
        """A copy with the command line's ``--set key=value`` applied."""
        return self.with_values(dict(parse_value(setting) for setting in settings))

    def to_toml(self) -> str:
        """The whole scenario, every value resolved; `load` gives it back."""
        return to_toml(self.model_dump())

    def per_client(self, value: float | tuple[float, ...]) -> FloatArray:
        """A one-or-per-client field as an array (U,)."""
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (self.network.clients,)).copy()

    @property
    def epsilon(self) -> FloatArray:
        """(U,): every client's epsilon; "nonuniform" is the paper's scheme, eps_i = 5 (floor((i - 1) / 2) + 3)."""
        if self.privacy.epsilon == "nonuniform":
            return self.per_client(tuple(5.0 * (i // 2 + 3) for i in range(self.network.clients)))
        return self.per_client(self.privacy.epsilon)

    @property
    def max_uploads(self) -> IntArray:
        """(U,): the most uploads each client may be charged for in this run."""
        limit = self.privacy.max_uploads
        return self.per_client(self.rounds if limit == "rounds" else limit).astype(np.int64)


def presets() -> list[str]:
    """Names of the scenarios that come with the package."""
    return sorted(file.name.removesuffix(".toml") for file in _PRESETS.iterdir() if file.name.endswith(".toml"))


def _plain(value: Any) -> Any:
    """Lists become tuples and NumPy scalars Python numbers, as the strict model wants them."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return tuple(_plain(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value
