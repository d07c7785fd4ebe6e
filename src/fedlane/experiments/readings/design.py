"""The design of the map: readings spread evenly over all axes at once, fixed before any result was computed.

The points are a scrambled Sobol sequence with one dimension per axis, cut into equal parts, one per level. They are
kept in `design.csv`, which is what the map uses, so that another version of SciPy cannot change the design.
"""

import csv
import io
from functools import cache
from importlib.resources import files

import numpy as np
from scipy.stats import qmc

from fedlane.experiments.readings.axes import AXES, PRESET, Reading
from fedlane.validate import unknown

SIZE, SEED = 64, 20261116
"""Number of points (a power of two, as a Sobol sequence needs), and the seed of the scrambling."""


def sobol_design(size: int = SIZE, seed: int = SEED) -> list[Reading]:
    """Return readings spread over all axes."""
    points = qmc.Sobol(len(AXES), scramble=True, seed=seed).random(size)
    readings = []
    for number, point in enumerate(points):
        levels = [list(axis.levels)[int(u * len(axis.levels))] for axis, u in zip(AXES, point, strict=True)]
        readings.append(Reading(f"map-{number:02d}", tuple(levels)))
    return readings


def design_text(readings: list[Reading]) -> str:
    """Return readings as CSV, one row each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["reading", *(axis.name for axis in AXES)])
    writer.writerows([reading.name, *reading.levels] for reading in readings)
    return text.getvalue()


@cache
def stored_design() -> tuple[Reading, ...]:
    """Return the readings of the map, in order."""
    rows = list(csv.reader(io.StringIO((files(__package__) / "design.csv").read_text(encoding="utf-8"))))
    if rows[0][1:] != [axis.name for axis in AXES]:
        raise RuntimeError("design.csv belongs to other axes")
    return tuple(Reading(name, tuple(levels)) for name, *levels in rows[1:])


def reading_named(name: str) -> Reading:
    """Return the preset's reading or one of the map's.

    Raises:
        InputError: There is no reading of this name.
    """
    readings = {reading.name: reading for reading in (PRESET, *stored_design())}
    if name not in readings:
        raise unknown("reading", name, readings)
    return readings[name]


def balance(readings: list[Reading]) -> dict[str, np.ndarray]:
    """Return, by axis, how many readings have each level."""
    return {
        axis.name: np.array([sum(reading.levels[k] == level for reading in readings) for level in axis.levels])
        for k, axis in enumerate(AXES)
    }
