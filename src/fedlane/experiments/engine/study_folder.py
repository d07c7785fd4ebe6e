"""The folder of a study: one process computes there at a time, and files are written as a whole."""

import contextlib
import fcntl
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedlane.files import write_atomically
from fedlane.validate import InputError

LOCK = ".lock"
"""File that is locked while a study is computed."""


@contextlib.contextmanager
def locked(folder: Path, study: str) -> Iterator[None]:
    """Make a folder and keep other processes out of it.

    Args:
        folder: The folder.
        study: What is computed there, for error messages: ``this sweep``.

    Raises:
        InputError: The folder is in use or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder} is in use: another process is computing {study}") from None
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {error.strerror}") from error
        yield


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files of a folder, each atomically.

    Raises:
        InputError: The folder cannot be written.
    """
    try:
        for name, content in contents.items():
            write_atomically(folder / name, content)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
