"""Verdicts on every claim under every reading of the map, computed by the engine.

The criteria are those of the results page. A reading is judged when its schedules are stored; claims about accuracy
are `not computed` until its learning curves are stored, too. A reading's verdicts are one batch of the engine, kept in
`readings/KEY.parquet`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedlane.experiments.claims import CLAIMS, Verdict
from fedlane.experiments.claims.evidence import Evidence
from fedlane.experiments.claims.verdicts import verdicts_on
from fedlane.experiments.engine.batch_store import BatchStore
from fedlane.experiments.engine.computing import Runner, compute
from fedlane.experiments.engine.work_batches import FinishedBatch, WorkBatch, digest
from fedlane.experiments.labels import (
    BASELINES,
    FASHION_MNIST,
    LARGEST_V_POLICIES,
    OM_AND_RANDOM,
    OM_POLICIES,
    PAPER_POLICIES,
)
from fedlane.experiments.long_runs import LONG_POLICIES, long_plan, long_store
from fedlane.experiments.readings.axes import PaperReading
from fedlane.experiments.readings.design import reading_named
from fedlane.experiments.reproduce import PaperFigure, ReproductionPlan
from fedlane.experiments.store import Experiment, ResultStore, under
from fedlane.validate import InputError

CRITERIA = 2
"""Version of the criteria and of `Verdict`. Raise it when either changes: stored verdicts are then computed again."""
DEADLINES = ("deadline-0.5", "deadline-0.75", "deadline-1.5", "deadline-2", "long-deadline")


@dataclass(frozen=True)
class MapPlan:
    """How the map is computed.

    Attributes:
        readings: The readings, in order.
        schedule_seeds: Number of seeds of the delays.
        learning_seeds: Number of seeds that learn; 0 for none, so that claims about accuracy are not computed.
        first_seed: First seed of both.
        rounds: Number of rounds that replaces each reading's own, for a rough map; None for the reading's own.
        long_factor: Length of the long runs, which Theorems 3 and 4 are judged on, relative to the others.
    """

    readings: tuple[PaperReading, ...]
    schedule_seeds: int = 20
    learning_seeds: int = 5
    first_seed: int = 0
    rounds: int | None = None
    long_factor: int = 4

    def store(self, folder: Path, reading: PaperReading) -> ResultStore:
        """Store of a reading's results."""
        return ResultStore(folder, self.rounds or reading.rounds)

    def plan(self, *readings: PaperReading) -> ReproductionPlan:
        """What is computed for some readings; each takes the place of a figure."""
        return ReproductionPlan(
            {reading.name: _experiments(reading) for reading in readings},
            self.schedule_seeds,
            self.learning_seeds,
            (FASHION_MNIST,),
            self.first_seed,
            self.first_seed,
        )

    def groups(self, folder: Path) -> Iterator[tuple[ReproductionPlan, ResultStore]]:
        """Plan and store of all readings that have the same number of rounds, and of their long runs."""
        by_rounds: dict[int, list[PaperReading]] = {}
        for reading in self.readings:
            by_rounds.setdefault(self.store(folder, reading).rounds, []).append(reading)
        for rounds, group in sorted(by_rounds.items()):
            store = ResultStore(folder, rounds)
            yield self.plan(*group), store
            figures = {reading.name: _long_runs(reading) for reading in group}
            yield replace(long_plan(self.plan(*group)), figures=figures), long_store(store, self.long_factor)

    def batch(self, folder: Path, reading: PaperReading) -> WorkBatch:
        """The batch of the engine that judges a reading."""
        values = {
            "reading": reading.name,
            "folder": str(folder.resolve()),
            "plan": {**asdict(self), "readings": []},
        }
        learned = not self.plan(reading).to_learn(self.store(folder, reading))
        key = {"criteria": CRITERIA, "levels": reading.levels, "learned": learned, "plan": values["plan"]}
        return WorkBatch(digest(key), f"{__name__}:judge_reading", values)


def _experiments(reading: PaperReading) -> PaperFigure:
    """The experiments that the claims need, on Fashion-MNIST."""

    def of(policies: Iterable[str], *settings: str) -> list[Experiment]:
        return [
            under(Experiment(FASHION_MNIST, policy, setting), reading) for setting in settings for policy in policies
        ]

    learned = [
        *of((*PAPER_POLICIES, *BASELINES), "base"),
        *of((*PAPER_POLICIES, "random"), "private"),
        *of(OM_AND_RANDOM, "epsilon-0.8", *DEADLINES),
    ]
    scheduled = [
        *learned,
        *of(OM_POLICIES, "nonuniform"),
        *of((*LARGEST_V_POLICIES, *BASELINES), "same-interference"),
    ]
    return PaperFigure(tuple(dict.fromkeys(scheduled)), tuple(dict.fromkeys(learned)))


def _long_runs(reading: PaperReading) -> PaperFigure:
    """The long runs, on Fashion-MNIST."""
    return PaperFigure(tuple(under(Experiment(FASHION_MNIST, policy), reading) for policy in LONG_POLICIES))


def judge_reading(values: Mapping[str, Any]) -> pa.Table:
    """Judge all claims under a reading; ``values`` are ``reading``, ``folder`` and ``plan``. One row per claim."""
    reading, folder = reading_named(values["reading"]), Path(values["folder"])
    plan = MapPlan(**{**values["plan"], "readings": (reading,)})
    evidence = Evidence(plan.plan(reading), plan.store(folder, reading), reading, plan.long_factor)
    return pa.Table.from_pylist([asdict(verdict) for verdict in verdicts_on(CLAIMS, evidence)])


def judge_readings(
    plan: MapPlan, folder: Path, runner: Runner, progress: Callable[[], None]
) -> dict[PaperReading, Sequence[Verdict]]:
    """Judge all readings whose verdicts are not stored yet, and return the verdicts of all.

    Args:
        plan: The plan; all its schedules are stored.
        folder: Folder of the results.
        runner: What computes the verdicts.
        progress: Called after each reading.

    Raises:
        InputError: A reading could not be judged.
    """
    store = BatchStore(folder / "readings")
    batches = {reading: plan.batch(folder, reading) for reading in plan.readings}

    def on_finished(finished: FinishedBatch) -> None:
        progress()

    report = compute(list(batches.values()), store, runner, on_finished)
    for reading, batch in batches.items():
        if batch.key in report.failures:
            raise InputError(f"{reading.name}: {report.failures[batch.key]}")
    names = [field.name for field in fields(Verdict)]
    tables = {reading: store.read(batch.key, names, texts=True) for reading, batch in batches.items()}
    return {reading: [Verdict(**row) for row in table.select(names).to_pylist()] for reading, table in tables.items()}


def rough(plan: MapPlan, readings: int, rounds: int) -> MapPlan:
    """Return a plan with few readings and rounds and without learning, to try the map."""
    return replace(plan, readings=plan.readings[:readings], rounds=rounds, schedule_seeds=3, learning_seeds=0)
