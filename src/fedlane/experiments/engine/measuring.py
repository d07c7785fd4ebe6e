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
from fedlane.simulation.summary import final_rmse, measures_by_seed
from fedlane.validate import InputError, ScenarioWarning

MEASURES = (
    *("cumulative_delay_s", "mean_round_s", "late_share", "min_participation", "max_participation"),
    *("quota_shortfall", "max_queue", "final_accuracy"),
)
"""Columns of a result after ``seed``."""
RMSE = "final_rmse"
"""Column that follows in results of data sets with float targets, which have no accuracy."""
_TYPES: dict[str, pa.DataType] = {"seed": pa.int64(), **dict.fromkeys(MEASURES, pa.float64())}
SCHEMA = pa.schema(_TYPES)


def played(values: Mapping[str, Any]) -> Simulation:
    """Simulate seeds of a cell together and return the finished simulation.

    Args:
        values: ``scenario`` (all its values), ``policy``, ``seeds``, ``learning``, ``device``, ``code`` (digests
            of the user's modules) and, for a user's data set, ``data`` (its digest).

    Raises:
        InputError: The user's code or data here is not what the batch was planned with.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScenarioWarning)  # said once, when the study was planned
        scenario = Scenario.from_values(values["scenario"])
        seeds, learning = values["seeds"], values["learning"]
        with one_thread(learning):
            options = {"learning": learning, "device": values["device"]}
            simulation = Simulation(scenario, values["policy"], seeds, bounded=True, **options)
            check_code(values["code"])  # after its import
            if simulation.origin.data is not None and simulation.origin.data["sha256"] != values.get("data"):
                raise InputError(f"data.dataset '{scenario.data.dataset}' is not what this batch was planned with")
            simulation.play()
    return simulation


def measure(values: Mapping[str, Any]) -> pa.Table:
    """Simulate seeds of a cell together and return their measures, one row per seed; ``values`` as in `played`."""
    simulation, seeds = played(values), values["seeds"]
    measures = measures_by_seed(simulation.trace.played(), simulation.quota)
    columns = {name: measures[name] for name in MEASURES}
    empty = np.full(len(seeds), np.nan)
    arrays = [pa.array(empty if column is None else column, from_pandas=True) for column in columns.values()]
    table = pa.table([pa.array(seeds, pa.int64()), *arrays], schema=SCHEMA)
    rmse = final_rmse(simulation.trace.played())
    return table if rmse is None else table.append_column(RMSE, pa.array(rmse, from_pandas=True))


@contextlib.contextmanager
def one_thread(learning: bool) -> Iterator[None]:
    """Let PyTorch use one thread where something is learned, so that results do not depend on the number of cores."""
    if not learning:  # schedules do not load PyTorch
        yield
        return
    from fedlane.learning.strict import one_thread as one_torch_thread

    with one_torch_thread():
        yield
