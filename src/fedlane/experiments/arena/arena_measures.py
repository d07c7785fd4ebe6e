"""The work of a cell of the arena: the measures of each seed, and its curve."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from fedlane.experiments.engine.measuring import played
from fedlane.records import FloatArray
from fedlane.scenario import Scenario
from fedlane.simulation.optimal_delays import OPTIMUM_SLACK, optimal_delays
from fedlane.simulation.setup import prepare
from fedlane.simulation.simulation import Simulation
from fedlane.simulation.tables import shortfalls
from fedlane.targets import time_to_accuracy

MEASURE = f"{__name__}:arena_measure"
MEASURE_OPTIMUM = f"{__name__}:optimum_measure"
SERVED_SHARE = 1.0 - OPTIMUM_SLACK
"""Share of the problem's quotas against which the shortfall of every policy is measured, whatever its own slack."""
MEASURES = (
    *("simulated_time_s", "min_participation", "shortfall", "jain", "final_accuracy", "time_to_target_s"),
    *("energy_j", "epsilon", "late_share"),
)
"""Measures that a cell states for each seed."""
POINTS = 20
"""Number of points of a curve, at equal distances in rounds; the last is the end of the run."""
CURVES = ("clock_s", "accuracy")
CURVE_COLUMNS = tuple(f"{name}_{k:02d}" for name in CURVES for k in range(POINTS))
_TYPES: dict[str, pa.DataType] = {"seed": pa.int64(), **dict.fromkeys((*MEASURES, *CURVE_COLUMNS), pa.float64())}
CELL_SCHEMA = pa.schema(_TYPES)
"""Columns of a cell's result."""


def arena_measure(values: Mapping[str, Any]) -> pa.Table:
    """Simulate seeds of a cell together and return their measures and curves, one row per seed.

    Args:
        values: As in `fedlane.experiments.engine.measuring.played`.
    """
    simulation = played(values)
    return _table(values["seeds"], {**_measures(simulation), **_curve(simulation)})


def optimum_measure(values: Mapping[str, Any]) -> pa.Table:
    """Compute the optimum's simulated time for each seed; null where the linear program does not describe the world.

    Args:
        values: ``scenario`` (all its values) and ``seeds``.
    """
    scenario, seeds = Scenario.from_values(values["scenario"]), values["seeds"]
    mean_s = optimal_delays(prepare(scenario, seeds))
    if mean_s is None:
        return _table(seeds, {})
    ends = curve_rounds(scenario.rounds)
    clocks = {f"clock_s_{k:02d}": end * mean_s for k, end in enumerate(ends)}
    return _table(seeds, {"simulated_time_s": scenario.rounds * mean_s, **clocks})


def curve_rounds(rounds: int) -> list[int]:
    """Return the numbers of rounds after which a curve has its points."""
    return [max(1, round(rounds * (k + 1) / POINTS)) for k in range(POINTS)]


def jain_index(shares: FloatArray) -> FloatArray:
    """Return Jain's index of fairness over the last axis, (sum x)^2 / (n sum x^2): 1 if all are equal; 0 if all are 0.

    Args:
        shares: (R, U), what each client received.
    """
    squares = shares.shape[-1] * np.square(shares).sum(axis=-1)
    return np.divide(np.square(shares.sum(axis=-1)), squares, out=np.zeros(shares.shape[:-1]), where=squares > 0)


def _measures(simulation: Simulation) -> dict[str, FloatArray]:
    trace, problem = simulation.trace.played(), simulation.setup.problem
    assigned, in_time = trace.counts()
    participation = in_time / max(trace.rounds, 1)
    values = {
        "simulated_time_s": trace.delay_s.sum(axis=1),
        "min_participation": participation.min(axis=1),
        "shortfall": shortfalls(SERVED_SHARE * problem.quotas, in_time, simulation.totals).mean(axis=1),
        "jain": jain_index(participation),
        "energy_j": simulation.totals.energy_j.sum(axis=1),
        "late_share": 1.0 - in_time.sum(axis=1) / np.maximum(assigned.sum(axis=1), 1),
    }
    if simulation.spending is not None:
        values["epsilon"] = simulation.spending.epsilon(simulation.uploads).max(axis=1)
    target = simulation.scenario.learning.target_accuracy
    if simulation.federation is not None:
        values["final_accuracy"] = trace.accuracy[:, -1]
        if target is not None:
            values["time_to_target_s"] = time_to_accuracy(trace.accuracy, np.cumsum(trace.delay_s, axis=1), target)
    return values


def _curve(simulation: Simulation) -> dict[str, FloatArray]:
    """Return the clock and the accuracy of the last evaluation at the points of the curve."""
    trace = simulation.trace.played()
    clock_s = np.cumsum(trace.delay_s, axis=1)
    evaluated = np.flatnonzero(~np.isnan(trace.accuracy).any(axis=0))
    columns = {}
    for k, end in enumerate(curve_rounds(trace.rounds)):
        columns[f"clock_s_{k:02d}"] = clock_s[:, end - 1]
        before = evaluated[evaluated < end]
        if len(before):
            columns[f"accuracy_{k:02d}"] = trace.accuracy[:, before[-1]]
    return columns


def _table(seeds: list[int], columns: Mapping[str, FloatArray]) -> pa.Table:
    """Return a table with the cell's schema; columns that are not given, and NaN, are null."""
    empty = np.full(len(seeds), np.nan)
    arrays = [pa.array(columns.get(name, empty), pa.float64(), from_pandas=True) for name in CELL_SCHEMA.names[1:]]
    return pa.table([pa.array(seeds, pa.int64()), *arrays], schema=CELL_SCHEMA)
