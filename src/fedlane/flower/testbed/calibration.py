"""What Flower itself adds to a round, measured in a run of its own, so that simulation can add it too."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedlane.records import FloatArray
from fedlane.simulation import Run
from fedlane.validate import InputError

LEAST_SAMPLES = 4


@dataclass(frozen=True)
class Calibration:
    """What the software adds to every delay beyond size / rate and computing."""

    floor_s: tuple[float, float]
    """The uniform distribution of the measured mean and deviation."""
    compute_s: float
    """Median time of local training, the client's own."""
    between_s: float
    """A round's wall-clock time beyond its delay: aggregation, evaluation, files."""
    samples: int
    stock_nodes: bool
    """Whether the nodes were Flower's own, which wait more."""

    @classmethod
    def of(cls, run: Run, links_s: FloatArray, stock_nodes: bool) -> "Calibration":
        """From a run whose links took ``links_s``, both ways together, for each of its assignments."""
        table, rounds = run.assignments, run.rounds
        punctual = table["punctual"].to_numpy(zero_copy_only=False)
        if punctual.sum() < LEAST_SAMPLES:
            raise InputError(f"calibration failed: only {punctual.sum()} answers were in time")
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
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Calibration":
        try:
            values = json.loads(path.read_text())
            low, high = values.pop("floor_s")
            return cls(floor_s=(float(low), float(high)), **values)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"calibration {path} cannot be read: {error}") from error
