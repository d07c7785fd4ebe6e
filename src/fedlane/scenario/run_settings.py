"""The table ``[run]`` of a run folder's ``scenario.toml``: what a run needs besides its scenario."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from fedlane.scenario.sections import Section
from fedlane.scenario.text import explain
from fedlane.validate import InputError

Seed = Annotated[int, Field(ge=0, lt=2**63)]


class RunSettings(Section):
    """Policy, seeds, learning and device of a run. The defaults are those of ``fedlane run``.

    Examples:
        >>> RunSettings.from_values({"policy": "mamab-om:V=10", "seeds": [0, 1]}).learning
        True
    """

    policy: str = "lane"
    """The policy as the user named it, with any parameters."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0,)
    """One seed per replica, all different."""
    learning: bool = True
    """Whether the model is trained."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Class of the device that trains the model."""

    @model_validator(mode="after")
    def _different_seeds(self) -> "RunSettings":
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds must be all different")
        return self

    @classmethod
    def from_values(cls, values: Any) -> "RunSettings":
        """Make the settings from plain values, such as those of the TOML table.

        Raises:
            InputError: A key is unknown, or a value is wrong.
        """
        if isinstance(values, Mapping) and isinstance(values.get("seeds"), list):
            values = {**values, "seeds": tuple(values["seeds"])}
        try:
            return _File.model_validate({"run": values}).run
        except ValidationError as error:
            raise InputError(explain(error, _File)) from None

    @classmethod
    def load(cls, path: str | Path) -> "RunSettings | None":
        """Read the table ``[run]`` of a scenario file.

        Args:
            path: Path of a TOML file that `Scenario.load` accepts; the name of a preset has no such table.

        Returns:
            The settings; None if the file has no such table.
        """
        if not Path(path).is_file():
            return None
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        return cls.from_values(values["run"]) if "run" in values else None


class _File(Section):
    """The file around the table, so that errors name its keys in full."""

    run: RunSettings
