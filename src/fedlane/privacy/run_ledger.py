"""A simulated run's ledger: one file for all replicas, an entry for every (replica, round, client).

A seeded run that is played again after a crash makes the same uploads again: an entry that is there already must be the
same and is not counted twice. Lines of JSON, each with a digest over itself and the line before. Nothing is forced to
disk, since nothing real is spent; a last line that a crash cut short is written again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedlane.files import write_atomically
from fedlane.privacy.accountant import Terms
from fedlane.records import BoolArray, IntArray, MechanismSpec
from fedlane.validate import InputError

NAME = "ledger.jsonl"


@dataclass(frozen=True)
class RunAccounts:
    """What a run's ledger says."""

    dataset: str
    seeds: tuple[int, ...]
    terms: tuple[Terms, ...]
    """The different terms there are."""
    kind: IntArray
    """(R, U): which of them a client has."""
    uploads: IntArray
    """(R, U)"""


def terms_of(spec: MechanismSpec) -> tuple[tuple[Terms, ...], IntArray]:
    """The different terms of a mechanism's clients, and which client (R, U) has which."""
    known: dict[Terms, int] = {}
    kind = np.empty(spec.batch_size.shape, np.int64)
    for replica, client in np.ndindex(*kind.shape):
        kind[replica, client] = known.setdefault(Terms.of(spec, replica, client), len(known))
    return tuple(known), kind


class RunLedger:
    """The ledger of a run in progress, in memory and, where a path is given, line by line in its file."""

    def __init__(self, spec: MechanismSpec, dataset: str, seeds: Sequence[int]) -> None:
        terms, kind = terms_of(spec)
        header = {
            "kind": "run",
            "dataset": dataset,
            "seeds": [int(seed) for seed in seeds],
            "randomness": "seeded streams of a simulation",
            "terms": [each.values() for each in terms],
            "clients": kind.tolist(),
        }
        self._lines: list[str] = []
        self._digest = ""
        self._path: Path | None = None
        self._add(header)

    @property
    def rounds(self) -> int:
        """Rounds that are charged."""
        return len(self._lines) - 1

    def text(self) -> str:
        """The whole ledger."""
        return "".join(self._lines)

    def attach_file(self, folder: Path) -> None:
        """Write every line to a folder's file from now on; go on with the file that is there, if it is this run's.

        What is there must be whole, and agree with what this ledger holds; the longer of the two goes on.
        """
        path = folder / NAME
        if path == self._path:
            return
        try:
            if path.exists():
                there = path.read_text(encoding="utf-8").splitlines(keepends=True)
                if there and not there[-1].endswith("\n"):
                    there.pop()  # cut short by a crash
                digest = _verified(path, there)
                both = min(len(there), len(self._lines))
                if both and there[0] != self._lines[0]:
                    raise InputError(f"ledger {path} belongs to another run")
                if there[:both] != self._lines[:both]:
                    raise InputError(f"ledger {path} holds other uploads than the run's checkpoint: one was changed")
                if len(there) > len(self._lines):
                    self._lines, self._digest = there, digest
            write_atomically(path, self.text().encode())
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"ledger {path} cannot be used: {error}") from error
        self._path = path

    def charge(self, round: int, assigned: BoolArray) -> None:
        """Enter the uploads of a round, (R, U), before anybody trains for it. The same round again is no new charge."""
        uploads = {"round": round, "uploads": np.argwhere(assigned).tolist()}
        if round < self.rounds:
            if json.loads(self._lines[1 + round])["uploads"] != uploads["uploads"]:
                raise InputError(f"round {round} was charged to other clients before: this is not the same run")
            return
        if round > self.rounds:
            raise ValueError(f"round {round} cannot be charged before round {self.rounds}")
        line = self._add(uploads)
        if self._path is not None:
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(line)
            except OSError as error:
                raise InputError(f"ledger {self._path} cannot be written: {error.strerror}") from error

    def _add(self, values: dict[str, Any]) -> str:
        line, self._digest = _line(values, self._digest)
        self._lines.append(line)
        return line


def read_run_accounts(path: Path) -> RunAccounts:
    """Read and verify a run's ledger."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"ledger {path} cannot be read: {error}") from error
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    if not lines:
        raise InputError(f"ledger {path} is empty")
    _verified(path, lines)
    header = json.loads(lines[0])
    try:
        terms = tuple(Terms.from_values(values) for values in header["terms"])
        kind = np.array(header["clients"], dtype=np.int64)
        uploads = np.zeros(kind.shape, np.int64)
        for line in lines[1:]:
            for replica, client in json.loads(line)["uploads"]:
                uploads[replica, client] += 1
        seeds = tuple(int(seed) for seed in header["seeds"])
        if kind.ndim != 2 or len(seeds) != len(kind) or kind.min() < 0 or kind.max() >= len(terms):
            raise ValueError("its header does not fit together")
        return RunAccounts(str(header["dataset"]), seeds, terms, kind, uploads)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"ledger {path} makes no sense: {error}") from error


def _line(values: dict[str, Any], before: str) -> tuple[str, str]:
    """A line, and its digest."""
    digest = hashlib.sha256((before + json.dumps(values)).encode()).hexdigest()
    return json.dumps({**values, "digest": digest}) + "\n", digest


def _verified(path: Path, lines: Sequence[str]) -> str:
    """The last digest of lines that are all whole, in order and of one chain; anything else is an `InputError`."""
    before = ""
    for number, text in enumerate(lines):
        try:
            values = json.loads(text)
            del values["digest"]
            again, before = _line(values, before)
        except (ValueError, KeyError, TypeError):
            raise InputError(f"ledger {path} is damaged at line {number}") from None
        if again != text or (number > 0 and values.get("round") != number - 1):
            raise InputError(f"ledger {path} is damaged at line {number}: its digest does not fit")
    return before
