"""A user's data set: an npz file, a folder of Parquet or Arrow tables, or a function.

`data.dataset` names it: ``my.npz``, ``data/folder`` or ``package.module:function``. Paths are relative to the current
folder. Files may come from strangers: they are read with bounds on memory, and nothing reads pickle. A function is the
user's code.
"""

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedlane.files import READ_ERRORS, load_arrays
from fedlane.learning.data_checks import dataset_of_arrays
from fedlane.learning.dataset_records import Dataset
from fedlane.learning.user_imports import importing_from_here
from fedlane.validate import InputError, first_line

MAX_BYTES = 2**34
"""Bytes that a user's arrays may need."""
MAX_FILES = 10_000
"""Files of a folder."""

FileStamps = tuple[tuple[str, int, int, int], ...]


def is_own_data(name: str) -> bool:
    """Return whether a data set's name is a path or a function, which names of built-in data sets never are."""
    return any(mark in name for mark in "/.:")


def runs_user_code(name: str) -> bool:
    """Return whether loading a data set calls a user's function."""
    return ":" in name and not Path(name).exists()


def load_own_data(name: str) -> Dataset:
    """Load and check a user's data set. The latest one is kept in memory, until its files change.

    Args:
        name: A path relative to the current folder, or ``module:function``.

    Raises:
        InputError: There is no such file or function, it fails, or its data cannot be used.
    """
    if runs_user_code(name):
        return _load(name, ((str(Path.cwd()), 0, 0, 0),))
    try:
        stamps = _stamps(Path(name))
    except OSError as error:
        reason = "does not exist; paths are relative to the current folder"
        if Path(name).exists():
            reason = f"cannot be read: {error.strerror}"
        raise InputError(f"data.dataset '{name}' {reason}") from error
    return _load(name, stamps)


@functools.lru_cache(maxsize=1)
def _load(name: str, stamps: FileStamps) -> Dataset:
    """Load a data set; ``stamps`` are the state of its files."""
    if runs_user_code(name):
        return _from_function(name)
    path = Path(name)
    try:
        if path.is_dir():
            from fedlane.data_tables import folder_arrays

            return dataset_of_arrays(name, folder_arrays(path))
        if path.suffix != ".npz":
            raise InputError(f"data.dataset '{name}' must be an npz file, a folder of Parquet files or module:function")
        return dataset_of_arrays(name, load_arrays(path, MAX_BYTES))
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"data.dataset '{name}' does not fit into memory") from None
    except READ_ERRORS as error:
        raise InputError(f"data.dataset '{name}' cannot be read: {error}") from error


def _from_function(name: str) -> Dataset:
    """Call a user's function and check what it returns."""
    path, _, attribute = name.partition(":")
    try:
        with importing_from_here():
            returned = getattr(importlib.import_module(path), attribute)()
            if isinstance(returned, Mapping) and not {"train", "test"} <= set(returned):
                arrays: Mapping[str, Any] = {key: np.asarray(value) for key, value in returned.items()}
            else:
                from fedlane.data_tables import object_arrays

                arrays = object_arrays(name, returned)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # a user's code, and what it returns, may raise anything
        raise InputError(f"data.dataset '{name}' cannot be loaded: {first_line(error)}") from error
    return dataset_of_arrays(name, arrays)


def _stamps(path: Path) -> FileStamps:
    """Return path, size, date and number of a file, or of all files of a folder."""
    files = [path]
    if path.is_dir():
        files = sorted(file for pattern in ("*", "*/*") for file in path.glob(pattern) if file.is_file())
        if len(files) > MAX_FILES:
            raise InputError(f"data.dataset '{path}' has more than {MAX_FILES:,} files")
    states = [(str(file.resolve()), file.stat()) for file in files]
    return tuple((name, state.st_size, state.st_mtime_ns, state.st_ino) for name, state in states)
