"""The measures of a run for each of its seeds, from its tables; `summary.json` has only their means."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from fedlane.loss_records import root_error
from fedlane.parquet_tables import by_replica, column_floats, count_replicas
from fedlane.records import FloatArray

MEASURES = (
    *("cumulative_delay_s", "mean_round_s", "late_share", "min_participation", "max_participation"),
    *("quota_shortfall", "max_queue", "final_accuracy"),
)
"""Names of the measures. `feasible_scale` is not among them: it describes the network, not the policy."""
ENERGY = "energy_j"
"""Energy of all clients together; runs of earlier versions and real federations do not have it."""
RMSE = "final_rmse"
"""Root-mean-square error at the end, of runs that learn numbers; they have no accuracy."""
PROBLEM_SHORTFALL = "problem_shortfall"
"""Shortfall from the problem's quotas: `quota_shortfall` refers to the quotas that the policy serves."""
COMPARED = tuple(PROBLEM_SHORTFALL if name == "quota_shortfall" else name for name in MEASURES)
"""Measures that mean the same for all policies, whatever their slack."""


def seed_measures(tables: Mapping[str, pa.Table]) -> dict[str, FloatArray]:
    """Compute every measure of `summary.json` for each seed of a run.

    Args:
        tables: The tables of the run folder, by name.

    Returns:
        (R,) for each name in `MEASURES`; NaN for a measure that the run did not record. `ENERGY` and
        `RMSE` are there if the run has them.

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
    loss = [values[~np.isnan(values)] for values in per_replica(rounds, column_floats(rounds, "loss"))]
    extra = {}
    if all(map(len, loss)) and not any(map(len, accuracy)):
        extra[RMSE] = root_error(np.array([values[-1] for values in loss]))
    if ENERGY in clients.column_names and not clients[ENERGY].null_count:
        extra[ENERGY] = np.array([values.sum() for values in per_replica(clients, column_floats(clients, ENERGY))])
    return {
        "cumulative_delay_s": cumulative,
        "mean_round_s": cumulative / np.array([max(len(values), 1) for values in delay_s]),
        "late_share": np.array([1.0 - values.sum() / max(len(values), 1) for values in punctual]),
        "min_participation": np.array([values.min() if len(values) else np.nan for values in participation]),
        "max_participation": np.array([values.max() if len(values) else np.nan for values in participation]),
        "quota_shortfall": np.array([values.max(initial=0.0) for values in shortfall]),
        "max_queue": np.array([values.max(initial=0.0) for values in queue]),
        "final_accuracy": np.array([values[-1] if len(values) else np.nan for values in accuracy]),
        **extra,
    }


def quota_slack(summary: Mapping[str, Any]) -> float:
    """Return the share by which a run's policy lowered the problem's quotas, from its summary; 0 if there is none."""
    parameters = summary.get("parameters")
    slack = parameters.get("quota_slack") if isinstance(parameters, Mapping) else None
    return float(slack) if isinstance(slack, int | float) and 0 <= slack < 1 else 0.0


def problem_shortfall(tables: Mapping[str, pa.Table], summary: Mapping[str, Any]) -> FloatArray:
    """Compute the largest shortfall of any client from the problem's quotas, which are the same for every policy.

    `clients.parquet` has the quotas that the policy serves, (1 - slack) times those of the problem.

    Args:
        tables: The tables of the run folder, by name.
        summary: The run's summary, with the policy's parameters.

    Returns:
        (R,): the largest value of quota - participation over clients, at least 0; NaN without quotas.
    """
    clients = tables["clients"]
    quota = column_floats(clients, "quota") / (1.0 - quota_slack(summary))
    shortfall = by_replica(clients, quota - column_floats(clients, "participation"), count_replicas(tables["rounds"]))
    return np.array([values.max(initial=0.0) for values in shortfall])
