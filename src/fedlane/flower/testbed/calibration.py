"""The delay that Flower itself adds to a round, measured in a separate run so that simulation can include it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedlane.records import FloatArray
from fedlane.simulation import Run
from fedlane.validate import InputError

MIN_SAMPLES = 4


@dataclass(frozen=True)
class Calibration:
    """The time that software adds to a round, beyond size / rate."""

    floor_s: tuple[float, float]
    """Bounds of the uniform distribution with the measured mean and standard deviation."""
    compute_s: float
    """Median time of local training, as reported by the clients."""
    between_s: float
    """Mean wall-clock time per round beyond its delay: aggregation, evaluation, files."""
    samples: int
    """Number of replies that were measured."""
    stock_nodes: bool
    """Whether the nodes were Flower's own SuperNodes, which poll less often."""

    @classmethod
    def from_run(cls, run: Run, links_s: FloatArray, stock_nodes: bool) -> "Calibration":
        """Calibrate from a run whose transfers took ``links_s`` (download plus upload) in each of its assignments."""
        table, rounds = run.assignments, run.rounds
        punctual = table["punctual"].to_numpy(zero_copy_only=False)
        if punctual.sum() < MIN_SAMPLES:
            raise InputError(
                f"calibration failed: at least {MIN_SAMPLES} replies must be in time, got {punctual.sum()}"
            )
        network_s = (table["download_s"].to_numpy() + table["upload_s"].to_numpy() - links_s)[punctual]
        mean, half = float(network_s.mean()), 3.0**0.5 * float(network_s.std(ddof=1))
        beyond_s = float(run.summary["flower"]["wall_s"]) - float(rounds["delay_s"].to_numpy().sum())
        return cls(
            floor_s=(max(0.0, mean - half), mean + half),
            compute_s=float(np.median(table["compute_s"].to_numpy()[punctual])),
            between_s=beyond_s / rounds.num_rows,
            samples=int(punctual.sum()),
            stock_nodes=stock_nodes,
        )

    def write(self, path: Path) -> None:
        """Write the calibration as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Calibration":
        """Read a calibration that `write` wrote."""
        try:
            values = json.loads(path.read_text())
            low, high = values.pop("floor_s")
            return cls(floor_s=(float(low), float(high)), **values)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"cannot read the calibration {path}: {error}") from error
