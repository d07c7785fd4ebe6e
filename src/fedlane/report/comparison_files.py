"""Reading the comparison that `fedlane compare` saved."""

import json
from pathlib import Path
from typing import Any

from fedlane.files import read_regular
from fedlane.validate import InputError, printable

NAME = "comparison.json"
LARGEST_BYTES = 100_000_000
"""Largest comparison.json that is read."""


def read_comparison(folder: Path) -> dict[str, Any]:
    """Read the comparison that `fedlane compare` saved in a folder.

    Raises:
        InputError: There is no comparison.json, or it is damaged.
    """
    path = folder / NAME
    try:
        content: dict[str, Any] = printable(json.loads(read_regular(path, LARGEST_BYTES)))
        if not isinstance(content, dict) or not content["runs"]:
            raise InputError(f"{path} was not written by FedLane: it must list runs")
    except RecursionError:
        raise InputError(f"{path} is damaged: its values are nested too deeply") from None
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return content


def compared_folders(folder: Path) -> list[str]:
    """Names of the run folders in a comparison's folder, in the order in which the policies were given."""
    runs = read_comparison(folder)["runs"] if (folder / NAME).is_file() else []
    return [str(run.get("folder")) for run in runs if isinstance(run, dict)]
