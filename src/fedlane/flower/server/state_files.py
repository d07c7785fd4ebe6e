"""The server's state on disk: a journal of orders, written before they are sent, and a checkpoint of everything else.

- ``orders.jsonl``, the journal, has one line per round, forced to disk before any message of that round is sent.
- ``federation.npz``, the checkpoint, has the model, the policy's state, the trace, the roster and the arrays of the
  aggregation, written after every round. It holds plain arrays and JSON; nothing is unpickled.

After a crash the run continues from the checkpoint. Later orders in the journal count as sent, and their rounds as
played: nobody is ordered twice for the same round.
"""

import contextlib
import fcntl
import io
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.files import (
    READ_ERRORS,
    load_arrays,
    open_regular,
    open_to_append,
    read_regular,
    sync_folder,
    write_atomically,
)
from fedlane.validate import InputError

CHECKPOINT, JOURNAL, LOCK = "federation.npz", "orders.jsonl", ".lock"
LOCK_WAIT_S = 60.0
VERSION = 1


@dataclass(frozen=True)
class Saved:
    """A checkpoint: values that can be written as JSON, and arrays by name."""

    values: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    def part(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return the arrays whose names start with ``prefix.``, without the prefix."""
        return {key[len(prefix) + 1 :]: array for key, array in self.arrays.items() if key.startswith(f"{prefix}.")}


class StateStore:
    """The folder with the journal and the checkpoint of one federation."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"state_dir {folder} cannot be created: {error.strerror}") from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, so that no second server uses it.

        Wait for a server that is still shutting down after its SuperLink was restarted.
        """
        with _written(self.folder / LOCK):
            lock = open_to_append(self.folder / LOCK)
        with lock:
            end = time.monotonic() + LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > end:
                        raise InputError(f"state_dir {self.folder} is in use by another server") from None
                    time.sleep(0.1)
            yield

    def charge(self, round: int, orders: Mapping[str, int]) -> None:
        """Append a round's orders ({client: lane}) to the journal. They may be sent only after this returns."""
        line = json.dumps({"round": round, "orders": dict(orders)}) + "\n"
        path = self.folder / JOURNAL
        with _written(path):
            new = not path.exists()
            with open_to_append(path) as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
            if new:
                sync_folder(self.folder)

    def charged(self) -> dict[str, int]:
        """Return the number of orders in the journal by client."""
        return dict(Counter(client for _, orders in self.journal() for client in orders))

    def journal(self) -> list[tuple[int, dict[str, int]]]:
        """Return (round, {client: lane}) for every line of the journal.

        A last line cut off by a crash was never sent, and is removed before the next one is appended.
        """
        path = self.folder / JOURNAL
        if path.is_symlink():
            raise InputError(f"{path} is a link, which FedLane does not follow")
        if not path.is_file():
            return []
        try:
            entries, lines = [], read_regular(path).split(b"\n")
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        for number, line in enumerate(lines[:-1]):
            try:
                entry = json.loads(line)
                entries.append((int(entry["round"]), {str(name): int(lane) for name, lane in entry["orders"].items()}))
            except READ_ERRORS:
                raise InputError(f"{path} is damaged at line {number + 1}") from None
        if lines[-1]:
            with _written(path), open_regular(path, writable=True) as file:
                file.truncate(sum(len(line) + 1 for line in lines[:-1]))
                os.fsync(file.fileno())
        return entries

    def save(self, saved: Saved) -> None:
        """Replace the checkpoint atomically."""
        values = np.array(json.dumps({"version": VERSION, **saved.values}))
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, _values=values, **saved.arrays)
        with _written(self.folder / CHECKPOINT):
            write_atomically(self.folder / CHECKPOINT, buffer.getvalue(), durable=True)

    def load(self) -> Saved | None:
        """Return the last checkpoint, or None; raise `InputError` if it is damaged."""
        path = self.folder / CHECKPOINT
        if not path.is_file():
            return None
        try:
            arrays = load_arrays(path)
            values = json.loads(str(arrays.pop("_values")))
            if values.pop("version") != VERSION:
                raise ValueError("it was written by another version")
        except READ_ERRORS as error:
            raise InputError(f"{path} is damaged: {error}") from error
        return Saved(values, arrays)


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    """Turn a disk error into a one-line `InputError`, which ends the run, since nothing unrecorded may be sent."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
