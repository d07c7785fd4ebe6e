"""What a testbed's federation is to do: a plain file that the command writes and the app reads in its own process."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fedlane.flower.testbed.links import RadioCell
from fedlane.validate import InputError

FEDERATION = "testbed"
OUTCOME = "outcome.json"
"""Written when the app has ended, well or not."""
LOG = "serverapp.log"
SWITCHED = "lanes.jsonl"
"""One line for each round: when its lanes were switched, and to what."""


@dataclass(frozen=True)
class TestbedRun:
    """One run on a testbed."""

    cell: str
    clients: int
    lanes: int
    policy: str
    rounds: int
    deadline_s: float
    seed: int
    payload_bytes: int
    rates_mbps: tuple[tuple[tuple[float, ...], ...], ...]
    """(K, U, N)"""
    scenario: str
    """The file of the scenario that describes the testbed."""
    run_folder: str
    work_folder: str
    """Where the app leaves what is not the run's: the outcome, the switches."""
    floor_s: float | None = None
    """Flower's own share of a delay, as calibrated before."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> "TestbedRun":
        try:
            return cls(**json.loads(Path(path).read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"the testbed's plan {path} cannot be read: {error}") from error

    def rate_mbps(self, round: int, client: int, lane: int) -> float:
        """The pair's rate in a round."""
        return self.rates_mbps[round % len(self.rates_mbps)][client][lane]

    def switch(self, round: int, lanes: Mapping[str, int]) -> None:
        """The base station's side of a round: every assigned client's link takes its lane's rate, both ways.

        Called with {client's name: lane} before any message of the round is sent.
        """
        chosen = {int(name.rsplit("-", 1)[1]): lane for name, lane in lanes.items()}
        rates = {client: self.rate_mbps(round, client, lane) for client, lane in chosen.items()}
        RadioCell(self.cell, self.clients).tune(rates)
        line = {"round": round, "at_s": time.monotonic(), "lanes": {str(c): lane for c, lane in chosen.items()}}
        with (Path(self.work_folder) / SWITCHED).open("a") as file:
            file.write(json.dumps(line) + "\n")
