"""Theorems 4, 5 and 6 compared with measurements, as panels and as a table."""

import textwrap
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedlane.experiments.labels import FASHION_MNIST, LINE_STYLES, policy_label
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
from fedlane.experiments.reproduce import FIGURES, ReproductionPlan
from fedlane.experiments.store import Experiment, ResultStore, SeededExperiment, batches
from fedlane.intervals import student_interval
from fedlane.records import FloatArray
from fedlane.report.paper_figures import Line, Panel
from fedlane.theory import Bound, gaps, pseudo_regret

MLP_SEEDS = 5
BATCH_REPLICAS = 30
"""Replicas whose losses are measured in one batch."""
REGRET_POLICIES = ("mamab-om:V=1", "mamab-om:V=100", "mamab-gmba:V=100")
"""Policies whose regret is in the table."""
_TITLE_WIDTH = 50


def _measured_experiments(plan: ReproductionPlan, setting: str) -> list[Experiment]:
    experiments = FIGURES["fig-convergence"].scheduled
    return [experiment for experiment in experiments if experiment.setting == setting and experiment.task in plan.tasks]


def _seeds(plan: ReproductionPlan, experiment: Experiment) -> Sequence[int]:
    """Seeds to measure: fewer for the MLP, whose gradients over all records take longer than softmax's."""
    return plan.learned_seeds if experiment.setting != "base" else plan.learned_seeds[:MLP_SEEDS]


def _wanted(plan: ReproductionPlan) -> Iterator[SeededExperiment]:
    for setting in ("softmax", "softmax-slow", "base"):
        for experiment in _measured_experiments(plan, setting):
            yield from ((experiment, seed) for seed in _seeds(plan, experiment))


def to_measure(plan: ReproductionPlan, store: ResultStore) -> list[SeededExperiment]:
    """Runs whose losses over all training records have not been measured yet."""
    if "fig-convergence" not in plan.figures:
        return []
    return [(experiment, seed) for experiment, seed in _wanted(plan) if store.missing(KIND, experiment, [seed])]


def compute_convergence(plan: ReproductionPlan, store: ResultStore, progress: Callable[[str], None]) -> None:
    """Measure the missing losses; ``progress`` is called with the experiment's name after each run."""
    for piece in batches(to_measure(plan, store), BATCH_REPLICAS):
        measure(store, piece)
        for experiment, _ in piece:
            progress(experiment.name)


def convergence_panels(plan: ReproductionPlan, store: ResultStore) -> list[Panel]:
    """Theorem 5 on softmax at two learning rates, Theorem 6 on the MLP, and both in the constructed setting.

    The first learning rate is the paper's; the second is small enough for the theorem's condition.
    """
    if not _measured_experiments(plan, "base"):
        return []
    panels = []
    for setting, y_label in (
        ("softmax", "F(w(t)) - F(w*)"),
        ("softmax-slow", "F(w(t)) - F(w*)"),
        ("base", "|grad F(w(t))|^2"),
    ):
        lines, bounds = {}, []
        for experiment in _measured_experiments(plan, setting):
            runs = [measured(store, experiment, seed) for seed in _seeds(plan, experiment)]
            optimal = _optimal_loss(store, experiment)
            values = [run.square if optimal is None else run.loss - optimal for run in runs]
            lines[policy_label(experiment.policy)] = Line(
                runs[0].round, np.stack(values), *LINE_STYLES[experiment.policy]
            )
            bounds += [_promised(store, experiment, seed, run) for seed, run in enumerate(runs)]
        panels.append(Panel(_title(experiment, bounds), "round", y_label, lines))
    return [*panels, _constructed_panel()]


def _optimal_loss(store: ResultStore, experiment: Experiment) -> float | None:
    """Loss at the optimum, which can be computed for softmax only."""
    return optimum(store, experiment.task).loss if experiment.setting.startswith("softmax") else None


def _promised(store: ResultStore, experiment: Experiment, seed: int, losses: MeasuredLosses) -> Bound:
    result, task = store.result(experiment, seed), task_of(store, experiment, seed)
    present = participation(result.punctual, result.client, len(result.quota))
    return promised(task, present, losses, _optimal_loss(store, experiment))


def _title(experiment: Experiment, bounds: Sequence[Bound]) -> str:
    learning = experiment.scenario().learning
    theorem = 6 if experiment.setting == "base" else 5
    head = f"{learning.model}, eta {learning.learning_rate:g}"
    return "\n".join([head, *textwrap.wrap(f"Theorem {theorem}: {_bound_text(bounds)}", _TITLE_WIDTH)])


def _bound_text(bounds: Sequence[Bound]) -> str:
    """Range of the bounds of several runs; if some are vacuous, their number and the reason in the first of them."""
    vacuous = [bound for bound in bounds if bound.vacuous is not None]
    if not vacuous:
        return f"at most {_shown([bound.value for bound in bounds])}"
    return f"vacuous in {len(vacuous)} of {len(bounds)} runs; in the first, {vacuous[0].vacuous}"


def _constructed_panel() -> Panel:
    run = constructed()
    x = np.arange(1.0, len(run.gap) + 1)
    lines = {
        "F(w(t)) - F(w*)": Line(x, np.maximum(run.gap, 1e-7)[None], 0),
        "Theorem 5": Line(x, run.convex[None], 0, 2),
        "mean |grad F|^2": Line(x, run.squares[None], 1),
        "Theorem 6": Line(x, run.nonconvex[None], 1, 2),
    }
    return Panel("Constructed: equal labels, no noise, all there", "round", "measured and promised", lines, log=True)


def theorem_table(plan: ReproductionPlan, store: ResultStore) -> str:
    """Markdown table: the quantities that enter each theorem, the measured value, and the bound."""
    rows: list[tuple[str, ...]] = [("theorem", "run", "quantities in the bound", "measured", "bound"), ("---",) * 5]
    rows += [_regret_row(plan, store, policy) for policy in REGRET_POLICIES if FASHION_MNIST in plan.tasks]
    for setting in ("softmax", "softmax-slow", "base"):
        rows += [_convergence_row(plan, store, experiment) for experiment in _measured_experiments(plan, setting)]
    run = constructed()
    for theorem, what, values, bound in (
        ("5", "F - F*", run.gap, run.convex),
        ("6", "mean squared gradient", run.squares, run.nonconvex),
    ):
        measured_value, bound_text = f"{what} {values[-1]:.3g}", f"at most {bound[-1]:.3g}"
        rows.append((theorem, "constructed", f"{len(values)} rounds", measured_value, bound_text))
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows)


def _regret_row(plan: ReproductionPlan, store: ResultStore, policy: str) -> tuple[str, ...]:
    experiment = Experiment(FASHION_MNIST, policy)
    results = {seed: store.result(experiment, seed) for seed in plan.seeds(experiment)[:REGRET_SEEDS]}
    run_gaps = [gaps(mean_rewards(experiment, seed)) for seed in results]
    regret = [pseudo_regret(mean_rewards(experiment, s), assignment_of(r))[-1] for s, r in results.items()]
    promises = [promised_regret(experiment, seed, result) for seed, result in results.items()]
    bounds = [Bound(float(promise.bound[-1]), promise.vacuous) for promise in promises]
    quantities = (
        f"Delta_min {_range([gap.smallest for gap in run_gaps])}, "
        f"Delta_max {_range([gap.largest for gap in run_gaps])}, "
        f"largest queue {_range([float(result.queue.max()) for result in results.values()])}"
    )
    return "4", f"Fashion-MNIST, {policy_label(policy)}", quantities, f"regret {_shown(regret)}", _bound_text(bounds)


def _convergence_row(plan: ReproductionPlan, store: ResultStore, experiment: Experiment) -> tuple[str, ...]:
    seeds = _seeds(plan, experiment)
    runs = [measured(store, experiment, seed) for seed in seeds]
    bounds = [_promised(store, experiment, seed, run) for seed, run in zip(seeds, runs, strict=True)]
    optimal, learning = _optimal_loss(store, experiment), experiment.scenario().learning
    participation_max = [float(store.result(experiment, seed).share().max()) for seed in seeds]
    quantities = f"lambda {_range([run.smoothness for run in runs])}, P_max {_range(participation_max)}"
    if optimal is not None:
        distances = [float(run.distance.max()) for run in runs]
        quantities += f", max distance to w* {_range(distances)}, F(w*) {optimal:.4f}"
        measured_value = f"F - F* {_shown([float(run.loss[-1]) - optimal for run in runs])}"
    else:
        steps = learning.local_iterations  # the gradients of a round's steps are about as long as the first
        measured_value = f"{steps} |grad F|^2, mean over rounds {_shown([steps * run.squares for run in runs])}"
    name = f"{learning.model}, eta {learning.learning_rate:g}, {policy_label(experiment.policy)}"
    return "6" if optimal is None else "5", name, quantities, measured_value, _bound_text(bounds)


def _shown(values: Sequence[float]) -> str:
    """Mean and 95% interval as text; without the interval for a single value."""
    low, mean, high = student_interval(np.asarray(values, np.float64))
    return f"{mean:.3g}" if len(values) == 1 else f"{mean:.3g} [{low:.3g}, {high:.3g}]"


def _range(values: Sequence[float] | FloatArray) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"
