"""Verdicts on every claim under every reading of the map.

The criteria are those of the results page. A reading is scheduled, learned and judged as a whole; its verdicts are
stored in `readings/NAME.json`. Its schedules are then removed: they are the bulk of the results, and the same seeds
give the same schedules again.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedlane.experiments.claims import CLAIMS, Verdict, verdict_on
from fedlane.experiments.claims.evidence import Evidence
from fedlane.experiments.labels import BASELINES, FASHION_MNIST, LARGEST_V_POLICIES, OM_AND_RANDOM, OM_POLICIES, PAPER_POLICIES
from fedlane.experiments.readings.axes import Reading
from fedlane.experiments.reproduce import PaperFigure, ReproductionPlan
from fedlane.experiments.store import Experiment, ResultStore, under
from fedlane.files import READ_ERRORS, write_atomically
from fedlane.validate import InputError

CRITERIA = 1
"""Version of the criteria. Raise it when a criterion changes: stored verdicts are then computed again."""
DEADLINES = ("deadline-0.5", "deadline-0.75", "deadline-1.5", "deadline-2", "long-deadline")
SLACK_POLICY = "mamab-om:V=10,quota_slack=0.125,queue_weight=success"


@dataclass(frozen=True)
class MapPlan:
    """How the map is computed.

    Attributes:
        readings: The readings, in order.
        schedule_seeds: Number of seeds of the delays.
        learning_seeds: Number of seeds that learn; 0 for none, so that claims about accuracy are not computed.
        first_seed: First seed of both.
        rounds: Number of rounds that replaces each reading's own, for a rough map; None for the reading's own.
    """

    readings: tuple[Reading, ...]
    schedule_seeds: int = 20
    learning_seeds: int = 5
    first_seed: int = 0
    rounds: int | None = None

    def store(self, folder: Path, reading: Reading) -> ResultStore:
        """Store of a reading's results."""
        return ResultStore(folder, self.rounds or reading.rounds)

    def plan(self, reading: Reading) -> ReproductionPlan:
        """What is computed for a reading."""
        return ReproductionPlan(
            {"readings": _experiments(reading)},
            self.schedule_seeds,
            self.learning_seeds,
            (FASHION_MNIST,),
            self.first_seed,
            self.first_seed,
        )

    def key(self, reading: Reading) -> dict[str, Any]:
        """Everything that a reading's verdicts depend on, apart from the code of schedules and learning."""
        seeds = [self.first_seed, self.schedule_seeds, self.learning_seeds]
        return {"criteria": CRITERIA, "levels": list(reading.levels), "seeds": seeds, "rounds": self.rounds}


def _experiments(reading: Reading) -> PaperFigure:
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
        *of((SLACK_POLICY, "lane"), "base"),
        *of(OM_POLICIES, "nonuniform"),
        *of((*LARGEST_V_POLICIES, *BASELINES), "same-interference"),
    ]
    return PaperFigure(tuple(dict.fromkeys(scheduled)), tuple(dict.fromkeys(learned)))


def verdict_file(folder: Path, reading: Reading) -> Path:
    """File of a reading's verdicts."""
    return folder / "readings" / f"{reading.name}.json"


def judge_reading(plan: MapPlan, folder: Path, reading: Reading) -> list[Verdict]:
    """Judge all claims under a reading whose results are stored, and store the verdicts."""
    evidence = Evidence(plan.plan(reading), plan.store(folder, reading), reading)
    verdicts = [verdict_on(number, claim, evidence) for number, claim in enumerate(CLAIMS, start=1)]
    content = json.dumps({**plan.key(reading), "verdicts": [asdict(verdict) for verdict in verdicts]}, indent=1)
    path = verdict_file(folder, reading)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    return verdicts


def stored_verdicts(plan: MapPlan, folder: Path, reading: Reading) -> list[Verdict] | None:
    """Return the stored verdicts of a reading; None if there are none, or if they belong to other settings.

    Raises:
        InputError: The file is damaged.
    """
    path = verdict_file(folder, reading)
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if any(content[name] != value for name, value in plan.key(reading).items()):
            return None
        return [Verdict(**row) for row in content["verdicts"]]
    except READ_ERRORS as error:
        raise InputError(f"{path} is damaged ({error}): remove it to compute it again") from error


def remove_schedules(plan: MapPlan, folder: Path, reading: Reading) -> None:
    """Remove the stored schedules of a reading that has been judged."""
    store = plan.store(folder, reading)
    for experiment in plan.plan(reading).scheduled():
        shutil.rmtree(store.folder_of("schedule", experiment), ignore_errors=True)


def unjudged(plan: MapPlan, folder: Path) -> Sequence[Reading]:
    """Readings without stored verdicts."""
    return [reading for reading in plan.readings if stored_verdicts(plan, folder, reading) is None]
