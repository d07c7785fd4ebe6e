"""Equal tuning: every policy gets the same number of trials, on the same seeds and worlds, with the same objective.

A policy gets one set of values for all worlds. A trial's time ratio in a world is its simulated time over that of the
policy's default (trial 0), seed by seed, averaged. A trial serves a world if its mean shortfall there exceeds the
smallest one of the policy's own trials by at most `TOLERANCE`. Among the trials that serve the most worlds, the one
with the smallest mean time ratio over worlds is chosen; the earliest wins a tie.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from fedlane.experiments.arena.arena_worlds import ArenaWorld
from fedlane.experiments.arena.entrants import YARDSTICKS, Entrant, make_entrant
from fedlane.experiments.arena.plan import ArenaPlan
from fedlane.experiments.arena.standings import TOLERANCE
from fedlane.experiments.arena.trial_design import trial_parameters
from fedlane.experiments.arena.tuned import FORMAT, parameter_text
from fedlane.experiments.engine.work_batches import digest
from fedlane.scheduling.registry import make_policy
from fedlane.validate import InputError

TRIALS = 20
TUNING_SEEDS = range(4000, 4004)
DECIMALS = 6
"""Decimals of the numbers in the file, from which the choice follows."""
OBJECTIVE = (
    "Among the trials whose mean shortfall is within the tolerance of the policy's smallest one in the most worlds, "
    "the one with the smallest mean over worlds of the ratio of its simulated time to the default's, seed by seed."
)


@dataclass(frozen=True)
class Trial:
    """A policy with the values of one trial.

    Attributes:
        policy: The policy's name.
        number: Number of the trial; 0 has the published defaults.
        parameters: The values; empty for the defaults.
    """

    policy: str
    number: int
    parameters: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Name of the trial in tables."""
        return f"{self.policy} trial {self.number}"


@dataclass(frozen=True)
class TuningPlan:
    """Everything that defines a tuning run.

    Attributes:
        policies: The policies to tune.
        worlds: The worlds.
        seeds: The tuning seeds.
        trials: Number of trials of each policy.
    """

    policies: tuple[str, ...]
    worlds: tuple[ArenaWorld, ...]
    seeds: tuple[int, ...]
    trials: int = TRIALS

    @cached_property
    def design(self) -> list[Trial]:
        """The trials of all policies."""
        return [
            Trial(policy, number, parameters)
            for policy in self.policies
            for number, parameters in enumerate(trial_parameters(make_policy(policy).ranges, self.trials))
        ]

    @cached_property
    def arena(self) -> ArenaPlan:
        """The trials as an arena: schedules only, except for policies that require losses."""
        if not self.policies:
            raise InputError("none of these policies has parameters to tune")
        members = tuple(_entrant(trial) for trial in self.design)
        return ArenaPlan(self.worlds, members, self.seeds, learning=False, optimum=False)

    def content(self, table: pa.Table) -> dict[str, Any]:
        """Return the file of tuned values, from the results of the trials.

        Args:
            table: The leaderboard's numbers of `arena`.

        Raises:
            InputError: A policy's default failed.
        """
        from fedlane import __version__

        worlds = {
            world.name: {"rounds": world.scenario.rounds, "digest": digest(world.scenario.model_dump(mode="json"))}
            for world in self.worlds
        }
        means = _means(table)
        policies = {name: self._policy(name, means) for name in self.policies}
        return {
            "format": FORMAT,
            "fedlane": __version__,
            "objective": OBJECTIVE,
            "tolerance": TOLERANCE,
            "trials": self.trials,
            "seeds": list(self.seeds),
            "worlds": worlds,
            "policies": policies,
        }

    def _policy(self, name: str, means: "Mapping[tuple[str, str], _Means]") -> dict[str, Any]:
        trials = [trial for trial in self.design if trial.policy == name]
        worlds = [world.name for world in self.worlds]
        rows: list[dict[str, Any]] = []
        for trial in trials:
            row: dict[str, Any] = {"parameters": dict(trial.parameters)}
            if all((world, trial.label) in means for world in worlds):
                default = {world: means.get((world, trials[0].label)) for world in worlds}
                if any(value is None for value in default.values()):
                    raise InputError(f"the default of {name} failed in a tuning world, so it cannot be tuned")
                own = {world: means[world, trial.label] for world in worlds}
                row["time_ratio"] = {world: round(own[world].ratio(default[world]), DECIMALS) for world in worlds}
                row["shortfall"] = {world: round(own[world].shortfall, DECIMALS) for world in worlds}
            else:
                row["error"] = "refused or failed"
            rows.append(row)
        return {"version": make_policy(name).version, "chosen": chosen_trial(rows, TOLERANCE), "trials": rows}


def chosen_trial(rows: Sequence[Mapping[str, Any]], tolerance: float) -> int:
    """Return the number of the best trial, from the rows of a policy in the file of tuned values.

    Raises:
        InputError: No trial has results.
    """
    valid = [k for k, row in enumerate(rows) if "time_ratio" in row]
    if not valid:
        raise InputError("no trial has results")
    smallest = {world: min(rows[k]["shortfall"][world] for k in valid) for world in rows[valid[0]]["shortfall"]}

    def order(k: int) -> tuple[int, float, int]:
        served = sum(rows[k]["shortfall"][world] <= low + tolerance + 1e-12 for world, low in smallest.items())
        return -served, float(np.mean(list(rows[k]["time_ratio"].values()))), k

    return min(valid, key=order)


def tunable(names: Sequence[str]) -> list[str]:
    """Return the policies that have ranges; yardsticks are left out."""
    made = [(name, make_policy(name)) for name in names]
    return [name for name, policy in made if policy.ranges and policy.name not in YARDSTICKS]


@dataclass(frozen=True)
class _Means:
    """A trial's times by seed in a world, and its mean shortfall."""

    time_s: Mapping[int, float]
    shortfall: float

    def ratio(self, default: "_Means | None") -> float:
        assert default is not None
        return float(np.mean([time / default.time_s[seed] for seed, time in self.time_s.items()]))


def _means(table: pa.Table) -> dict[tuple[str, str], _Means]:
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        rows.setdefault((row["world"], row["policy"]), []).append(row)
    return {
        key: _Means(
            {row["seed"]: row["simulated_time_s"] for row in own}, float(np.mean([row["shortfall"] for row in own]))
        )
        for key, own in rows.items()
    }


def _entrant(trial: Trial) -> Entrant:
    """Return the entrant of a trial. Values that the policy refuses are kept; their cells fail with one line."""
    plain = make_entrant(trial.policy)
    text = parameter_text(trial.policy, trial.parameters)
    return Entrant(trial.label, text, plain.league, needs_losses=plain.needs_losses)
