"""Whether a run reproduces: it is prepared again from its folder, and two runs are compared.

Schedules must agree to the bit. Learning sums floats in an order that depends on the machine, and a GPU draws its noise
from another generator, so curves and models agree within `Tolerances`.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedlane.records import FloatArray
from fedlane.scenario.run_settings import RunSettings
from fedlane.scheduling.policy import requires_losses
from fedlane.simulation.folder_files import OPTIONAL
from fedlane.simulation.provenance import arithmetic
from fedlane.simulation.results import EXTRA, MEASURES, Run
from fedlane.simulation.simulation import Simulation
from fedlane.simulation.trace_shape import TraceShape
from fedlane.validate import InputError

LEARNED = ("accuracy", "loss")
PRIVACY = ("epsilon", "epsilon_paper")
LAST_EVALUATIONS = 3


@dataclass(frozen=True)
class Tolerances:
    """Largest differences between two plays of one run; benchmarks/device_differences.py measures them.

    Attributes:
        numbers: Relative, for seconds, queues and quotas; 0 demands equal bits.
        epsilon: Relative, for epsilons.
        accuracy: Absolute, for the accuracy at any evaluation; None: not compared.
        loss: Relative, for the loss at any evaluation; None: not compared.
        weights: Relative to the model's norm, for the distance of the final models; None: not compared.
        late_accuracy: Absolute, for the mean accuracy of a seed's last three evaluations.
    """

    numbers: float = 0.0
    epsilon: float = 1e-9
    accuracy: float | None = 0.005
    loss: float | None = 1e-3
    weights: float | None = 0.005
    late_accuracy: float = 0.005


OTHER_ARITHMETIC = 1e-9
"""Relative difference of numbers on a processor whose functions round differently."""
OTHER_DEVICE = Tolerances(accuracy=0.02, loss=0.02, weights=0.02, late_accuracy=0.01)
"""Without noise, on another class of device: matrix products of a GPU use TF32."""
OTHER_NOISE = Tolerances(accuracy=None, loss=None, weights=None, late_accuracy=0.05)
"""With noise, on another class of device, which draws it from another generator."""


@dataclass(frozen=True)
class ReplayCheck:
    """One comparison of two plays of a run.

    Attributes:
        name: What is compared.
        values: How many values.
        difference: The largest difference; infinite where the number of values or their columns differ.
        allowed: The largest difference that is accepted; 0 demands equal bits.
        measured: How the difference is measured.
    """

    name: str
    values: int
    difference: float
    allowed: float
    measured: str

    @property
    def agrees(self) -> bool:
        """Whether the difference is accepted."""
        return self.difference <= self.allowed

    def as_values(self) -> dict[str, Any]:
        """Return the check as plain values for JSON; an infinite difference is None."""
        return {
            "name": self.name,
            "values": self.values,
            "difference": self.difference if math.isfinite(self.difference) else None,
            "allowed": self.allowed,
            "measured": self.measured,
            "agrees": self.agrees,
        }


def settings_of(run: Run) -> RunSettings:
    """Return the settings of a stored run; those of an old folder follow from its summary and its tables.

    Raises:
        InputError: The run was recorded by a real federation, which cannot be played again.
    """
    if "flower" in run.summary or run.provenance.get("kind") == "flower":
        raise InputError("it was recorded by a real federation (Flower), which cannot be played again")
    if run.settings is not None:
        return run.settings
    learning = bool(run.model) or run.rounds["loss"].null_count < len(run.rounds)
    values = {"policy": run.summary["policy"], "seeds": run.summary["seeds"], "learning": learning}
    return RunSettings.from_values(values)


def prepare_replay(run: Run, device: str) -> Simulation:
    """Prepare a stored run to be played again; imports a policy or a model that the run names by an import path.

    Args:
        run: The stored run. Play as many rounds as it has: `Simulation.play(until=run.summary["rounds"])`.
        device: Where the model is trained: ``cpu`` or ``cuda``.

    Raises:
        InputError: The run cannot be played again.
    """
    settings, rounds = settings_of(run), run.summary["rounds"]
    if not 0 <= rounds <= run.scenario.rounds:
        raise InputError(f"its summary has {rounds} rounds, its scenario {run.scenario.rounds}: one was changed")
    network = run.scenario.network
    shape = TraceShape.of(len(settings.seeds), run.scenario.rounds, network.clients, network.channels)
    bounded = shape.every == run.summary.get("client_rounds_every", 1)  # older folders have every round
    simulation = Simulation(
        run.scenario, settings.policy, settings.seeds, learning=settings.learning, device=device, bounded=bounded
    )
    simulation.origin.check_data(run.provenance)
    if requires_losses(simulation.policy) and device != settings.device:
        raise InputError(
            f"policy {simulation.policy.name} requires losses, which another class of device computes differently: "
            f"replay it with --device {settings.device}"
        )
    return simulation


def tolerances(run: Run, device: str) -> Tolerances:
    """Return how far a play on this machine may differ from a stored run.

    Args:
        run: The stored run.
        device: Class of the device that trains the model now.
    """
    sessions = run.provenance.get("sessions", ())
    before = {str((session.get("device") or {}).get("class", device)) for session in sessions}
    roundings = {str((session.get("host") or {}).get("arithmetic", "")) for session in sessions}
    chosen = Tolerances()
    if before - {device}:
        chosen = OTHER_DEVICE if run.scenario.privacy.mechanism == "none" else OTHER_NOISE
    numbers = 0.0 if roundings <= {arithmetic()} else OTHER_ARITHMETIC
    return Tolerances(**{**vars(chosen), "numbers": numbers})


def compare_runs(stored: Run, again: Run, limits: Tolerances) -> list[ReplayCheck]:
    """Compare two plays of one run.

    Args:
        stored: The run as its folder has it.
        again: The run as it was played again.
        limits: The accepted differences.

    Returns:
        Schedule, clients, privacy, learning and summary, as far as the stored run has them.
    """
    bits = "relative" if limits.numbers else "bits"
    checks = [
        _tables("assignments and delays", ("assignments",), stored, again, limits.numbers, bits),
        _tables("round times", ("rounds",), stored, again, limits.numbers, bits),
        _tables(
            "queues, quotas, positions",
            (
                "clients",
                "client_rounds",
                "channels",
                *(name for name in OPTIONAL if name in stored.tables and name in again.tables),
            ),
            stored,
            again,
            limits.numbers,
            bits,
        ),
    ]
    if stored.ledger or again.ledger:
        charged = _charged(stored.ledger), _charged(again.ledger)
        difference = 0.0 if charged[0] == charged[1] else math.inf
        checks.append(ReplayCheck("charged uploads", sum(map(len, charged[0])), difference, 0.0, "bits"))
        columns = {name: _numbers((stored, again), ("clients", "client_rounds"), name) for name in PRIVACY}
        checks.append(_check("epsilon", columns.values(), limits.epsilon, "relative"))
    checks += _learning(stored, again, limits)
    return [*checks, *_summary(stored, again, limits)]


def _tables(name: str, tables: Iterable[str], stored: Run, again: Run, allowed: float, measured: str) -> ReplayCheck:
    """Compare all columns of some tables except those of learning and privacy; only floats may differ at all."""
    pairs, values, same = [], 0, True
    for table in tables:
        before, after = stored.tables[table], again.tables[table]
        for column in (column for column in before.column_names if column not in LEARNED + PRIVACY):
            if pa.types.is_floating(before[column].type):
                pairs.append(_numbers((stored, again), (table,), column))
            else:
                values += len(before)
                same &= column in after.column_names and before[column].equals(after[column])
    check = _check(name, pairs, allowed, measured)
    return ReplayCheck(name, check.values + values, check.difference if same else math.inf, allowed, measured)


def _learning(stored: Run, again: Run, limits: Tolerances) -> list[ReplayCheck]:
    """Compare learning curves and final models."""
    curves = {name: _numbers((stored, again), ("rounds",), name) for name in LEARNED}
    if all(np.isnan(values).all() for pair in curves.values() for values in pair):
        return []
    checks = []
    has_accuracy = not all(np.isnan(values).all() for values in curves["accuracy"])
    if limits.accuracy is not None and has_accuracy:
        checks.append(_check("accuracy", [curves["accuracy"]], limits.accuracy, "absolute"))
    if limits.loss is not None:
        checks.append(_check("loss", [curves["loss"]], limits.loss, "relative"))
    if has_accuracy:
        late = _late_accuracy(stored), _late_accuracy(again)
        checks.append(_check("accuracy, last 3 evaluations", [late], limits.late_accuracy, "absolute"))
    if limits.weights is not None and stored.model:
        distance = _model_distance(stored.model, again.model)
        size = sum(tensor.size for tensor in stored.model.values())
        checks.append(ReplayCheck("model weights", size, distance, limits.weights, "relative"))
    return checks


def _summary(stored: Run, again: Run, limits: Tolerances) -> list[ReplayCheck]:
    """Compare the published measures, which could have been changed apart from the tables."""

    def both(measure: str, *keys: str) -> tuple[FloatArray, FloatArray]:
        before, after = ([run.summary[measure][key] for key in keys] for run in (stored, again))
        return np.array(before, np.float64), np.array(after, np.float64)

    pairs = [both(name, "mean", "low", "high") for name in (*MEASURES, *EXTRA) if name != "final_accuracy"]
    checks = [_check("summary of the schedule", pairs, max(limits.numbers, OTHER_ARITHMETIC), "relative")]
    if stored.summary["final_accuracy"]["mean"] is not None:
        allowed = limits.accuracy if limits.accuracy is not None else 2 * limits.late_accuracy
        checks.append(_check("summary's final accuracy", [both("final_accuracy", "mean")], allowed, "absolute"))
    if "final_rmse" in stored.summary and "final_rmse" in again.summary and limits.loss is not None:
        checks.append(_check("summary's final RMSE", [both("final_rmse", "mean")], limits.loss, "relative"))
    return checks


def _check(name: str, pairs: Iterable[tuple[FloatArray, FloatArray]], allowed: float, measured: str) -> ReplayCheck:
    """Compare arrays; NaN equals NaN, and a NaN on one side only is an infinite difference."""
    values, worst = 0, 0.0
    for before, after in pairs:
        values += int(np.count_nonzero(~np.isnan(before)))
        if before.shape != after.shape or not np.array_equal(np.isnan(before), np.isnan(after)):
            worst = math.inf
            continue
        known = ~np.isnan(before) & (before != after)
        apart = np.abs(before[known] - after[known])
        if measured != "absolute":
            apart = apart / np.maximum(np.abs(before[known]), np.abs(after[known]))
        worst = max(worst, float(apart.max(initial=0.0)))
    return ReplayCheck(name, values, worst, allowed, measured)


def _numbers(runs: tuple[Run, Run], tables: Iterable[str], column: str) -> tuple[FloatArray, FloatArray]:
    """Return a column of some tables of both runs as floats, null as NaN; a missing column is empty."""
    both = []
    for run in runs:
        parts: list[FloatArray] = []
        for table in tables:
            values = run.tables[table][column] if column in run.tables[table].column_names else pa.chunked_array([[]])
            try:
                if pa.types.is_boolean(values.type):
                    values = values.cast(pa.int8())
                parts.append(np.asarray(values.cast(pa.float64()).to_numpy(), np.float64))
            except (pa.ArrowException, ValueError, TypeError) as error:
                raise InputError(f"column {column} of {table} must hold numbers, got {values.type}") from error
        both.append(np.concatenate(parts))
    return both[0], both[1]


def _late_accuracy(run: Run) -> FloatArray:
    """(R,): mean accuracy of each replica's last evaluations."""
    accuracy, replica = (_numbers((run, run), ("rounds",), name)[0] for name in ("accuracy", "replica"))
    evaluated = ~np.isnan(accuracy)
    curves = [accuracy[evaluated & (replica == r)] for r in np.unique(replica)]
    return np.array([curve[-LAST_EVALUATIONS:].mean() if len(curve) else np.nan for curve in curves])


def _model_distance(before: Mapping[str, NDArray[Any]], after: Mapping[str, NDArray[Any]]) -> float:
    """Distance of two models, relative to the norm of the first; infinite if their tensors differ in name or shape."""
    if {name: t.shape for name, t in before.items()} != {name: t.shape for name, t in after.items()}:
        return math.inf
    pairs = [(before[name].astype(np.float64), after[name].astype(np.float64)) for name in before]
    norm = math.sqrt(sum(float(np.square(a).sum()) for a, _ in pairs))
    distance = math.sqrt(sum(float(np.square(a - b).sum()) for a, b in pairs))
    return distance / norm if norm else distance


def _charged(ledger: str) -> list[list[Any]]:
    """Return the charged (replica, client) pairs of every round of a ledger."""
    try:
        return [json.loads(line)["uploads"] for line in ledger.splitlines()[1:]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError("its ledger is damaged") from None
