"""The work of a batch of a cell: the measures of its seeds."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from fedlane.experiments.engine.user_code import check_code
from fedlane.scenario import Scenario
from fedlane.simulation.simulation import Simulation
from fedlane.simulation.summary import measures_by_seed
from fedlane.validate import ScenarioWarning

MEASURES = (
    *("cumulative_delay_s", "mean_round_s", "late_share", "min_participation", "max_participation"),
    *("quota_shortfall", "max_queue", "final_accuracy"),
)
"""Columns of a result after ``seed``."""
_TYPES: dict[str, pa.DataType] = {"seed": pa.int64(), **dict.fromkeys(MEASURES, pa.float64())}
SCHEMA = pa.schema(_TYPES)


def played(values: Mapping[str, Any]) -> Simulation:
    """Simulate seeds of a cell together and return the finished simulation.

    Args:
        values: ``scenario`` (all its values), ``policy``, ``seeds``, ``learning``, ``device`` and ``code`` (digests
            of the user's modules).

    Raises:
        InputError: The user's code here is not the code that the batch was planned with.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScenarioWarning)  # said once, when the study was planned
        scenario = Scenario.from_values(values["scenario"])
        seeds, learning = values["seeds"], values["learning"]
        with one_thread(learning):
            options = {"learning": learning, "device": values["device"]}
            simulation = Simulation(scenario, values["policy"], seeds, bounded=True, **options)
            check_code(values["code"])  # after its import
            simulation.play()
    return simulation


def measure(values: Mapping[str, Any]) -> pa.Table:
    """Simulate seeds of a cell together and return their measures, one row per seed; ``values`` as in `played`."""
    simulation, seeds = played(values), values["seeds"]
    measures = measures_by_seed(simulation.trace.played(), simulation.quota)
    columns = {name: measures[name] for name in MEASURES}
    empty = np.full(len(seeds), np.nan)
    arrays = [pa.array(empty if column is None else column, from_pandas=True) for column in columns.values()]
    return pa.table([pa.array(seeds, pa.int64()), *arrays], schema=SCHEMA)


@contextlib.contextmanager
def one_thread(learning: bool) -> Iterator[None]:
    """Let PyTorch use one thread where something is learned, so that results do not depend on the number of cores."""
    if not learning:  # schedules do not load PyTorch
        yield
        return
    from fedlane.learning.strict import one_thread as one_torch_thread

    with one_torch_thread():
        yield
