"""Tuned values: the file in which `fedlane arena tune` stores every trial and the chosen one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from fedlane.files import read_regular
from fedlane.validate import InputError

NAME = "tuned.json"
FORMAT = 1
MAX_BYTES = 10_000_000


@dataclass(frozen=True)
class TunedValues:
    """The content of a file of tuned values.

    Attributes:
        source: Where it comes from, for error messages.
        content: The file: ``seeds``, ``worlds``, ``objective`` and, by policy, ``version``, ``trials`` and ``chosen``.
    """

    source: str = "no tuning"
    content: Mapping[str, Any] = field(default_factory=dict)

    @property
    def policies(self) -> Mapping[str, Any]:
        """The file's entry for each policy."""
        return dict(self.content.get("policies", {}))

    def parameters(self, policy: str, version: int) -> dict[str, Any] | None:
        """Return the tuned parameters of a policy; None if it was not tuned or its default was best.

        Args:
            policy: The policy's name or import path.
            version: Version of the policy's results; values of another version are refused.

        Raises:
            InputError: The values belong to another version of the policy, or the file is damaged.
        """
        entry = self.policies.get(policy)
        if entry is None:
            return None
        try:
            if entry["version"] != version:
                raise InputError(
                    f"{self.source} has values for version {entry['version']} of {policy}, and this is version "
                    f"{version}: tune it again with fedlane arena tune --policy {policy}"
                )
            return dict(entry["trials"][entry["chosen"]]["parameters"])
        except (KeyError, TypeError, IndexError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.source} is damaged: {policy} has no valid choice") from error


def shipped_values() -> TunedValues:
    """Return the tuned values that come with the package."""
    text = (resources.files("fedlane.experiments.arena") / NAME).read_text(encoding="utf-8")
    return TunedValues(f"the package's {NAME}", json.loads(text))


def read_tuned(path: Path) -> TunedValues:
    """Read a file of tuned values, or the one in a folder of `fedlane arena tune`.

    Raises:
        InputError: The file is missing or damaged, or has another format.
    """
    file = path / NAME if path.is_dir() else path
    try:
        content = json.loads(read_regular(file, MAX_BYTES))
        if content["format"] != FORMAT:
            raise InputError(f"{file} has format {content['format']}, this version reads {FORMAT}")
        dict(content["policies"])
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"tuned values {file} do not exist: fedlane arena tune writes them") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{file} is damaged: {error}") from error
    return TunedValues(str(file), content)


def parameter_text(policy: str, parameters: Mapping[str, Any]) -> str:
    """Return a policy with parameters as one text, for example ``mamab-om:V=10.0,T0=50``."""
    values = ",".join(f"{key}={value}" for key, value in parameters.items())
    return f"{policy}:{values}" if values else policy
