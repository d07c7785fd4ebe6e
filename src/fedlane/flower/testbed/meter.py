"""Measure the traffic on each link from the kernel's byte counters, sampled many times a second.

The counters are those of the base station: what it sends to a client is a download, what it receives an upload. The
speed of a transfer is that of the middle 80% of a round's bytes, because polls, heartbeats and the acknowledgements of
the other direction come before and after it.
"""

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedlane.flower.testbed.links import WIRE_PER_PAYLOAD, RadioCell
from fedlane.flower.testbed.spec import LANES_FILE, TestbedRun
from fedlane.records import FloatArray

PERIOD_S = 0.02
_EDGE = 0.1
"""Share of the bytes that is ignored at either end of a transfer."""


@dataclass(frozen=True)
class Transfer:
    """One model sent over a link."""

    round: int
    client: int
    lane: int
    direction: str
    """Either "down" or "up"."""
    moved_bytes: float
    """Bytes of all frames that the link carried in that direction during the round."""
    seconds: float
    """Time of the payload at the measured speed."""
    expected_s: float
    """Payload divided by the pair's rate."""


class LinkMeter:
    """Sample a cell's counters in a background thread, through a process that runs in the base station's namespace."""

    def __init__(self, cell: RadioCell, process: int) -> None:
        self._cell = cell
        self._table = Path(f"/proc/{process}/net/dev")
        self._client_of_link = {cell.link(i): i for i in range(cell.clients)}
        self._times: list[float] = []
        self._counts: list[FloatArray] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "LinkMeter":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                rows = self._table.read_text().splitlines()[2:]
            except OSError:  # the process has ended
                return
            now, counts = time.monotonic(), np.zeros((2, self._cell.clients))
            for row in rows:
                link, _, numbers = row.partition(":")
                if link.strip() in self._client_of_link:
                    values = numbers.split()
                    counts[:, self._client_of_link[link.strip()]] = float(values[8]), float(values[0])
            self._times.append(now)
            self._counts.append(counts)

    def transfers(self, run: TestbedRun) -> list[Transfer]:
        """Return the transfers of a run that moved a whole model before the next round began."""
        lines = [json.loads(line) for line in (Path(run.work_folder) / LANES_FILE).read_text().splitlines()]
        times, counts = np.array(self._times), np.array(self._counts)
        begins = [line["at_s"] for line in lines] + [np.inf]
        transfers = []
        for line, begin, end in zip(lines, begins, begins[1:], strict=False):
            inside = (times >= begin - PERIOD_S) & (times <= end)
            for client, lane in ((int(c), lane) for c, lane in line["lanes"].items()):
                for index, direction in enumerate(("down", "up")):
                    measured = measure_transfer(times[inside], counts[inside, index, client], run.payload_bytes)
                    if measured is not None:
                        expected_s = 8e-6 * run.payload_bytes / run.rate_mbps(line["round"], client, lane)
                        transfers.append(Transfer(line["round"], client, lane, direction, *measured, expected_s))
        return transfers


def measure_transfer(times: FloatArray, count: FloatArray, payload_bytes: float) -> tuple[float, float] | None:
    """Return the bytes and the duration of a transfer in one counter's samples; None for less than a whole model."""
    if len(times) < 3:
        return None
    grown = count - count[0]
    total = float(grown[-1])
    if total < payload_bytes:
        return None
    low, high = (_crossing(times, grown, share * total) for share in (_EDGE, 1.0 - _EDGE))
    frames = payload_bytes * WIRE_PER_PAYLOAD
    return total, (high - low) * frames / ((1.0 - 2.0 * _EDGE) * total)


def _crossing(times: FloatArray, grown: FloatArray, value: float) -> float:
    """Return the time at which a counter first reaches a value, interpolated linearly between two samples."""
    index = int(np.searchsorted(grown, value))
    if index == 0:
        return float(times[0])
    before, after = grown[index - 1], grown[index]
    return float(times[index - 1] + (times[index] - times[index - 1]) * (value - before) / max(after - before, 1e-12))
