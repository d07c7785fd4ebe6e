"""What really moved over each link, and how fast: the kernel's byte counters, read many times a second.

The counters are the base station's: what it sent to a client is a download, what it received an upload. A transfer's
speed is that of the middle 80% of a round's bytes: polls, heartbeats and the acknowledgements of what moves the other
way lie before and after it.
"""

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedlane.flower.testbed.links import WIRE_PER_PAYLOAD, RadioCell
from fedlane.flower.testbed.spec import SWITCHED, TestbedRun
from fedlane.records import FloatArray

PERIOD_S = 0.02
_EDGE = 0.1


@dataclass(frozen=True)
class Transfer:
    """A model that moved over a link."""

    round: int
    client: int
    lane: int
    direction: str
    """down or up."""
    moved_bytes: float
    """All that the link carried in that direction in the round, as frames."""
    seconds: float
    """What the payload took at the measured speed."""
    expected_s: float
    """Payload over the pair's rate."""


class Meter:
    """Reads a cell's counters in the background, from the namespace of a process that lives in it."""

    def __init__(self, cell: RadioCell, process: int) -> None:
        self._cell = cell
        self._table = Path(f"/proc/{process}/net/dev")
        self._names = {cell.link(i): i for i in range(cell.clients)}
        self._at: list[float] = []
        self._counts: list[FloatArray] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Meter":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                rows = self._table.read_text().splitlines()[2:]
            except OSError:  # the process has gone
                return
            now, counts = time.monotonic(), np.zeros((2, self._cell.clients))
            for row in rows:
                name, _, numbers = row.partition(":")
                if name.strip() in self._names:
                    values = numbers.split()
                    counts[:, self._names[name.strip()]] = float(values[8]), float(values[0])
            self._at.append(now)
            self._counts.append(counts)

    def transfers(self, plan: TestbedRun) -> list[Transfer]:
        """Every transfer of a run that moved a whole model before its round's successor began."""
        lines = [json.loads(line) for line in (Path(plan.work_folder) / SWITCHED).read_text().splitlines()]
        at, counts = np.array(self._at), np.array(self._counts)
        begins = [line["at_s"] for line in lines] + [np.inf]
        found = []
        for line, begin, end in zip(lines, begins, begins[1:], strict=False):
            inside = (at >= begin - PERIOD_S) & (at <= end)
            for client, lane in ((int(c), lane) for c, lane in line["lanes"].items()):
                for index, direction in enumerate(("down", "up")):
                    moved = _moved(at[inside], counts[inside, index, client], plan.payload_bytes)
                    if moved is not None:
                        expected_s = 8e-6 * plan.payload_bytes / plan.rate_mbps(line["round"], client, lane)
                        found.append(Transfer(line["round"], client, lane, direction, *moved, expected_s))
        return found


def _moved(at: FloatArray, count: FloatArray, payload_bytes: float) -> tuple[float, float] | None:
    """Bytes and seconds of a transfer in one counter's samples; None where not a whole model moved."""
    if len(at) < 3:
        return None
    grown = count - count[0]
    total = float(grown[-1])
    if total < payload_bytes:
        return None
    # the counter may stand still: a crossing is where it first passes
    low, high = (_crossing(at, grown, share * total) for share in (_EDGE, 1.0 - _EDGE))
    frames = payload_bytes * WIRE_PER_PAYLOAD
    return total, (high - low) * frames / ((1.0 - 2.0 * _EDGE) * total)


def _crossing(at: FloatArray, grown: FloatArray, value: float) -> float:
    """When a growing counter first reaches a value, by the line between the samples around it."""
    index = int(np.searchsorted(grown, value))
    if index == 0:
        return float(at[0])
    before, after = grown[index - 1], grown[index]
    return float(at[index - 1] + (at[index] - at[index - 1]) * (value - before) / max(after - before, 1e-12))
