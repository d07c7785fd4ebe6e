"""The measures of a run for each of its seeds, from its tables; `summary.json` has only their means."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from fedlane.parquet_tables import by_replica, column_floats, count_replicas
from fedlane.records import FloatArray

MEASURES = (
    *("cumulative_delay_s", "mean_round_s", "late_share", "min_participation", "max_participation"),
    *("quota_shortfall", "max_queue", "final_accuracy"),
)
"""Names of the measures. `feasible_scale` is not among them: it describes the network, not the policy."""


def seed_measures(tables: Mapping[str, pa.Table]) -> dict[str, FloatArray]:
    """Compute every measure of `summary.json` for each seed of a run.

    Args:
        tables: The tables of the run folder, by name.

    Returns:
        (R,) for each name in `MEASURES`; NaN for a measure that the run did not record.

    Raises:
        InputError: A table is damaged.
    """
    rounds, assignments, clients = tables["rounds"], tables["assignments"], tables["clients"]
    replicas = count_replicas(rounds)

    def per_replica(table: pa.Table, values: FloatArray) -> list[FloatArray]:
        return by_replica(table, values, replicas)

    delay_s = per_replica(rounds, column_floats(rounds, "delay_s"))
    accuracy = [values[~np.isnan(values)] for values in per_replica(rounds, column_floats(rounds, "accuracy"))]
    punctual = per_replica(assignments, column_floats(assignments, "punctual"))
    participation = per_replica(clients, column_floats(clients, "participation"))
    shortfall = per_replica(clients, column_floats(clients, "quota") - column_floats(clients, "participation"))
    if "max_queue" in rounds.column_names:  # of large fleets, client_rounds does not have every round
        queue = per_replica(rounds, column_floats(rounds, "max_queue"))
    else:
        queue = per_replica(tables["client_rounds"], column_floats(tables["client_rounds"], "queue"))
    cumulative = np.array([values.sum() for values in delay_s])
    return {
        "cumulative_delay_s": cumulative,
        "mean_round_s": cumulative / np.array([max(len(values), 1) for values in delay_s]),
        "late_share": np.array([1.0 - values.sum() / max(len(values), 1) for values in punctual]),
        "min_participation": np.array([values.min() if len(values) else np.nan for values in participation]),
        "max_participation": np.array([values.max() if len(values) else np.nan for values in participation]),
        "quota_shortfall": np.array([values.max(initial=0.0) for values in shortfall]),
        "max_queue": np.array([values.max(initial=0.0) for values in queue]),
        "final_accuracy": np.array([values[-1] if len(values) else np.nan for values in accuracy]),
    }
