"""Batches of work: what is sent to a worker, and what comes back."""

import hashlib
import importlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

PACKAGE = "fedlane."
"""Functions outside of this package are not called."""


@dataclass(frozen=True)
class WorkBatch:
    """A piece of work that is computed and stored as a whole.

    Attributes:
        key: Name of the result: a digest of everything that changes it.
        function: The function that computes the result, as ``module:name``. It takes ``values`` and returns a table.
        values: The function's input, plain values only, so that any machine can be sent it.
        needs_gpu: Whether it must run where there is a GPU.
    """

    key: str
    function: str
    values: Mapping[str, Any]
    needs_gpu: bool = False


@dataclass(frozen=True)
class FinishedBatch:
    """A batch after its computation.

    Attributes:
        key: The batch's key.
        content: The result as a Parquet file; None after a failure.
        error: The failure in one line; None after a success.
    """

    key: str
    content: bytes | None
    error: str | None = None


def digest(description: Mapping[str, Any]) -> str:
    """Return the key of a description: plain values that are equal, in any order of their names, have equal keys."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def attempt(batch: WorkBatch) -> FinishedBatch:
    """Compute a batch. An exception becomes a line, so that the other batches continue."""
    try:
        return FinishedBatch(batch.key, perform(batch.function, batch.values))
    except Exception as error:  # a user's policy or model may fail in any way
        return FinishedBatch(batch.key, None, one_line(error))


def perform(function: str, values: Mapping[str, Any]) -> bytes:
    """Call a function of this package by its name and return its table as a Parquet file.

    Raises:
        ValueError: The function does not belong to this package.
    """
    module, _, name = function.partition(":")
    if not module.startswith(PACKAGE):
        raise ValueError(f"{function} is not a function of FedLane")
    return parquet(getattr(importlib.import_module(module), name)(values))


def parquet(table: pa.Table) -> bytes:
    """Return a table as a Parquet file; equal tables give equal bytes."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def one_line(error: BaseException) -> str:
    """Return an exception as one line: the message of an error in the input, and the type of any other."""
    if isinstance(error, MemoryError):
        return "not enough memory"
    text = " ".join(str(error).split())
    expected = isinstance(error, ValueError) and type(error).__module__.startswith(PACKAGE)
    return text if expected and text else f"{type(error).__name__}: {text}".rstrip(": ")
