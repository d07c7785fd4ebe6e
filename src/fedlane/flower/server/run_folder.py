"""The federation as an ordinary run folder: the tables of a simulation, with measured values.

Positions and energies are null, because they are not known, and so are the delays of clients that did not answer in
time. ``epsilon`` is the client's own figure if every order was answered, and otherwise null: unreported (see `roster`).
``uploads`` counts orders, including those of a round that a crash cut off. A client is present in a round if its node
was connected at the start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedlane.flower.server.roster import Member
from fedlane.flower.server.scheduler import Scheduler
from fedlane.network import Topology
from fedlane.records import Problem
from fedlane.scenario import Scenario
from fedlane.scheduling.registry import resolved_parameters
from fedlane.simulation.results import Run
from fedlane.simulation.summary import summarise
from fedlane.simulation.tables import ClientTotals, run_tables


@dataclass(frozen=True)
class _World:
    """The world of a real federation, as far as it is known."""

    scenario: Scenario
    seeds: tuple[int, ...]
    topology: Topology
    problem: Problem


def make_run(
    scenario: Scenario,
    label: str,
    scheduler: Scheduler,
    members: Sequence[Member],
    model: Mapping[str, NDArray[Any]],
    flower: Mapping[str, Any],
    elapsed_s: float,
) -> Run:
    """Return the rounds played so far as a run; the summary gets ``flower`` under that key."""
    problem, trace = scheduler.problem, scheduler.trace.played()
    unknown_positions = Topology(np.full((1, problem.clients, 2), np.nan), np.full((1, problem.channels, 2), np.nan))
    world = _World(scenario, (scheduler.seed,), unknown_positions, problem)
    present_rounds = scheduler.rounds.present_rounds
    totals = ClientTotals(present_rounds, np.full(present_rounds.shape, np.nan))
    by_name = dict(run_tables(trace, world, scheduler.quota, None, totals))
    for name in ("clients", "channels"):
        unknown = pa.nulls(len(by_name[name]), pa.float64())
        by_name[name] = _with(by_name[name], x_m=unknown, y_m=unknown)
    by_name["clients"] = _with(
        by_name["clients"],
        uploads=pa.array([member.sent for member in members], pa.int64()),
        epsilon=pa.array([member.epsilon for member in members], pa.float64()),
    )
    epsilon = scheduler.epsilon[: trace.rounds].ravel()
    by_name["client_rounds"] = _with(by_name["client_rounds"], epsilon=pa.array(epsilon, from_pandas=True))
    parameters = resolved_parameters(scheduler.policy)
    summary = summarise(label, parameters, trace, world, scheduler.quota, None, elapsed_s, totals)
    summary["privacy"] = _privacy(members)
    summary["flower"] = dict(flower)
    arrays = {name: np.ascontiguousarray(array) for name, array in model.items()}
    return Run(scenario=scenario, tables=by_name, summary=summary, model=arrays)


def describe(
    base: Scenario | None, name: str, scheduler: Scheduler, members: Sequence[Member], model: Mapping[str, NDArray[Any]]
) -> Scenario:
    """Return a scenario with what is known about the federation, on top of the operator's ``base`` if there is one."""
    introductions = [member.introduction for member in members]
    problem = scheduler.problem
    changes: dict[str, Any] = {
        "rounds": problem.rounds,
        "network.channels": problem.channels,
        "network.deadline_s": problem.deadline_s,
        f"policies.{scheduler.policy.name}": resolved_parameters(scheduler.policy),
    }
    if base is None:
        changes |= {
            "name": name,
            "network.clients": problem.clients,
            "network.payload_bits": 8.0 * sum(array.nbytes for array in model.values()),
            "learning.batch_size": [client.batch_size for client in introductions],
            "learning.local_iterations": max(client.local_iterations for client in introductions),
            "privacy.mechanism": "none",
        }
        if all(client.epsilon > 0 and 0 < client.delta < 1 and client.max_uploads > 0 for client in introductions):
            changes |= {
                "privacy.mechanism": "rigorous",
                "privacy.epsilon": [client.epsilon for client in introductions],
                "privacy.delta": [client.delta for client in introductions],
                "privacy.max_uploads": [client.max_uploads for client in introductions],
            }
    return (base or Scenario()).with_values(changes)


def _with(table: pa.Table, **columns: "pa.Array[Any]") -> pa.Table:
    """Return the table with some columns replaced."""
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _privacy(members: Sequence[Member]) -> dict[str, Any] | None:
    """Return the summary's privacy section, with the keys of a simulation; None if no client has a mechanism."""
    private = [member for member in members if member.private]
    if not private:
        return None

    def extremes(values: Sequence[float]) -> dict[str, float | None]:
        return {"smallest": min(values, default=None), "largest": max(values, default=None)}

    reported = [member.epsilon for member in private if member.epsilon is not None]
    return {
        "mechanism": "rigorous",
        "epsilon_agreed": extremes([member.introduction.epsilon for member in private]),
        "per": "run",
        "delta": extremes([member.introduction.delta for member in private]),
        "epsilon": extremes(reported),
        "unreported": len(private) - len(reported),
        "uploads": extremes([member.sent for member in private]),
        "exhausted": sum(member.spent for member in private),
        "randomness": "each client's own",
        "clients": len(private),
    }
