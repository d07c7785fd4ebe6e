"""The specification of a testbed, and of one run on it.

A `TestbedRun` is also a JSON file: the command writes it and the app, which runs in other processes, reads it.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedlane.flower.testbed.app import perceptron
from fedlane.flower.testbed.links import RadioCell
from fedlane.records import FloatArray
from fedlane.validate import InputError, at_least, positive

if TYPE_CHECKING:  # every message starts a process that imports this module, so its imports are few
    from fedlane.flower.testbed.calibration import Calibration

FEDERATION = "testbed"
OUTCOME_FILE = "outcome.json"
"""Written when the app has finished or failed."""
LOG_FILE = "serverapp.log"
LANES_FILE = "lanes.jsonl"
"""One line per round: the time at which its lanes were switched, and the lane of each assigned client."""


@dataclass(frozen=True)
class TestbedSpec:
    """The clients, links and model of a testbed; the same for all policies."""

    clients: int
    lanes: int
    rounds: int
    deadline_s: float
    payload_bytes: int
    """Requested size of the model."""
    seed: int
    """Seed of the rates, the data partition and the policy."""
    rates_mbps: FloatArray
    """(K, U, N): round t uses row t mod K."""
    stock_nodes: bool = False
    """Use Flower's own SuperNodes instead of `fedlane-supernode`."""

    def check(self, calibration: "Calibration | None" = None) -> None:
        """Raise `InputError` for values out of bounds, or for a calibration made with other nodes."""
        for field in ("clients", "lanes", "rounds"):
            at_least(field, getattr(self, field), 1)
        at_least("seed", self.seed, 0)
        positive("deadline", self.deadline_s)
        perceptron.hidden_units(self.payload_bytes)
        if self.rates_mbps.shape[1:] != (self.clients, self.lanes):
            raise InputError(
                f"rates must be given for {self.clients} clients and {self.lanes} lanes, "
                f"got {self.rates_mbps.shape[1]} clients and {self.rates_mbps.shape[2]} lanes"
            )
        if calibration is not None and calibration.stock_nodes != self.stock_nodes:
            raise InputError("the calibration was measured with a different kind of node (--stock-nodes)")


@dataclass(frozen=True)
class TestbedRun:
    """One run on a testbed."""

    cell: str
    """Name of the radio cell, which is the prefix of its namespaces."""
    clients: int
    lanes: int
    policy: str
    rounds: int
    deadline_s: float
    seed: int
    payload_bytes: int
    """Actual size of the model."""
    rates_mbps: tuple[tuple[tuple[float, ...], ...], ...]
    """(K, U, N): round t uses row t mod K."""
    scenario: str
    """Path of the scenario that describes the testbed."""
    run_folder: str
    work_folder: str
    """Folder for the app's other files: the outcome, its log and the lane switches."""
    floor_s: float | None = None
    """Flower's share of a delay, from a calibration."""

    def write(self, path: Path) -> None:
        """Write the run as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> "TestbedRun":
        """Read a run that `write` wrote."""
        try:
            return cls(**json.loads(Path(path).read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"cannot read the testbed run {path}: {error}") from error

    def rate_mbps(self, round: int, client: int, lane: int) -> float:
        """Return the rate of a client on a lane in a round."""
        return self.rates_mbps[round % len(self.rates_mbps)][client][lane]

    def switch_lanes(self, round: int, lanes: Mapping[str, int]) -> None:
        """Give the link of each assigned client the rate of its lane, in both directions.

        `LaneStrategy` calls this as `before_round`, with {client name: lane}, before it sends the round's messages.
        """
        lane_of = {int(name.rsplit("-", 1)[1]): lane for name, lane in lanes.items()}
        rates = {client: self.rate_mbps(round, client, lane) for client, lane in lane_of.items()}
        RadioCell(self.cell, self.clients).tune(rates)
        line = {"round": round, "at_s": time.monotonic(), "lanes": {str(c): lane for c, lane in lane_of.items()}}
        with (Path(self.work_folder) / LANES_FILE).open("a") as file:
            file.write(json.dumps(line) + "\n")
