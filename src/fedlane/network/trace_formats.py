"""The formats of measured traces: 5Gophers, Norway HSDPA, Mahimahi, UCC 5G, and a plain ``t_s,mbps`` table.

Every trace declares its direction. A rate holds from its row's time to the next row's; the last one as long as the one
before. In the logs of 5Gophers, Norway and UCC, where rows may be missing, a rate holds for a limited time, and the
rest of the gap is silent.
"""

import csv
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedlane.files import READ_ERRORS
from fedlane.network.mahimahi import is_uplink, other_direction, parse_packets, read_packet_counts, recording_name
from fedlane.network.trace_files import find_trace, read_lines
from fedlane.network.traces import RateTrace
from fedlane.records import FloatArray
from fedlane.validate import InputError, printable

LOG_HOLD_S = 5.0
"""Longest time for which a row of Norway's and UCC's logs holds; their rows are about a second apart."""
_SUFFIXES = (".csv", ".up", ".down", ".pps", ".txt", ".log", ".npz")
_SCALES = {"mbps": 1e6, "kbps": 1e3}
_PREFIXES = {"": "down", "dl_": "down", "down_": "down", "ul_": "up", "up_": "up"}
_PLAIN = {p + unit: (_PREFIXES[p], scale) for p in _PREFIXES for unit, scale in _SCALES.items()}
"""Rate columns of a plain table: direction, and bits per second of one unit."""
_NOT_A_RUN = {"seq_num", "radio_type", "nrStatus", "primitive_handoff_type", "anonymized_mCid", "obstruction_type"}
"""Columns of 5Gophers that change within a run."""


class _Log(NamedTuple):
    """Rows of a table: each rate holds until the next row, but at most ``longest_s``; then the link is silent."""

    name: str
    direction: str
    time_s: FloatArray
    rates_bps: FloatArray
    longest_s: float

    def trace(self) -> RateTrace:
        """Return the trace, or raise InputError."""
        if len(self.time_s) < 2:
            raise InputError(f"cannot use the trace {printable(self.name)}: it needs at least two rows")
        step_s = np.diff(self.time_s)
        end_s = self.time_s + np.minimum(np.append(step_s, step_s[-1]), self.longest_s)
        silent = np.append(end_s[:-1] < self.time_s[1:], False)
        position = np.flatnonzero(silent) + 1
        edges_s = np.insert(np.append(self.time_s, end_s[-1]), position, end_s[silent])
        return RateTrace(self.name, self.direction, edges_s, np.insert(self.rates_bps, position, 0.0))


def load_traces(source: str, direction: str | None = None) -> tuple[RateTrace, ...]:
    """Return the traces of a file, or of all files in a folder.

    Args:
        source: A file or folder, here or in the folder FEDLANE_DATA, whose sets are 5gophers, norway_hsdpa, mahimahi
            and ucc_5g.
        direction: "down" or "up" for these traces only; None for all.

    Raises:
        InputError: There is no such file, it is not a trace, or it has no trace of this direction.
    """
    path = find_trace(source)
    if path.is_dir():
        traces = list(_folder(path))
    else:
        traces = _file(path, path.name, direction)
        partner = other_direction(path)
        traces += _file(partner, partner.name, direction) if partner else []
    chosen = tuple(trace for trace in traces if direction in (None, trace.direction))
    if not chosen:
        raise InputError(f"trace {printable(source)} has no {direction or 'usable '}link")
    return chosen


def _folder(folder: Path) -> Iterator[RateTrace]:
    """Yield the traces of a folder's files; files without a rate, such as 5Gophers' round-trip times, are left out."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and _suffix(path) in _SUFFIXES)
    archives = [path for path in files if path.suffix == ".npz"]
    for path in archives or files:  # an archive holds what the text files beside it hold
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".npz" or _has_rates(read_lines(path)[0]):
            yield from _file(path, name, None)


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".xz")).suffix


def _has_rates(head: str) -> bool:
    columns = head.replace(" ", "").split(",")
    known = (_PLAIN.keys() | {"DL_bitrate", "UL_bitrate"}) & set(columns)
    return bool(known) or head.endswith("throughput_mbps") or "throughput_mbps," in head or _numbers(head)


def _numbers(line: str) -> bool:
    """Return whether a line holds only numbers, so that the file has no header."""
    try:
        [float(word) for word in line.replace(",", " ").split()]
    except ValueError:
        return False
    return True


def _file(path: Path, name: str, direction: str | None) -> list[RateTrace]:
    """Read a file in the format that its first line shows."""
    try:
        if path.suffix == ".npz":
            return list(read_packet_counts(path))
        lines = read_lines(path)
        if _numbers(lines[0]):
            columns = lines[0].replace(",", " ").split()
            if len(columns) == 1:
                return [parse_packets(lines, name)]
            lines = [",".join(["t_s", "mbps"][: len(columns)]), *(",".join(x.replace(",", " ").split()) for x in lines)]
        head = [column.strip() for column in lines[0].split(",")]
        rows = [row for row in csv.DictReader(lines[1:], fieldnames=head) if any(row.values())]
        if any(column.endswith("throughput_mbps") for column in head) and "seq_num" in head:
            return _usable(_gophers(rows, head, name))
        if "DL_bitrate" in head or {"app", "dl_kbps"} <= set(head) or {"UL_bitrate", "rsrp_dbm"} & set(head):
            return _usable(_ucc(rows, head, name, direction))
        return _plain(rows, head, name)
    except InputError as error:
        if path.name in str(error):
            raise
        raise InputError(f"{printable(str(path))}: {error}") from error
    except (*READ_ERRORS, csv.Error) as error:
        raise InputError(f"cannot read the trace {printable(str(path))}: {printable(str(error))}") from error


def _usable(logs: Iterator[_Log]) -> list[RateTrace]:
    """Return the usable traces of a measured set, in which some runs are too short or silent; refuse it if none is."""
    usable, errors = [], []
    for log in logs:
        try:
            usable.append(log.trace())
        except InputError as error:
            errors.append(error)
    if errors and not usable:
        raise errors[0]
    return usable


def _plain(rows: list[dict[str, str]], head: list[str], name: str) -> list[RateTrace]:
    """Read a table with a column t_s and columns of rates; with a column trace it has Norway's layout."""
    rates = [column for column in head if column in _PLAIN]
    if not rates:
        raise InputError(
            f"trace {printable(name)} has no column of rates such as mbps, dl_mbps or ul_kbps, only "
            f"{printable(', '.join(head))[:200]}"
        )
    if "t_s" not in head:
        raise InputError(f"trace {printable(name)} has no column t_s")
    longest_s = LOG_HOLD_S if "trace" in head else np.inf
    traces = []
    for group, group_rows in _grouped(rows, "trace" if "trace" in head else None, name).items():
        time_s = _column(group_rows, "t_s")
        for rate in rates:
            direction, scale = _PLAIN[rate]
            if rate in ("mbps", "kbps") and is_uplink(name):
                direction = "up"
            rates_bps = _column(group_rows, rate) * scale
            traces.append(_Log(recording_name(group), direction, time_s, rates_bps, longest_s).trace())
    if not traces:
        raise InputError(f"cannot use the trace {printable(name)}: it has no rows")
    return traces


def _grouped(rows: list[dict[str, str]], column: str | None, name: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows by the name in a column; without the column, all of them under one name."""
    groups: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(name if column is None else row[column], []).append(row)
    return groups


def _column(rows: Iterable[dict[str, str]], name: str) -> FloatArray:
    try:
        return np.clip([float(row[name]) for row in rows], -1e100, 1e100)  # far beyond what a trace may hold
    except (TypeError, ValueError):
        raise ValueError(f"column {name} must hold a number in every row") from None


def _gophers(rows: list[dict[str, str]], head: list[str], name: str) -> Iterator[_Log]:
    """Read 5Gophers' downlink rates, one row per second and one trace per run; missing seconds are silent."""
    columns = [column for column in head if column.endswith("throughput_mbps")]
    identity = [column for column in head if column not in _NOT_A_RUN and column not in columns and "rtt" not in column]
    for column in columns:
        measured = [row for row in rows if row[column]]
        second, rates = _column(measured, "seq_num"), _column(measured, column) * 1e6
        runs = [tuple(row[key] for key in identity) for row in measured]
        starts = [k for k in range(len(runs)) if k == 0 or runs[k] != runs[k - 1] or second[k] < second[k - 1]]
        for start, end in zip(starts, [*starts[1:], len(runs)], strict=True):
            words = [recording_name(name), column.removesuffix("throughput_mbps").rstrip("_"), *runs[start]]
            label = "/".join([word for word in words if word] + [str(start)])
            yield _Log(label, "down", second[start:end], rates[start:end], 1.0)


def _ucc(rows: list[dict[str, str]], head: list[str], name: str, direction: str | None) -> Iterator[_Log]:
    """Read UCC's downlink rates, from the tidy table's downloads or from one of the logs; a second's rows are averaged.

    While other applications run, the rate is what they ask for, not what the link carries.
    """
    raw = "DL_bitrate" in head
    if direction == "up" or not (raw or "dl_kbps" in head):
        raise InputError(
            f"trace {printable(name)}: the uplink column of UCC's logs holds acknowledgements, not the uplink's "
            "capacity; use the downlink and network.uplink_share"
        )
    rate_column = "DL_bitrate" if raw else "dl_kbps"
    chosen = rows if raw else [row for row in rows if row["app"] == "Download"]
    for group, group_rows in _grouped(chosen, None if raw else "trace", name).items():
        time_s = _stamps(group_rows) if raw else _column(group_rows, "t_s")
        kept = np.append(True, np.diff(time_s) != 0)  # a time that runs backwards stays, and is refused
        second = np.cumsum(kept) - 1
        mean_kbps = np.bincount(second, _column(group_rows, rate_column)) / np.bincount(second)
        yield _Log(recording_name(group), "down", time_s[kept], mean_kbps * 1e3, LOG_HOLD_S)


def _stamps(rows: list[dict[str, str]]) -> FloatArray:
    """Return the seconds between the first row of a UCC log and each of them."""
    times = [datetime.strptime(row["Timestamp"], "%Y.%m.%d_%H.%M.%S") for row in rows]
    return np.array([(time - times[0]).total_seconds() for time in times])
