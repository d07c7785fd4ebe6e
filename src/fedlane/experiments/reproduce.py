"""The experiments behind each of the paper's figures, and the work of `fedlane reproduce`.

Delays need no data and are cheap to compute, so they use 200 seeds; accuracy uses 10. Learning can run here, or be
exported as pieces to a machine with a GPU, which needs only PyTorch and NumPy:

    fedlane reproduce --export pieces
    python -m fedlane.learning.replay pieces/piece-00.npz --device cuda --out pieces/curves-00.npz
    fedlane reproduce --import pieces
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from fedlane.experiments.engine.computing import Runner
from fedlane.experiments.engine.local_runners import InProcessRunner
from fedlane.experiments.engine.work_batches import FinishedBatch
from fedlane.experiments.figure_work import compute_missing, piece_batches, schedule_batches
from fedlane.experiments.labels import (
    ALL_POLICIES,
    BASELINES,
    BOTH_TASKS,
    FASHION_MNIST,
    LARGEST_V_POLICIES,
    OM_AND_RANDOM,
    OM_POLICIES,
    PAPER_POLICIES,
    REPRESENTATIVE_POLICIES,
    V_FIGURE_POLICIES,
)
from fedlane.experiments.store import (
    Experiment,
    ResultStore,
    SeededExperiment,
    batches,
)
from fedlane.validate import unknown

SENSITIVITY = tuple(
    f"{axis}-{value:g}"
    for axis, values in (
        ("tau", (1, 2, 10)),
        ("deadline", (0.5, 0.75, 1.5, 2.0)),
        ("clients", (6, 20, 40)),
        ("channels", (2, 6, 8)),
        ("degree", (0.0, 0.5, 0.95)),
    )
    for value in values
)
"""Settings of the sensitivity figure, besides the base setting."""
TIME_BUDGETS = (0.2, 0.3, 0.4, 0.5)
"""Time budgets as shares of Random's mean total time.

Smaller budgets consist mostly of the random phase that every policy starts with; larger ones exceed the fastest
policy's whole run.
"""
DELAY_SEEDS, LEARNING_SEEDS = 200, 10
PIECE_REPLICAS = {"fashion-mnist": 120, "cifar10": 60}
"""Replicas per exported piece, chosen so that training a piece takes a few minutes."""


def _experiments(
    policies: Iterable[str], tasks: Iterable[str], setting: str = "base", reading: str = "calibrated"
) -> list[Experiment]:
    return [Experiment(task, policy, setting, reading) for task in tasks for policy in policies]


def _on_fashion_mnist(policies: Iterable[str], *settings: str) -> list[Experiment]:
    return [experiment for setting in settings for experiment in _experiments(policies, (FASHION_MNIST,), setting)]


@dataclass(frozen=True)
class PaperFigure:
    """The experiments that a figure needs: all that are scheduled, and those among them that also learn."""

    scheduled: tuple[Experiment, ...]
    learned: tuple[Experiment, ...] = ()


def _figure(scheduled: Sequence[Experiment], learned: Sequence[Experiment] = ()) -> PaperFigure:
    return PaperFigure(tuple(dict.fromkeys([*scheduled, *learned])), tuple(learned))


_BASE = _experiments(V_FIGURE_POLICIES, BOTH_TASKS)
_LITERAL = _experiments(PAPER_POLICIES, BOTH_TASKS, reading="literal")
_PRIVATE = [
    *_experiments(V_FIGURE_POLICIES, BOTH_TASKS, "private"),
    *_experiments(PAPER_POLICIES, BOTH_TASKS, "private", "literal"),
]
_COMPARISON = _experiments(ALL_POLICIES, BOTH_TASKS)
_EQUAL_BATCH = _experiments(OM_AND_RANDOM, BOTH_TASKS, "epsilon-0.8")
_SELECTION = [
    experiment
    for setting in ("base", "nonuniform")
    for experiment in _experiments((*OM_POLICIES, "lane"), BOTH_TASKS, setting)
]
_SAMPLES = ("samples-800", "samples-800-epsilon-0.8", "samples-800-private")
_QUOTAS = ("samples-800-nonuniform", "samples-800-nonuniform-sqrt_d", "various", "various-sqrt_d")
_SLACK_POLICIES = ("mamab-om:V=10,quota_slack=0.125", "mamab-om:V=10,quota_slack=0.125,queue_weight=success")
FIGURES: dict[str, PaperFigure] = {
    "fig-v": _figure([], [*_BASE, *_LITERAL]),
    "fig-private": _figure([], [*_PRIVATE, *_EQUAL_BATCH]),
    "fig-rounds": _figure(_BASE),
    "fig-selection": _figure(_SELECTION),
    "fig-accuracy": _figure([], _COMPARISON),
    "fig-delay": _figure(
        [
            *_COMPARISON,
            *_experiments(ALL_POLICIES, ("cifar10",), "wide"),
            *_on_fashion_mnist((*LARGEST_V_POLICIES, *BASELINES), "same-interference"),
        ]
    ),
    "fig-data": _figure(
        _on_fashion_mnist((*OM_POLICIES, "lane"), *_QUOTAS),
        _on_fashion_mnist(OM_AND_RANDOM, "base", "epsilon-0.8", "private", *_SAMPLES),
    ),
    "fig-regret": _figure(_on_fashion_mnist((*PAPER_POLICIES, *BASELINES, "lane"), "base")),
    "fig-queues": _figure(_on_fashion_mnist((*_SLACK_POLICIES, "lane"), "base")),
    "fig-convergence": _figure(_on_fashion_mnist(REPRESENTATIVE_POLICIES, "softmax", "softmax-slow", "base")),
    "fig-complexity": _figure([]),
    "fig-sensitivity": _figure([], _on_fashion_mnist(REPRESENTATIVE_POLICIES, "base", *SENSITIVITY, "long-deadline")),
}


MAP = "fig-readings"
"""The map of readings, which is planned by `fedlane.experiments.readings`."""


def select_figures(names: Sequence[str]) -> dict[str, PaperFigure]:
    """Return the named figures in the order of `FIGURES`."""
    for name in names:
        if name not in FIGURES:
            raise unknown("figure", name, [*FIGURES, MAP])
    return {name: figure for name, figure in FIGURES.items() if name in names}


@dataclass(frozen=True)
class ReproductionPlan:
    """The experiments to reproduce, and their seeds.

    Attributes:
        figures: The figures by name.
        delay_seeds: Number of seeds of the delay-only figures.
        learning_seeds: Number of seeds that learn.
        tasks: The tasks.
        first_delay_seed: First seed of the delay-only figures.
        first_learning_seed: First seed that learns.
    """

    figures: dict[str, PaperFigure]
    delay_seeds: int
    learning_seeds: int
    tasks: tuple[str, ...] = BOTH_TASKS
    first_delay_seed: int = 0
    first_learning_seed: int = 0

    @property
    def learned_seeds(self) -> Sequence[int]:
        """Seeds that learn."""
        return range(self.first_learning_seed, self.first_learning_seed + self.learning_seeds)

    @property
    def scheduled_seeds(self) -> Sequence[int]:
        """Seeds of the delay-only figures, and those that learn."""
        delays = range(self.first_delay_seed, self.first_delay_seed + self.delay_seeds)
        if self.first_delay_seed == self.first_learning_seed:
            return max(delays, self.learned_seeds, key=len)
        return sorted({*delays, *self.learned_seeds})

    def scheduled(self) -> list[Experiment]:
        """Experiments whose schedules are needed, each once."""
        return self._planned(figure.scheduled for figure in self.figures.values())

    def learned(self) -> list[Experiment]:
        """Experiments whose learning curves are needed, each once."""
        return self._planned(figure.learned for figure in self.figures.values())

    def _planned(self, groups: Iterable[Sequence[Experiment]]) -> list[Experiment]:
        return [item for item in dict.fromkeys(chain.from_iterable(groups)) if item.task in self.tasks]

    def seeds(self, experiment: Experiment) -> Sequence[int]:
        """Seeds of an experiment's schedules: in costly settings only those that learn."""
        costly = experiment.setting.startswith(("clients-", "channels-"))
        return self.learned_seeds if costly else self.scheduled_seeds

    def to_schedule(self, store: ResultStore) -> list[Experiment]:
        """Experiments with missing schedules."""
        return [
            experiment
            for experiment in self.scheduled()
            if store.missing("schedule", experiment, self.seeds(experiment))
        ]

    def pieces(self) -> list[list[SeededExperiment]]:
        """All experiments and seeds that learn, in pieces that are trained together.

        Pieces follow from the plan alone, not from what is stored: a curve's last bits depend on the curves that are
        trained with it. They are formed figure by figure and seed by seed, so that further figures and seeds leave the
        full pieces before them as they are.
        """
        pieces, planned = [], set[Experiment]()
        for task in self.tasks:
            for figure in self.figures.values():
                fresh = [item for item in dict.fromkeys(figure.learned) if item.task == task and item not in planned]
                planned.update(fresh)
                wanted = [(experiment, seed) for seed in self.learned_seeds for experiment in fresh]
                pieces += batches(wanted, PIECE_REPLICAS[task])
        return pieces

    def to_learn(self, store: ResultStore) -> list[list[SeededExperiment]]:
        """Pieces with missing learning curves; such a piece is trained as a whole."""
        return [
            piece
            for piece in self.pieces()
            if any(store.missing("learned", experiment, [seed]) for experiment, seed in piece)
        ]


def compute_schedules(
    plan: ReproductionPlan, store: ResultStore, progress: Callable[[str], None], runner: Runner | None = None
) -> None:
    """Compute the missing schedules.

    Args:
        plan: The plan.
        store: The store.
        progress: Called with the name of each finished experiment.
        runner: What computes them; by default this process.
    """
    wanted = [(experiment, plan.seeds(experiment)) for experiment in plan.to_schedule(store)]
    work = schedule_batches(store, wanted)
    unfinished = Counter(members[0][0].name for _, members in work.values())

    def on_finished(finished: FinishedBatch) -> None:
        name = work[finished.key][1][0][0].name
        unfinished[name] -= 1
        if not unfinished[name]:
            progress(name)

    compute_missing(store, "schedule", work, runner or InProcessRunner(), on_finished)


def learn_pieces(
    plan: ReproductionPlan, store: ResultStore, device: str, runner: Runner, progress: Callable[[int], None]
) -> None:
    """Train from the missing pieces on the workers of a runner, each piece on one thread.

    Args:
        plan: The plan.
        store: The store; it has all schedules.
        device: ``cpu`` or ``cuda``.
        runner: What computes them.
        progress: Called with the number of replicas of each finished piece.
    """
    work = piece_batches(store, plan.to_learn(store), device)
    compute_missing(store, "learned", work, runner, lambda finished: progress(len(work[finished.key][1])))
