"""The federation as an ordinary run folder: the same tables as simulation writes, from what was measured.

Where the clients stand is not known: positions are null. Epsilons are the clients' own where every order was answered,
else what they agreed to (see `roster`). ``uploads`` are orders sent, those of a round that a crash cut off included.
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
from fedlane.simulation.results import Run, summarise
from fedlane.simulation.tables import run_tables


@dataclass(frozen=True)
class _World:
    """The `World` of a real federation."""

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
    """The rounds played so far; ``flower`` goes into the summary under that name."""
    problem, trace = scheduler.problem, scheduler.trace.played()
    nowhere = Topology(np.full((1, problem.clients, 2), np.nan), np.full((1, problem.channels, 2), np.nan))
    world = _World(scenario, (scheduler.seed,), nowhere, problem)
    made = run_tables(trace, world, scheduler.quota, None)
    for name in ("clients", "channels"):
        made[name] = _with(made[name], **{key: pa.nulls(len(made[name]), pa.float64()) for key in ("x_m", "y_m")})
    made["clients"] = _with(
        made["clients"],
        uploads=pa.array([member.sent for member in members], pa.int64()),
        epsilon=pa.array([member.epsilon for member in members], pa.float64()),
    )
    epsilon = scheduler.epsilon[: trace.rounds].ravel()
    made["client_rounds"] = _with(made["client_rounds"], epsilon=pa.array(epsilon, from_pandas=True))
    parameters = resolved_parameters(scheduler.policy)
    summary = summarise(label, parameters, trace, world, scheduler.quota, None, elapsed_s)
    summary["privacy"] = _privacy(members)
    summary["flower"] = dict(flower)
    return Run(scenario=scenario, tables=made, summary=summary, model=_plain(model))


def describe(
    base: Scenario | None, name: str, scheduler: Scheduler, members: Sequence[Member], model: Mapping[str, NDArray[Any]]
) -> Scenario:
    """A scenario that says of the federation what is known; ``base`` is what the operator says of it."""
    said = [member.introduction for member in members]
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
            "learning.batch_size": [one.batch_size for one in said],
            "learning.local_iterations": max(one.local_iterations for one in said),
            "privacy.mechanism": "none",
        }
        if all(one.epsilon > 0 and 0 < one.delta < 1 and one.max_uploads > 0 for one in said):
            changes |= {
                "privacy.mechanism": "rigorous",
                "privacy.epsilon": [one.epsilon for one in said],
                "privacy.delta": [one.delta for one in said],
                "privacy.max_uploads": [one.max_uploads for one in said],
            }
    return (base or Scenario()).with_values(changes)


def _with(table: pa.Table, **columns: "pa.Array[Any]") -> pa.Table:
    """The table with some columns replaced."""
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _privacy(members: Sequence[Member]) -> dict[str, Any] | None:
    """What a reader must know of the federation's privacy, in the words of a simulation's summary."""
    private = [member for member in members if member.epsilon is not None]
    if not private:
        return None

    def ends(values: Sequence[float]) -> dict[str, float]:
        return {"smallest": min(values), "largest": max(values)}

    return {
        "mechanism": "rigorous",
        "epsilon_agreed": ends([member.introduction.epsilon for member in private]),
        "per": "run",
        "delta": ends([member.introduction.delta for member in private]),
        "epsilon": ends([member.epsilon or 0.0 for member in private]),
        "uploads": ends([member.sent for member in private]),
        "exhausted": sum(member.spent for member in private),
        "randomness": "each client's own",
        "clients": len(private),
    }


def _plain(model: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: np.ascontiguousarray(array) for name, array in model.items()}
