"""The summary of a run: its measures as means over seeds with confidence intervals."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedlane.intervals import interval, measure_bounds
from fedlane.loss_records import root_error
from fedlane.records import FloatArray
from fedlane.simulation.tables import ClientTotals, World, shortfalls
from fedlane.simulation.trace import Trace
from fedlane.simulation.traced_predictions import predicted_uploads
from fedlane.targets import target_measure, time_to_accuracy


def summarise(
    policy: str,
    parameters: Mapping[str, Any],
    trace: Trace,
    world: World,
    quota: FloatArray,
    feasible_scale: FloatArray | None,
    elapsed_s: float,
    totals: ClientTotals | None = None,
) -> dict[str, Any]:
    """Summarise the rounds played so far.

    Args:
        policy: The policy as the user named it.
        parameters: The policy's parameters.
        trace: The rounds played so far.
        world: Scenario and seeds of the run.
        quota: (R, U): quotas as the policy serves them, slack included.
        feasible_scale: (R,): the largest multiple of ``quota`` that any policy can serve; None if unknown.
        elapsed_s: Wall-clock time of the run in seconds.
        totals: Presence and energy of every client; None if unknown.
    """
    from fedlane import __version__

    feasible = feasible_scale if feasible_scale is None or np.isfinite(feasible_scale).all() else None
    measures = {**measures_by_seed(trace, quota), "feasible_scale": feasible}
    return {
        "policy": policy,
        "parameters": dict(parameters),
        "scenario": world.scenario.name,
        "seeds": list(world.seeds),
        "rounds": trace.rounds,
        **({"client_rounds_every": trace.every} if trace.every > 1 else {}),
        **{name: interval(values, measure_bounds(name)) for name, values in measures.items()},
        **_regression(trace),
        **_attendance(trace, quota, totals),
        **_coverage(trace),
        "quota": {"smallest": float(quota.min()), "largest": float(quota.max())},
        "infeasible_seeds": _infeasible(world.seeds, feasible_scale),
        **_time_to_target(trace, world.scenario.learning.target_accuracy),
        "elapsed_s": elapsed_s,
        "version": __version__,
    }


def measures_by_seed(trace: Trace, quota: FloatArray) -> dict[str, FloatArray | None]:
    """Compute every measure of a run for each of its seeds.

    Args:
        trace: The rounds played so far.
        quota: (R, U): quotas as the policy serves them, slack included.

    Returns:
        (R,) by name; None for a measure that the run does not have.
    """
    rounds = max(trace.rounds, 1)
    assigned, in_time = trace.counts()
    uploads = assigned.sum(axis=1)
    participation = in_time / rounds
    cumulative = trace.delay_s.sum(axis=1)
    return {
        "cumulative_delay_s": cumulative,
        "mean_round_s": cumulative / rounds,
        "late_share": 1.0 - in_time.sum(axis=1) / np.maximum(uploads, 1),
        "min_participation": participation.min(axis=1),
        "max_queue": trace.largest_queue(),
        "final_accuracy": _last_accuracy(trace),
        "max_participation": participation.max(axis=1),
        "quota_shortfall": np.maximum(quota - participation, 0.0).max(axis=1),
    }


def final_rmse(trace: Trace) -> FloatArray | None:
    """(R,): root-mean-square error at the last evaluation; None where classes are learned, or nothing is."""
    if not trace.learns_numbers:
        return None
    return root_error(trace.loss[:, np.flatnonzero(trace.evaluated)[-1]])


def _regression(trace: Trace) -> dict[str, Any]:
    """The measure ``final_rmse`` where numbers are learned; nothing where classes are."""
    values = final_rmse(trace)
    return {} if values is None else {"final_rmse": interval(values, measure_bounds("final_rmse"))}


def _attendance(trace: Trace, quota: FloatArray, totals: ClientTotals | None) -> dict[str, Any]:
    """The energy of all clients together, their mean presence and their mean shortfall; nothing if unknown."""
    if totals is None:
        return {}
    measures = {
        "energy_j": totals.energy_j.sum(axis=1),
        "present_share": totals.present_rounds.mean(axis=1) / max(trace.rounds, 1),
        "shortfall": shortfalls(quota, trace.counts()[1], totals).mean(axis=1),
    }
    known = {name: values for name, values in measures.items() if not np.isnan(values).any()}
    return {name: interval(values, measure_bounds(name)) for name, values in known.items()}


def _coverage(trace: Trace) -> dict[str, Any]:
    """The share of predicted uploads that are in their 90% intervals; nothing if the policy predicted none."""
    if trace.covered is None:
        return {}
    share = trace.covered.sum(axis=1) / np.maximum(predicted_uploads(trace), 1)
    return {"coverage_90": interval(share, measure_bounds("coverage_90"))}


def _time_to_target(trace: Trace, target: float | None) -> dict[str, Any]:
    """The time to the scenario's target accuracy; nothing without a target or without learning."""
    if target is None or np.isnan(trace.accuracy).all():
        return {}
    time_s = time_to_accuracy(trace.accuracy, np.cumsum(trace.delay_s, axis=1), target)
    return {"time_to_accuracy": target_measure(time_s, target)}


def _last_accuracy(trace: Trace) -> FloatArray | None:
    """(R,): accuracy at the last evaluation; None without learning, and where numbers are learned."""
    evaluated = np.flatnonzero(~np.isnan(trace.accuracy).any(axis=0))
    return trace.accuracy[:, evaluated[-1]] if len(evaluated) else None


def _infeasible(seeds: tuple[int, ...], scale: FloatArray | None) -> dict[str, float]:
    """Seeds on which no policy can serve the quotas, each with the largest multiple that a policy can serve."""
    return (
        {} if scale is None else {str(seed): float(s) for seed, s in zip(seeds, scale, strict=True) if s < 1.0 - 1e-9}
    )
