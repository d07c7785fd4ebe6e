"""The design of the map: readings spread evenly over all axes at once, fixed before any result was computed.

Each point is a row of a Latin hypercube with one dimension per axis, cut into equal parts, one per level. Of many
hypercubes, the one is taken in which pairs of levels of any two axes occur most evenly: with few points, some pairs
of dimensions of a Sobol sequence leave out whole combinations. The design is kept in `design.csv`, which is what the
map uses, so that another version of SciPy cannot change it.
"""

import csv
import io
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import numpy as np
from scipy.stats import qmc

from fedlane.experiments.readings.axes import AXES, PRESET, PaperReading
from fedlane.records import IntArray
from fedlane.validate import unknown

SIZE, TRIALS = 64, 2000
"""Number of readings, and number of hypercubes that are compared."""


def even_design(size: int = SIZE, trials: int = TRIALS) -> list[PaperReading]:
    """Return readings spread over all axes: the most even of some Latin hypercubes."""
    best = min((_levels(size, seed) for seed in range(trials)), key=unevenness)
    names = [list(axis.levels) for axis in AXES]
    return [
        PaperReading(f"map-{number:02d}", tuple(names[k][level] for k, level in enumerate(row)))
        for number, row in enumerate(best)
    ]


def _levels(size: int, seed: int) -> IntArray:
    """(size, axes): levels of a Latin hypercube's points."""
    points = qmc.LatinHypercube(len(AXES), seed=seed).random(size)
    return np.asarray(points * [len(axis.levels) for axis in AXES], np.int64)


def unevenness(levels: IntArray) -> float:
    """Largest relative deviation of the number of readings with a pair of levels from its mean, over all pairs."""
    worst, size = 0.0, len(levels)
    for a, first in enumerate(AXES):
        for b, second in enumerate(AXES[:a]):
            shape = len(first.levels), len(second.levels)
            counts = np.bincount(levels[:, a] * shape[1] + levels[:, b], minlength=shape[0] * shape[1])
            mean = size / (shape[0] * shape[1])
            worst = max(worst, float(np.abs(counts - mean).max() / mean))
    return worst


def design_text(readings: Sequence[PaperReading]) -> str:
    """Return readings as CSV, one row each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["reading", *(axis.name for axis in AXES)])
    writer.writerows([reading.name, *reading.levels] for reading in readings)
    return text.getvalue()


@cache
def stored_design() -> tuple[PaperReading, ...]:
    """Return the readings of the map, in order."""
    rows = list(csv.reader(io.StringIO((files(__package__) / "design.csv").read_text(encoding="utf-8"))))
    if rows[0][1:] != [axis.name for axis in AXES]:
        raise RuntimeError("design.csv belongs to other axes")
    return tuple(PaperReading(name, tuple(levels)) for name, *levels in rows[1:])


def reading_named(name: str) -> PaperReading:
    """Return the preset's reading or one of the map's.

    Raises:
        InputError: There is no reading of this name.
    """
    readings = {reading.name: reading for reading in (PRESET, *stored_design())}
    if name not in readings:
        raise unknown("reading", name, readings)
    return readings[name]


def balance(readings: Sequence[PaperReading]) -> dict[str, IntArray]:
    """Return, by axis, how many readings have each level."""
    return {
        axis.name: np.array([sum(reading.levels[k] == level for reading in readings) for level in axis.levels])
        for k, axis in enumerate(AXES)
    }
