"""Recorded presence: a table ``client,start_s,end_s`` of the intervals in which each recorded client was there."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedlane.network.availability import Availability
from fedlane.network.trace_files import find_trace, read_lines
from fedlane.network.traces import MAX_TIME_S, count_below
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.rng import dealt
from fedlane.validate import InputError, printable

_COLUMNS = ("client", "start_s", "end_s")


def load_presence(source: str) -> tuple[FloatArray, ...]:
    """Return the intervals of each recorded client, (K, 2) in seconds: in order, overlapping ones joined.

    Args:
        source: A CSV file with the columns client, start_s and end_s, here or in the folder FEDLANE_DATA.

    Raises:
        InputError: The file is missing or is not such a table.
    """
    path = find_trace(source)
    lines = read_lines(path)
    head = [column.strip() for column in lines[0].split(",")]
    if not set(_COLUMNS) <= set(head):
        raise _error(path, f"it must have the columns {', '.join(_COLUMNS)}")
    intervals: dict[str, list[tuple[float, float]]] = {}
    try:
        for number, row in enumerate(csv.DictReader(lines[1:], fieldnames=head), start=1):
            start_s, end_s = float(row["start_s"]), float(row["end_s"])
            if not 0 <= start_s < end_s <= MAX_TIME_S:
                raise _error(path, f"row {number} must have 0 <= start_s < end_s, got {start_s:g} and {end_s:g}")
            intervals.setdefault(row["client"], []).append((start_s, end_s))
    except (TypeError, ValueError, csv.Error) as error:
        if isinstance(error, InputError):
            raise
        raise _error(path, f"row {number} must hold two numbers of seconds") from error
    if not intervals:
        raise _error(path, "it has no rows")
    return tuple(_joined(np.array(sorted(parts))) for parts in intervals.values())


def _error(path: Path, reason: str) -> InputError:
    return InputError(f"cannot use the availability trace {printable(str(path))}: {reason}")


def _joined(intervals_s: FloatArray) -> FloatArray:
    """Join intervals (K, 2), sorted by their starts, that overlap or touch."""
    reach_s = np.maximum.accumulate(intervals_s[:, 1])
    first = np.append(True, intervals_s[1:, 0] > reach_s[:-1])
    last = np.append(first[1:], True)
    return np.stack([intervals_s[first, 0], reach_s[last]], axis=1)


class RecordedAvailability(Availability):
    """Clients that come and go as recorded.

    Each seed deals the recorded clients to its clients at random, each once before any is repeated. The time is the
    recording's own, so that what was recorded together stays together, and repeats after the last end.

    Args:
        seeds: R seeds, one per replica.
        clients: Number of clients, U.
        recorded: Intervals (K, 2) of each recorded client in seconds, see `load_presence`.
    """

    def __init__(self, seeds: Sequence[int], clients: int, recorded: Sequence[FloatArray]) -> None:
        self._count = np.array([len(intervals_s) for intervals_s in recorded])
        self._first = np.concatenate([[0], np.cumsum(self._count)[:-1]])
        joined_s = np.concatenate(recorded)
        self._starts_s, self._ends_s = np.ascontiguousarray(joined_s.T)
        self._period_s = float(self._ends_s.max())
        self._recorded: IntArray = np.stack([dealt(seed, "presence", clients, len(recorded)) for seed in seeds])

    def present(self, clock_s: FloatArray) -> BoolArray:
        """Return whether each client is present, (R, U), at clocks (R,) or (R, U) in seconds."""
        return self._until(clock_s) > 0

    def leaves(self, start_s: FloatArray, end_s: FloatArray) -> BoolArray:
        """Return whether each client is present at the start and leaves in (start, end], see `Availability.leaves`."""
        until_s = self._until(start_s)
        start_s = start_s if start_s.ndim == 2 else start_s[:, None]
        return (until_s > 0) & np.isfinite(until_s) & (until_s <= np.where(np.isnan(end_s), start_s, end_s) - start_s)

    def _until(self, clock_s: FloatArray) -> FloatArray:
        """Return the time until each client leaves (R, U), in seconds; 0 or less if it is absent."""
        phase_s = (clock_s if clock_s.ndim == 2 else clock_s[:, None]) % self._period_s
        phase_s = np.broadcast_to(phase_s, self._recorded.shape)
        first, count = self._first[self._recorded], self._count[self._recorded]
        begun = count_below(self._starts_s, first, count, phase_s, right=True)
        ends_s = self._ends_s[first + np.maximum(begun, 1) - 1]
        # Presence at the recording's end continues where the recording begins again with presence.
        round_end = (ends_s == self._period_s) & (self._starts_s[first] == 0.0)
        more_s = np.where(count == 1, np.inf, self._ends_s[first])
        return np.where(begun > 0, ends_s + np.where(round_end, more_s, 0.0) - phase_s, 0.0)
