"""Merging of runs that differ in their seeds alone: the result is the run of all seeds at once.

Replicas are ordered by seed. Tables, models and ledgers are put together; the summary is computed again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedlane.delay_predictions import NAMES
from fedlane.privacy.run_ledger import merged_ledger
from fedlane.records import FloatArray
from fedlane.scenario.run_settings import RunSettings
from fedlane.simulation.provenance import provenance
from fedlane.simulation.replaying import settings_of
from fedlane.simulation.results import Run
from fedlane.simulation.setup import Setup, prepare
from fedlane.simulation.spending import PrivacySpending
from fedlane.simulation.summary import summarise
from fedlane.simulation.tables import ClientTotals
from fedlane.simulation.trace import Trace
from fedlane.simulation.traced_predictions import covered_uploads
from fedlane.validate import InputError


@dataclass(frozen=True)
class _Source:
    """A replica of the merged run: its seed, the run it comes from, and its index there."""

    seed: int
    run: int
    replica: int


def merge_runs(runs: Mapping[str, Run]) -> Run:
    """Merge finished runs that differ in their seeds alone.

    Args:
        runs: At least two runs, by the name to use in errors.

    Returns:
        The run of all seeds, which are sorted.

    Raises:
        InputError: A run is not finished, was recorded by a real federation, differs from the first one in anything
            but its seeds, or has a seed in common with another.
    """
    if len(runs) < 2:
        raise InputError("merge needs at least two run folders")
    listed, settings = list(runs.values()), _checked_settings(runs)
    sources = sorted(
        (
            _Source(seed, number, replica)
            for number, run in enumerate(listed)
            for replica, seed in enumerate(run.summary["seeds"])
        ),
        key=lambda source: source.seed,
    )
    seeds = tuple(source.seed for source in sources)
    try:
        tables = {name: _merged_table([_table(run, name) for run in listed], sources) for name in listed[0].tables}
        setup = prepare(listed[0].scenario, seeds)
        trace = _trace(tables, setup, _every(listed[0].summary))
        ledger = merged_ledger([(listed[s.run].ledger, s.replica) for s in sources]) if listed[0].ledger else ""
    except (KeyError, IndexError, ValueError, TypeError, pa.ArrowException) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the runs cannot be merged: a table or a ledger is damaged ({error})") from error
    return Run(
        scenario=listed[0].scenario,
        tables=tables,
        summary=_summary(listed, setup, trace, tables),
        model=_merged_models([run.model for run in listed], sources),
        ledger=ledger,
        settings=settings.model_copy(update={"seeds": seeds}),
        provenance=provenance("merge", [s for run in listed for s in run.provenance.get("sessions", ())]),
    )


def _checked_settings(runs: Mapping[str, Run]) -> RunSettings:
    """Return the settings of the first run, after a comparison of all others with it."""
    (first_name, first), *others = runs.items()
    names: dict[int, str] = {}
    for name, run in runs.items():
        try:
            settings_of(run)
        except InputError as error:
            raise InputError(f"{name} cannot be merged: {error}") from None
        if run.summary["rounds"] < run.scenario.rounds:
            raise InputError(f"{name} is not finished: it has {run.summary['rounds']} of {run.scenario.rounds} rounds")
        for seed in run.summary["seeds"]:
            if seed in names:
                raise InputError(f"{names[seed]} and {name} both have seed {seed}")
            names[seed] = name
    expected = dict(_facts(first))
    for name, run in others:
        facts = dict(_facts(run))
        for key in {**expected, **facts}:
            if facts.get(key) != expected.get(key):
                raise InputError(
                    f"{first_name} and {name} differ in {key}: {expected.get(key)!r} and {facts.get(key)!r}"
                )
    return settings_of(first)


def _facts(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield everything that must be equal, in the order in which differences are reported."""
    settings = settings_of(run)
    yield "policy", settings.policy
    for section, values in run.scenario.model_dump().items():
        if isinstance(values, dict):
            yield from ((f"{section}.{key}", value) for key, value in values.items())
        else:
            yield section, values
    yield "learning", settings.learning
    if settings.learning:
        yield "device", settings.device
    yield "version of FedLane", run.summary.get("version")
    for name in run.tables:
        yield f"columns of {name}", {field.name: str(field.type) for field in _table(run, name).schema}
    yield "the rounds of client_rounds (every k-th; client_rounds_every in summary.json)", _every(run.summary)
    yield "whether there is a ledger", bool(run.ledger)


def _merged_table(tables: Sequence[pa.Table], sources: Sequence[_Source]) -> pa.Table:
    """Put the rows of all replicas together, in their new order and with their new numbers."""
    if "replica" not in tables[0].column_names:  # the same for all seeds
        if not all(table.equals(tables[0]) for table in tables):
            raise InputError("the runs cannot be merged: they did not take place on the same city map")
        return tables[0]
    parts = []
    for number, source in enumerate(sources):
        table = tables[source.run]
        rows = table.filter(np.asarray(table["replica"]) == source.replica)
        if "seed" in table.column_names and set(rows["seed"].unique().to_pylist()) != {source.seed}:
            raise ValueError(f"the rows of replica {source.replica} do not have seed {source.seed}")
        field = table.schema.field("replica")
        replica = pa.array(np.full(len(rows), number), field.type)
        parts.append(rows.set_column(table.column_names.index("replica"), field, replica))
    return pa.concat_tables(parts).combine_chunks()


def _merged_models(
    models: Sequence[Mapping[str, NDArray[np.float32]]], sources: Sequence[_Source]
) -> dict[str, NDArray[np.float32]]:
    """Put the models together; names begin with ``replicaN.``"""
    merged = {}
    for number, source in enumerate(sources):
        prefix = f"replica{source.replica}."
        several = any(name.startswith("replica1.") for name in models[source.run])
        for name, tensor in models[source.run].items():
            if not several:
                merged[f"replica{number}.{name}"] = tensor
            elif name.startswith(prefix):
                merged[f"replica{number}.{name.removeprefix(prefix)}"] = tensor
    return merged


def _table(run: Run, name: str) -> pa.Table:
    """Return a table, without the largest queue if it follows from ``client_rounds``: runs of few seeds lack it."""
    table = run.tables[name]
    redundant = name == "rounds" and _every(run.summary) == 1 and "max_queue" in table.column_names
    return table.drop_columns(["max_queue"]) if redundant else table


def _every(summary: Mapping[str, Any]) -> int:
    """Return the number of rounds from one round of ``client_rounds`` to the next."""
    return int(summary.get("client_rounds_every", 1))


def _trace(tables: Mapping[str, pa.Table], setup: Setup, every: int) -> Trace:
    """Read a trace back from tables, whose ``client_rounds`` has every k-th round."""
    problem = setup.problem
    trace = Trace.empty(problem.replicas, problem.rounds, problem.clients, problem.channels, every)
    shape = problem.replicas, problem.rounds
    columns = {name: _columns(table) for name, table in tables.items()}
    rounds, assignments, queues = (columns[name] for name in ("rounds", "assignments", "client_rounds"))
    at = tuple(assignments[key].astype(np.int64) for key in ("replica", "round", "channel"))
    trace.client[at] = assignments["client"]
    trace.download_s[at], trace.compute_s[at] = assignments["download_s"], assignments["compute_s"]
    trace.upload_s[at], trace.punctual[at] = assignments["upload_s"], assignments["punctual"]
    if "energy_j" in assignments:
        trace.energy_j = np.full(trace.client.shape, np.nan)
        trace.energy_j[at] = assignments["energy_j"]
    if all(name in assignments for name in NAMES):
        trace.with_predictions()
        for name in NAMES:
            getattr(trace, name)[at] = assignments[name]
        trace.covered = covered_uploads(trace.window(), problem.deadline_s)
    trace.delay_s[:] = rounds["delay_s"].reshape(shape)
    trace.accuracy[:], trace.loss[:] = rounds["accuracy"].reshape(shape), rounds["loss"].reshape(shape)
    trace.queue[:] = queues["queue"].reshape(trace.queue.shape)
    trace.available[:] = queues["available"].reshape(trace.queue.shape)
    if "max_queue" in rounds:
        trace.max_queue = rounds["max_queue"].reshape(shape)
    trace.rounds = problem.rounds
    return trace


def _columns(table: pa.Table) -> dict[str, NDArray[Any]]:
    """Return a table's columns as arrays, null as NaN."""
    return {name: np.asarray(table[name].to_numpy()) for name in table.column_names}


def _totals(tables: Mapping[str, pa.Table], setup: Setup) -> ClientTotals | None:
    """Return presence and energy from the table of clients; None in runs that were made before it had them."""
    clients, shape = tables["clients"], setup.problem.quotas.shape
    if "present_share" not in clients.column_names:
        return None
    share, energy_j = (clients[name].to_numpy().reshape(shape) for name in ("present_share", "energy_j"))
    return ClientTotals(np.rint(share * setup.problem.rounds).astype(np.int64), energy_j)


def _summary(runs: Sequence[Run], setup: Setup, trace: Trace, tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    first = runs[0].summary
    quota: FloatArray = np.asarray(tables["clients"]["quota"].to_numpy()).reshape(setup.problem.quotas.shape)
    elapsed_s = sum(float(run.summary.get("elapsed_s") or 0.0) for run in runs)
    scale = setup.feasible_scale(quota)
    totals = _totals(tables, setup)
    summary = summarise(first["policy"], first["parameters"], trace, setup, quota, scale, elapsed_s, totals)
    uploads = trace.counts()[0]
    summary["privacy"] = PrivacySpending(setup.mechanism).summary(uploads) if first.get("privacy") else None
    return summary
