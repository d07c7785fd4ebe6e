"""The ledger of a simulated run: one file for all replicas, one line per round with its (replica, client) pairs.

A seeded run that is repeated after a crash makes the same uploads again. They must match the existing lines and are not
counted twice. Lines are JSON, each with a digest of itself and of the previous line. Nothing is forced to disk, as no
real privacy is spent; an incomplete last line is written again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedlane.files import open_to_append, read_regular, write_atomically
from fedlane.privacy.accountant import Terms
from fedlane.records import BoolArray, IntArray, MechanismSpec
from fedlane.validate import InputError

NAME = "ledger.jsonl"
LONGEST_NAME = 4096
"""Characters of a data set's name."""


@dataclass(frozen=True)
class RunAccounts:
    """The accounts in a run's ledger.

    Attributes:
        dataset: Name of the data set.
        seeds: Seed of each replica (R,).
        terms: The distinct terms.
        kind: Index into ``terms`` of each client (R, U).
        uploads: Uploads charged to each client (R, U).
    """

    dataset: str
    seeds: tuple[int, ...]
    terms: tuple[Terms, ...]
    kind: IntArray
    uploads: IntArray


def terms_of(spec: MechanismSpec) -> tuple[tuple[Terms, ...], IntArray]:
    """Return the distinct terms of a mechanism's clients, and the index of each client's terms (R, U)."""
    index: dict[Terms, int] = {}
    kind = np.empty(spec.batch_size.shape, np.int64)
    for replica, client in np.ndindex(*kind.shape):
        kind[replica, client] = index.setdefault(Terms.of(spec, replica, client), len(index))
    return tuple(index), kind


class RunLedger:
    """The ledger of a run in progress, in memory and, once attached, in a file.

    Args:
        spec: The mechanism of the run.
        dataset: Name of the data set.
        seeds: Seed of each replica.
    """

    def __init__(self, spec: MechanismSpec, dataset: str, seeds: Sequence[int]) -> None:
        terms, kind = terms_of(spec)
        header = {
            "kind": "run",
            "dataset": dataset,
            "seeds": [int(seed) for seed in seeds],
            "randomness": "seeded streams of a simulation",
            "terms": [client_terms.values() for client_terms in terms],
            "clients": kind.tolist(),
        }
        self._lines: list[str] = []
        self._digest = ""
        self._path: Path | None = None
        self._add(header)

    @property
    def rounds(self) -> int:
        """Number of rounds charged so far."""
        return len(self._lines) - 1

    def text(self) -> str:
        """Return the content of the ledger file."""
        return "".join(self._lines)

    def attach_file(self, folder: Path) -> None:
        """Write every line to a file in ``folder`` from now on, and continue an existing file of the same run.

        The existing file must be undamaged and agree with this ledger; the longer of the two is kept.

        Raises:
            InputError: The file is damaged, belongs to another run, or cannot be read or written.
        """
        path = folder / NAME
        if path == self._path:
            return
        try:
            if path.exists():
                stored = read_regular(path).decode().splitlines(keepends=True)
                if stored and not stored[-1].endswith("\n"):
                    stored.pop()  # an incomplete line, left by a crash
                digest = _verified(path, stored)
                common = min(len(stored), len(self._lines))
                if common and stored[0] != self._lines[0]:
                    raise InputError(f"ledger {path} belongs to another run")
                if stored[:common] != self._lines[:common]:
                    raise InputError(f"ledger {path} does not match the run's checkpoint: one of the two was changed")
                if len(stored) > len(self._lines):
                    self._lines, self._digest = stored, digest
            write_atomically(path, self.text().encode())
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"ledger {path} cannot be used: {error}") from error
        self._path = path

    def charge(self, round: int, assigned: BoolArray) -> None:
        """Charge the uploads of a round before its clients train. Charging a round again changes nothing.

        Args:
            round: Index of the round; at most the number of rounds charged so far.
            assigned: Whether each client uploads (R, U).

        Raises:
            InputError: The round was charged to different clients, or the file cannot be written.
        """
        uploads = {"round": round, "uploads": np.argwhere(assigned).tolist()}
        if round < self.rounds:
            if json.loads(self._lines[1 + round])["uploads"] != uploads["uploads"]:
                raise InputError(f"round {round} was charged to different clients before: this is a different run")
            return
        if round > self.rounds:
            raise ValueError(f"round {round} cannot be charged before round {self.rounds}")
        line = self._add(uploads)
        if self._path is not None:
            try:
                with open_to_append(self._path) as file:
                    file.write(line.encode())
            except OSError as error:
                raise InputError(f"ledger {self._path} cannot be written: {error.strerror}") from error

    def _add(self, values: dict[str, Any]) -> str:
        line, self._digest = _line(values, self._digest)
        self._lines.append(line)
        return line


def read_run_accounts(path: Path) -> RunAccounts:
    """Read and verify the ledger of a run.

    Raises:
        InputError: The file cannot be read, or is empty, damaged or inconsistent.
    """
    try:
        lines = read_regular(path).decode().splitlines(keepends=True)
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
        seeds = tuple(int(seed) for seed in header["seeds"])
        valid = kind.ndim == 2 and len(seeds) == len(kind) and min(seeds) >= 0
        if not valid or kind.min() < 0 or kind.max() >= len(terms):
            raise ValueError("its header does not match its lines")
        uploads = np.zeros(kind.shape, np.int64)
        for number, line in enumerate(lines[1:], start=1):
            pairs = json.loads(line)["uploads"]
            if not _are_distinct_pairs(pairs, kind.shape):
                raise ValueError(f"the uploads at line {number} are not distinct clients of the run")
            for replica, client in pairs:
                uploads[replica, client] += 1
        if len(str(header["dataset"])) > LONGEST_NAME:
            raise ValueError(f"the name of its data set has more than {LONGEST_NAME} characters")
        return RunAccounts(str(header["dataset"]), seeds, terms, kind, uploads)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise InputError(f"ledger {path} is inconsistent: {error}") from error


def merged_ledger(replicas: Sequence[tuple[str, int]]) -> str:
    """Return the ledger of several replicas, as a run of all of them would have written it.

    Args:
        replicas: For each replica, the text of the ledger that it comes from and its index there.

    Raises:
        InputError: A ledger is damaged.
        KeyError, IndexError, TypeError: A ledger lacks a value.
    """
    by_text: dict[str, list[dict[str, Any]]] = {}
    for text, _ in replicas:
        if text not in by_text:
            lines = text.splitlines(keepends=True)
            _verified(Path(NAME), lines)
            by_text[text] = [json.loads(line) for line in lines]
    index: dict[str, int] = {}
    headers = [(by_text[text][0], replica) for text, replica in replicas]
    kind = [
        [index.setdefault(json.dumps(header["terms"][client]), len(index)) for client in header["clients"][replica]]
        for header, replica in headers
    ]
    header = {
        **{key: value for key, value in headers[0][0].items() if key != "digest"},
        "seeds": [header["seeds"][replica] for header, replica in headers],
        "terms": [json.loads(terms) for terms in index],
        "clients": kind,
    }
    text, digest = _line(header, "")
    merged = [text]
    for round in range(max(len(lines) for lines in by_text.values()) - 1):
        uploads = [
            [number, client]
            for number, (text, replica) in enumerate(replicas)
            for owner, client in by_text[text][1 + round]["uploads"]
            if owner == replica
        ]
        line, digest = _line({"round": round, "uploads": uploads}, digest)
        merged.append(line)
    return "".join(merged)


def _are_distinct_pairs(pairs: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a line's uploads are (replica, client) pairs within the bounds, each once and in order."""
    valid = isinstance(pairs, list) and all(
        isinstance(pair, list)
        and len(pair) == len(shape)
        and all(type(index) is int and 0 <= index < size for index, size in zip(pair, shape, strict=True))
        for pair in pairs
    )
    return valid and all(before < after for before, after in pairwise(pairs))


def _line(values: dict[str, Any], previous_digest: str) -> tuple[str, str]:
    """Return a line and its digest."""
    digest = hashlib.sha256((previous_digest + json.dumps(values)).encode()).hexdigest()
    return json.dumps({**values, "digest": digest}) + "\n", digest


def _verified(path: Path, lines: Sequence[str]) -> str:
    """Return the last digest of lines that are complete, in order and chained; raise an `InputError` otherwise."""
    digest = ""
    for number, text in enumerate(lines):
        try:
            values = json.loads(text)
            del values["digest"]
            expected, digest = _line(values, digest)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError(f"ledger {path} is damaged at line {number}") from None
        if expected != text or (number > 0 and values.get("round") != number - 1):
            raise InputError(f"ledger {path} is damaged at line {number}: the digest does not match")
    return digest
