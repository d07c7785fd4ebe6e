"""Mahimahi's traces: the milliseconds at which packets cross a saturated link, up and down recorded together."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedlane.files import load_arrays
from fedlane.network.traces import RateTrace
from fedlane.records import FloatArray
from fedlane.validate import InputError, printable

PACKET_BITS = 1500 * 8
"""Size of a packet: each line of a file stands for one."""
_BIN_MS = 100
_LONGEST_MS = 30 * 86400 * 1000
_ENDINGS = {".down": ".up", ".up": ".down", "-down": "-up", "-up": "-down", "_down": "_up", "_up": "_down"}
"""Ending of a file's name -> ending of the other direction's."""


def is_uplink(name: str) -> bool:
    """Return whether a file's name declares an uplink: it ends in .up, -up or _up before its suffixes."""
    return _stem(name).endswith((".up", "-up", "_up"))


def recording_name(name: str) -> str:
    """Return the name that the uplink and the downlink of one recording share: without suffixes and direction."""
    stem = _stem(name)
    return next((stem.removesuffix(ending) for ending in _ENDINGS if stem.endswith(ending)), stem)


def other_direction(path: Path) -> Path | None:
    """Return the file of the same recording's other direction, or None where there is none."""
    stem = _stem(path.name)
    for ending, other in _ENDINGS.items():
        if stem.endswith(ending):
            partner = path.with_name(stem.removesuffix(ending) + other + path.name.removeprefix(stem))
            return partner if partner.is_file() else None
    return None


def _stem(name: str) -> str:
    for suffix in (".xz", ".csv", ".txt", ".log", ".pps"):
        name = name.removesuffix(suffix)
    return name


def parse_packets(lines: list[str], name: str) -> RateTrace:
    """Return the trace of a file's lines, each of them the millisecond of one packet, in bins of 100 ms.

    Raises:
        InputError: There is one line only, or the times run backwards or beyond 30 days.
        ValueError: A line is not a whole number.
    """
    stamps_ms = np.array([int(line) for line in lines], np.int64)
    if len(stamps_ms) < 2:
        raise InputError(f"cannot use the trace {printable(name)}: it needs at least two rows")
    if np.any(np.diff(stamps_ms) < 0):
        raise InputError(f"cannot use the trace {printable(name)}: its times must not run backwards")
    if stamps_ms[0] < 0 or stamps_ms[-1] > _LONGEST_MS:
        raise InputError(f"cannot use the trace {printable(name)}: its times must be between 0 and 30 days")
    return _binned(np.bincount(stamps_ms // _BIN_MS).astype(np.float64), name)


def read_packet_counts(path: Path) -> Iterator[RateTrace]:
    """Yield the traces of an npz file of packets per 100 ms: one array per trace, named like Mahimahi's files."""
    for name, counts in load_arrays(path).items():
        if counts.ndim != 1 or counts.dtype.kind not in "iuf":
            raise InputError(f"trace {printable(str(path))}: {printable(name)} must be a row of numbers")
        yield _binned(counts.astype(np.float64), name)


def _binned(packets: FloatArray, name: str) -> RateTrace:
    edges_s = np.arange(len(packets) + 1) * _BIN_MS / 1000
    direction = "up" if is_uplink(name) else "down"
    return RateTrace(recording_name(name), direction, edges_s, packets * (PACKET_BITS * 1000 / _BIN_MS))
