"""The paper's figures as lists of cells, and the work that `fedlane reproduce` does for them.

Delays need no data and are cheap: two hundred seeds. Accuracy takes ten. Learning can be done here, or exported as
pieces for a machine with a GPU, which needs PyTorch and NumPy alone:

    fedlane reproduce --export pieces
    python -m fedlane.learning.replay pieces/piece-00.npz --device cuda --out pieces/curves-00.npz
    fedlane reproduce --import pieces
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedlane.experiments.store import Experiment, ResultStore, batches
from fedlane.files import READ_ERRORS, load_arrays
from fedlane.learning.schedule import Curves
from fedlane.validate import InputError, unknown

PAPER = tuple(f"mamab-{kind}:V={v}" for kind in ("om", "gmba") for v in (1, 10, 100))
BASELINES = ("random", "round-robin", "single-ucb:exploration=0.01", "single-ucb:exploration=0.1")
FEW = ("lane", "mamab-om:V=100", "random")
BOTH = ("fashion-mnist", "cifar10")
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
BUDGETS = (0.2, 0.3, 0.4, 0.5)
"""Shares of Random's mean time: less is mostly the random phase of every policy, more all of the fastest one's run."""
DELAY_SEEDS, LEARNING_SEEDS = 200, 10
AT_ONCE = {"fashion-mnist": 120, "cifar10": 60}
"""Replicas that learn as one piece: a few minutes each."""


def _cells(
    policies: Iterable[str], tasks: Iterable[str], setting: str = "base", reading: str = "calibrated"
) -> list[Experiment]:
    return [Experiment(task, policy, setting, reading) for task in tasks for policy in policies]


@dataclass(frozen=True)
class PaperFigure:
    """What a figure needs: cells whose schedule counts, and among them those that learn."""

    scheduled: tuple[Experiment, ...]
    learned: tuple[Experiment, ...] = ()


def _figure(scheduled: Sequence[Experiment], learned: Sequence[Experiment] = ()) -> PaperFigure:
    return PaperFigure(tuple(dict.fromkeys([*scheduled, *learned])), tuple(learned))


_V = _cells((*PAPER, "random", "lane"), BOTH)
_LITERAL = _cells(PAPER, BOTH, reading="literal")
_PRIVATE = [*_cells((*PAPER, "random", "lane"), BOTH, "private"), *_cells(PAPER, BOTH, "private", "literal")]
_ALL = _cells((*PAPER, *BASELINES, "lane", "genie"), BOTH)
_EQUAL_BATCH = _cells(("mamab-om:V=100", "random"), BOTH, "epsilon-0.8")
FIGURES: dict[str, PaperFigure] = {
    "fig-v": _figure([], [*_V, *_LITERAL]),
    "fig-private": _figure([], [*_PRIVATE, *_EQUAL_BATCH]),
    "fig-rounds": _figure(_V),
    "fig-selection": _figure(
        [cell for setting in ("base", "nonuniform") for cell in _cells((*PAPER[:3], "lane"), BOTH, setting)]
    ),
    "fig-accuracy": _figure([], _ALL),
    "fig-delay": _figure([*_ALL, *_cells((*PAPER[2::3], *BASELINES), ("fashion-mnist",), "same-interference")]),
    "fig-regret": _figure(_cells((*PAPER, *BASELINES, "lane"), ("fashion-mnist",))),
    "fig-queues": _figure(
        _cells(
            ("mamab-om:V=10,quota_slack=0.125", "mamab-om:V=10,quota_slack=0.125,queue_weight=success", "lane"),
            BOTH[:1],
        )
    ),
    "fig-convergence": _figure(
        [
            *_cells(FEW, ("fashion-mnist",), "softmax"),
            *_cells(FEW, ("fashion-mnist",), "softmax-slow"),
            *_cells(FEW, ("fashion-mnist",)),
        ]
    ),
    "fig-complexity": _figure([]),
    "fig-sensitivity": _figure(
        [],
        [
            cell
            for setting in ("base", *SENSITIVITY, "long-deadline")
            for cell in _cells(FEW, ("fashion-mnist",), setting)
        ],
    ),
}


def chosen(names: Sequence[str]) -> dict[str, PaperFigure]:
    """The figures by name, all of them if none is named."""
    for name in names:
        if name not in FIGURES:
            raise unknown("figure", name, FIGURES)
    return {name: figure for name, figure in FIGURES.items() if not names or name in names}


@dataclass(frozen=True)
class ReproductionPlan:
    """Which seeds of which cells are wanted."""

    figures: dict[str, PaperFigure]
    delay_seeds: int
    learning_seeds: int
    tasks: tuple[str, ...] = BOTH

    def scheduled(self) -> list[Experiment]:
        cells = [cell for figure in self.figures.values() for cell in figure.scheduled]
        return [cell for cell in dict.fromkeys(cells) if cell.task in self.tasks]

    def learned(self) -> list[Experiment]:
        cells = [cell for figure in self.figures.values() for cell in figure.learned]
        return [cell for cell in dict.fromkeys(cells) if cell.task in self.tasks]

    def seeds(self, cell: Experiment) -> range:
        """A schedule's seeds: many where they are cheap, and never fewer than learn."""
        costly = cell.setting.startswith(("clients-", "channels-"))
        return range(self.learning_seeds if costly else max(self.delay_seeds, self.learning_seeds))

    def to_schedule(self, store: ResultStore) -> list[Experiment]:
        return [cell for cell in self.scheduled() if store.missing("schedule", cell, self.seeds(cell))]

    def to_learn(self, store: ResultStore) -> list[list[tuple[Experiment, int]]]:
        """What is still to be learned, in pieces."""
        pieces = []
        for task in self.tasks:
            wanted = [
                (cell, seed)
                for cell in self.learned()
                if cell.task == task
                for seed in store.missing("learned", cell, range(self.learning_seeds))
            ]
            pieces += batches(wanted, AT_ONCE[task])
        return pieces


def compute_schedules(plan: ReproductionPlan, store: ResultStore, progress: Callable[[str], None]) -> None:
    """All schedules that are missing; ``progress`` is told of each cell that is done."""
    for cell in plan.to_schedule(store):
        store.schedule(cell, plan.seeds(cell))
        progress(cell.name)


def export_pieces(plan: ReproductionPlan, store: ResultStore, folder: Path) -> int:
    """Write what is to be learned as schedule files, and whose they are; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("curves-*.npz")):
        raise InputError(f"{folder} holds curves already: take them in with --import, and export to a new folder")
    pieces = plan.to_learn(store)
    for number, piece in enumerate(pieces):
        store.to_learn(piece).save(folder / f"piece-{number:02d}.npz")
        rows = [{**asdict(cell), "seed": seed} for cell, seed in piece]
        (folder / f"piece-{number:02d}.json").write_text(json.dumps({"rounds": store.rounds, "rows": rows}))
    return len(pieces)


def import_pieces(store: ResultStore, folder: Path) -> int:
    """Take in the curves that were learned elsewhere; returns how many pieces there were."""
    files = sorted(folder.glob("curves-*.npz"))
    if not files:
        raise InputError(f"{folder} holds no curves-*.npz")
    for file in files:
        listed = folder / file.name.replace("curves", "piece").replace(".npz", ".json")
        try:
            rows = json.loads(listed.read_text())
            wanted = [
                (Experiment(**{k: v for k, v in row.items() if k != "seed"}), int(row["seed"])) for row in rows["rows"]
            ]
            rounds = int(rows["rounds"])
            stored = load_arrays(file)
            arrays = {name: stored[name] for name in ("round", "clock_s", "accuracy", "loss")}
        except READ_ERRORS as error:
            raise InputError(f"{file} cannot be taken in: {error}") from error
        shape = (len(wanted), len(arrays["round"]))
        fits = rounds == store.rounds and all(arrays[name].shape == shape for name in ("clock_s", "accuracy", "loss"))
        for r, (cell, seed) in enumerate(wanted if fits else []):  # the clock tells whose curves they are
            clock = np.cumsum(store.result(cell, seed).delay_s)[arrays["round"]]
            fits &= bool(np.allclose(arrays["clock_s"][r], clock))
        if not fits:
            raise InputError(f"{file} does not fit {listed.name}: it was learned from another schedule")
        store.keep(wanted, Curves(weights=np.zeros((len(wanted), 0)), **arrays))
    return len(files)
