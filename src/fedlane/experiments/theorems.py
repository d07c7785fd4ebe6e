"""What the theorems promise beside what was measured, as panels and as a table: Theorems 4, 5 and 6."""

import textwrap
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedlane.experiments.figures import LOOKS, label
from fedlane.experiments.loss_gaps import (
    KIND,
    MeasuredLosses,
    constructed,
    measure,
    measured,
    optimum,
    participation,
    promised,
    task_of,
)
from fedlane.experiments.regret_and_timing import REGRET_SEEDS, assignment_of, mean_rewards, promised_regret
from fedlane.experiments.reproduce import FIGURES, PAPER, ReproductionPlan
from fedlane.experiments.store import Experiment, ResultStore, batches
from fedlane.intervals import student_interval
from fedlane.records import FloatArray
from fedlane.report.paper_figures import Line, Panel
from fedlane.theory import Bound, gaps, pseudo_regret

MLP_SEEDS = 5
AT_ONCE = 30
SHOWN = (PAPER[0], PAPER[2], PAPER[5])
"""Whose regret is in the table: OM at V = 1 and 100, GMBA at V = 100."""
_TITLE_WIDTH = 50


def _cells(plan: ReproductionPlan, setting: str) -> list[Experiment]:
    cells = FIGURES["fig-convergence"].scheduled
    return [cell for cell in cells if cell.setting == setting and cell.task in plan.tasks]


def _seeds(plan: ReproductionPlan, cell: Experiment) -> range:
    """Ten for softmax, fewer for the MLP, whose gradients over all records take longer."""
    return range(plan.learning_seeds if cell.setting != "base" else min(MLP_SEEDS, plan.learning_seeds))


def _wanted(plan: ReproductionPlan) -> Iterator[tuple[Experiment, int]]:
    for setting in ("softmax", "softmax-slow", "base"):
        for cell in _cells(plan, setting):
            yield from ((cell, seed) for seed in _seeds(plan, cell))


def to_measure(plan: ReproductionPlan, store: ResultStore) -> list[tuple[Experiment, int]]:
    """The runs whose losses over all training records are still to be measured."""
    if "fig-convergence" not in plan.figures:
        return []
    return [(cell, seed) for cell, seed in _wanted(plan) if store.missing(KIND, cell, [seed])]


def compute_convergence(plan: ReproductionPlan, store: ResultStore, progress: Callable[[str], None]) -> None:
    """Measure what is missing; ``progress`` is told of each run that is done."""
    for piece in batches(to_measure(plan, store), AT_ONCE):
        measure(store, piece)
        for cell, _ in piece:
            progress(cell.name)


def convergence_panels(plan: ReproductionPlan, store: ResultStore) -> list[Panel]:
    """Theorem 5 on softmax at the paper's step and at one that it allows, Theorem 6 on the MLP, both constructed."""
    if not _cells(plan, "base"):
        return []
    panels = []
    for setting, y_label in (
        ("softmax", "F(w(t)) - F(w*)"),
        ("softmax-slow", "F(w(t)) - F(w*)"),
        ("base", "|grad F(w(t))|^2"),
    ):
        lines, bounds = {}, []
        for cell in _cells(plan, setting):
            found = [measured(store, cell, seed) for seed in _seeds(plan, cell)]
            least = _least(store, cell)
            values = [each.square if least is None else each.loss - least for each in found]
            lines[label(cell.policy)] = Line(found[0].round, np.stack(values), *LOOKS[cell.policy])
            bounds += [_promised(store, cell, seed, each) for seed, each in enumerate(found)]
        panels.append(Panel(_title(cell, bounds), "round", y_label, lines))
    return [*panels, _constructed_panel()]


def _least(store: ResultStore, cell: Experiment) -> float | None:
    """The optimum's loss, where it can be computed."""
    return optimum(store, cell.task).loss if cell.setting.startswith("softmax") else None


def _promised(store: ResultStore, cell: Experiment, seed: int, found: MeasuredLosses) -> Bound:
    result, task = store.result(cell, seed), task_of(store, cell, seed)
    present = participation(result.punctual, result.client, len(result.quota))
    return promised(task, present, found, _least(store, cell))


def _title(cell: Experiment, bounds: Sequence[Bound]) -> str:
    learning = cell.scenario().learning
    theorem = 6 if cell.setting == "base" else 5
    head = f"{learning.model}, eta {learning.learning_rate:g}"
    return "\n".join([head, *textwrap.wrap(f"Theorem {theorem} {_verdict(bounds)}", _TITLE_WIDTH)])


def _verdict(bounds: Sequence[Bound]) -> str:
    """What bounds of several runs say, or in how many they say nothing and why in the first of those."""
    empty = [bound for bound in bounds if bound.vacuous is not None]
    if not empty:
        return f"promises at most {_shown([bound.value for bound in bounds])}"
    return f"says nothing in {len(empty)} of {len(bounds)} runs: in the first, {empty[0].vacuous}"


def _constructed_panel() -> Panel:
    found = constructed()
    x = np.arange(1.0, len(found.gap) + 1)
    lines = {
        "F(w(t)) - F(w*)": Line(x, np.maximum(found.gap, 1e-7)[None], 0),
        "Theorem 5": Line(x, found.convex[None], 0, 2),
        "mean |grad F|^2": Line(x, found.squares[None], 1),
        "Theorem 6": Line(x, found.nonconvex[None], 1, 2),
    }
    return Panel("Constructed: equal labels, no noise, all there", "round", "measured and promised", lines, log=True)


def theorem_table(plan: ReproductionPlan, store: ResultStore) -> str:
    """The theorems' own quantities from the runs, what was measured, and what is promised, as Markdown."""
    rows: list[tuple[str, ...]] = [("theorem", "run", "its own figures", "measured", "promised"), ("---",) * 5]
    rows += [_regret_row(plan, store, policy) for policy in SHOWN if "fashion-mnist" in plan.tasks]
    for setting in ("softmax", "softmax-slow", "base"):
        rows += [_convergence_row(plan, store, cell) for cell in _cells(plan, setting)]
    found = constructed()
    for theorem, what, values, bound in (
        ("5", "F - F*", found.gap, found.convex),
        ("6", "mean squared gradient", found.squares, found.nonconvex),
    ):
        own, most = f"{len(values)} rounds", f"promises at most {bound[-1]:.3g}"
        rows.append((theorem, "constructed", own, f"{what} {values[-1]:.3g}", most))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _regret_row(plan: ReproductionPlan, store: ResultStore, policy: str) -> tuple[str, ...]:
    cell = Experiment("fashion-mnist", policy)
    results = {seed: store.result(cell, seed) for seed in plan.seeds(cell)[:REGRET_SEEDS]}
    found = [gaps(mean_rewards(cell, seed)) for seed in results]
    regret = [pseudo_regret(mean_rewards(cell, s), assignment_of(r))[-1] for s, r in results.items()]
    promises = [promised_regret(cell, seed, result) for seed, result in results.items()]
    bounds = [Bound(float(promise.bound[-1]), promise.vacuous) for promise in promises]
    own = (
        f"Delta_min {_range([gap.smallest for gap in found])}, Delta_max {_range([gap.largest for gap in found])}, "
        f"largest queue {_range([float(result.queue.max()) for result in results.values()])}"
    )
    return "4", f"Fashion-MNIST, {label(policy)}", own, f"regret {_shown(regret)}", _verdict(bounds)


def _convergence_row(plan: ReproductionPlan, store: ResultStore, cell: Experiment) -> tuple[str, ...]:
    seeds = _seeds(plan, cell)
    found = [measured(store, cell, seed) for seed in seeds]
    bounds = [_promised(store, cell, seed, each) for seed, each in zip(seeds, found, strict=True)]
    least, learning = _least(store, cell), cell.scenario().learning
    most = [float(store.result(cell, seed).share().max()) for seed in seeds]
    own = f"lambda {_range([each.smoothness for each in found])}, P_max {_range(most)}"
    if least is not None:
        own += f", max distance to w* {_range([float(each.distance.max()) for each in found])}, F(w*) {least:.4f}"
        measured_value = f"F - F* {_shown([float(each.loss[-1]) - least for each in found])}"
    else:
        steps = learning.local_iterations  # a round's steps, each about as long as the first
        measured_value = f"{steps} |grad F|^2, mean over rounds {_shown([steps * each.squares for each in found])}"
    run = f"{learning.model}, eta {learning.learning_rate:g}, {label(cell.policy)}"
    return "6" if least is None else "5", run, own, measured_value, _verdict(bounds)


def _shown(values: Sequence[float]) -> str:
    """Mean and interval; the value alone where there is one."""
    low, mean, high = student_interval(np.asarray(values, np.float64))
    return f"{mean:.3g}" if len(values) == 1 else f"{mean:.3g} [{low:.3g}, {high:.3g}]"


def _range(values: Sequence[float] | FloatArray) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"
