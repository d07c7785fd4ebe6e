"""What the paper leaves open, as axes: each has named levels, and a level is a set of values of the scenario."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedlane.validate import unknown

Values = Mapping[str, Any]
"""Values of a scenario by key, as `Scenario.with_values` takes them."""


@dataclass(frozen=True)
class Axis:
    """One thing that the paper leaves open.

    Attributes:
        name: Its name in tables.
        levels: Scenario values by the name of the level, in order.
        preset: The level of the preset `paper-fmnist`.
    """

    name: str
    levels: Mapping[str, Values]
    preset: str

    def values(self, level: str) -> Values:
        """Return the scenario values of a level.

        Raises:
            InputError: The axis has no such level.
        """
        if level not in self.levels:
            raise unknown(f"level of {self.name}", level, self.levels)
        return self.levels[level]


def _exploration(value: float) -> Values:
    return {f"policies.{policy}.exploration": value for policy in ("mamab-om", "mamab-gmba")}


AXES = (
    Axis("payload", {f"{kbit} kbit": {"network.payload_bits": 1e3 * kbit} for kbit in (1, 2, 5, 10)}, "5 kbit"),
    Axis("cycles", {f"{phi:g}": {"compute.cycles_per_sample": phi} for phi in (0.5, 1.0, 2.0, 3.0, 4.5, 6.0)}, "3"),
    Axis(
        "frequency",
        {
            "100i+30": {"compute.frequency_high_hz": [30e3, 100e3]},
            "10i+30": {"compute.frequency_high_hz": [30e3, 10e3]},
        },
        "100i+30",
    ),
    Axis(
        "interference",
        {
            "low": {"network.interference_db": [-15.0, 0.0]},
            "middle": {"network.interference_db": [-5.0, 10.0]},
            "high": {"network.interference_db": [5.0, 20.0]},
        },
        "middle",
    ),
    Axis("samples", {"800": {"data.samples_per_client": 800}, "all": {"data.samples_per_client": "all"}}, "all"),
    Axis("exploration", {"0.03": _exploration(0.03), "0.1": _exploration(0.1), "literal": _exploration(1.0)}, "0.1"),
    Axis("fading", {fading: {"network.fading": fading} for fading in ("none", "rayleigh")}, "none"),
    Axis("quota noise", {noise: {"privacy.theta_noise": noise} for noise in ("paper", "sqrt_d")}, "paper"),
    Axis("Single-UCB", {"CS-UCB-Q": {}, "index": {}}, "CS-UCB-Q"),
    Axis("rounds", {str(rounds): {"rounds": rounds} for rounds in (250, 500, 1000)}, "500"),
)
"""The axes of the map. The paper leaves these values out, except two that it prints, the bonus (`literal`) and the end
of the frequency range (100i + 30); these are varied because calibration or a slip is likely."""
OLD_UCB = {
    "single-ucb:beta=0.01": "ucb-index:exploration=0.01",
    "single-ucb:beta=0.1": "ucb-index:exploration=0.1",
}
"""Policies that replace the two Single-UCB baselines in readings without a fairness queue."""


@dataclass(frozen=True)
class PaperReading:
    """One way to fill in what the paper leaves open: a level on every axis.

    Attributes:
        name: Its name in the map and in stored results.
        levels: The level on each axis, in the order of `AXES`.
    """

    name: str
    levels: tuple[str, ...]

    @property
    def rounds(self) -> int:
        """Number of rounds T."""
        return int(self.values()["rounds"])

    def values(self) -> dict[str, Any]:
        """Return the values that the reading gives to a scenario."""
        joined: dict[str, Any] = {}
        for axis, level in zip(AXES, self.levels, strict=True):
            joined.update(axis.values(level))
        return joined

    def policy(self, policy: str) -> str:
        """Return the policy that plays the part of one of the paper's policies under this reading."""
        old_rule = self.level("Single-UCB") == "index"
        return OLD_UCB.get(policy, policy) if old_rule else policy

    def level(self, axis: str) -> str:
        """Return the level on the named axis."""
        return self.levels[[candidate.name for candidate in AXES].index(axis)]


PRESET = PaperReading("preset", tuple(axis.preset for axis in AXES))
"""The reading of the preset `paper-fmnist`: one point of the map."""
