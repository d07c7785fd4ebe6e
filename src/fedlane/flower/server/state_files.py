"""The server's memory on disk: what was ordered, before it is sent; and everything else, after every round.

- ``orders.jsonl``: one line per round, forced to disk before any message of that round leaves. It is never shortened.
- ``federation.npz``: model, policy state, trace, roster and the aggregation's own memory in one file, so that they
  belong together; written to another name, forced to disk and renamed. Plain arrays and JSON, nothing is unpickled.

After a crash the checkpoint says where to go on, and the journal which orders have left since: they count as sent.
"""

import contextlib
import fcntl
import io
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.files import READ_ERRORS, load_arrays, sync_folder, write_atomically
from fedlane.validate import InputError

CHECKPOINT, JOURNAL, LOCK = "federation.npz", "orders.jsonl", ".lock"
LOCK_WAIT_S = 60.0
VERSION = 1


@dataclass(frozen=True)
class Saved:
    """A checkpoint: plain values that go into JSON, and arrays by name."""

    values: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    def part(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The arrays under ``prefix.``, without it."""
        return {key[len(prefix) + 1 :]: array for key, array in self.arrays.items() if key.startswith(f"{prefix}.")}


class StateStore:
    """A folder with the journal and the checkpoint of one federation."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"state_dir {folder} cannot be made: {error.strerror}") from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second server out. One that is ending, because SuperLink was restarted under it, is waited for."""
        with (self.folder / LOCK).open("w") as file:
            end = time.monotonic() + LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > end:
                        raise InputError(f"state_dir {self.folder} is in use by another server") from None
                    time.sleep(0.1)
            yield

    def charge(self, round: int, orders: Mapping[str, int]) -> None:
        """Write down a round's orders ({client: lane}) for good. Only then may they be sent."""
        line = json.dumps({"round": round, "orders": dict(orders)}) + "\n"
        path = self.folder / JOURNAL
        with _written(path):
            new = not path.exists()
            with path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
            if new:
                sync_folder(self.folder)

    def charged(self) -> dict[str, int]:
        """Orders written down so far, by client. A last line that was cut by a crash was never sent."""
        path, count = self.folder / JOURNAL, dict[str, int]()
        if not path.is_file():
            return count
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1]):
            try:
                orders = json.loads(line)["orders"]
                for client in orders:
                    count[client] = count.get(client, 0) + 1
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{path} is damaged at line {number + 1}") from None
        if lines[-1]:  # end the cut line, so that the next one stands alone
            with path.open("r+b") as file:
                file.truncate(sum(len(line) + 1 for line in lines[:-1]))
                os.fsync(file.fileno())
        return count

    def save(self, saved: Saved) -> None:
        """Replace the checkpoint, whole or not at all."""
        values = np.array(json.dumps({"version": VERSION, **saved.values}))
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, _values=values, **saved.arrays)
        with _written(self.folder / CHECKPOINT):
            write_atomically(self.folder / CHECKPOINT, buffer.getvalue(), durable=True)

    def load(self) -> Saved | None:
        """The last checkpoint; None where there is none; `InputError` where it cannot be trusted."""
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
    """A disk that is full or gone is one line, and the end: what cannot be written down may not happen."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
