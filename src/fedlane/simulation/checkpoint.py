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
from fedlane.records import MechanismSpec
from fedlane.rounds import Rounds
from fedlane.simulation.trace import Trace
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
        version: `Policy.version` of the policy that was played.
    """

    label: str
    seeds: tuple[int, ...]
    learning: bool
    arrays: Mapping[str, np.ndarray[Any, Any]]
    version: int = 1

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
            "_version": np.array(self.version, np.int64),
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
                version=int(arrays.pop("_version", np.array(1))),  # checkpoints of 0.1.0 have none
                arrays=arrays,
            )
        except READ_ERRORS as error:
            raise InputError(f"{path} is damaged: {error}") from error


def check_agreement(trace: Trace, rounds: Rounds, mechanism: MechanismSpec) -> None:
    """Check that the arrays of a checkpoint agree with each other and with the scenario.

    Args:
        trace: The rounds so far.
        rounds: What changes from round to round, as the checkpoint has it.
        mechanism: The mechanism, which limits the uploads.

    Raises:
        InputError: They do not agree.
    """
    if trace.delay_s.max(initial=0.0) > rounds.problem.deadline_s:
        raise InputError("trace.delay_s exceeds the deadline")
    if rounds.round != trace.rounds:
        raise InputError(f"round is {rounds.round}, but trace has {trace.rounds} rounds")
    if not np.allclose(rounds.clock_s, trace.delay_s[:, : trace.rounds].sum(axis=1), rtol=1e-9):
        raise InputError("clock_s does not agree with trace.delay_s")
    if not np.allclose(rounds.queue, trace.last_queue(), rtol=1e-6):
        raise InputError("queue does not agree with trace.queue")
    if not np.array_equal(rounds.uploads, trace.counts()[0]):
        raise InputError("uploads does not agree with trace.client")
    if np.any(rounds.uploads > mechanism.max_uploads):
        raise InputError("uploads exceeds the number of uploads that the budget allows")
