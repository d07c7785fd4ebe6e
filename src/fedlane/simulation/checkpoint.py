"""Checkpoints: all the arrays that an interrupted run needs to continue, in one file.

Random streams are not stored, because they follow from (seed, purpose, round).
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedlane.files import READ_ERRORS, load_arrays
from fedlane.validate import InputError

NAME = "checkpoint.npz"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after some of its rounds.

    Attributes:
        label: The policy as the user named it.
        seeds: One seed per replica.
        learning: Whether the run trains a model.
        arrays: The arrays by name.
    """

    label: str
    seeds: tuple[int, ...]
    learning: bool
    arrays: Mapping[str, np.ndarray[Any, Any]]

    def to_bytes(self) -> bytes:
        """Encode the checkpoint as an npz file."""
        buffer = io.BytesIO()
        self.write(buffer)
        return buffer.getvalue()

    def write(self, file: BinaryIO) -> None:
        """Write the checkpoint as an npz file, without a copy in memory."""
        header = {
            "_label": np.array(self.label),
            "_seeds": np.array(self.seeds, np.int64),
            "_learning": np.array(self.learning),
        }
        np.savez(file, allow_pickle=False, **header, **self.arrays)

    @classmethod
    def load(cls, folder: Path) -> "Checkpoint":
        """Read the checkpoint of a run folder; raise `InputError` if it is missing or damaged."""
        path = folder / NAME
        if not path.is_file():
            finished = " (the run is finished)" if (folder / "status.json").is_file() else ""
            raise InputError(f"{folder} cannot be resumed: {NAME} is missing{finished}")
        try:
            arrays = load_arrays(path)
            return cls(
                label=str(arrays.pop("_label")),
                seeds=tuple(int(seed) for seed in arrays.pop("_seeds")),
                learning=bool(arrays.pop("_learning")),
                arrays=arrays,
            )
        except READ_ERRORS as error:
            raise InputError(f"{path} is damaged: {error}") from error
