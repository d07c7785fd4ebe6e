"""The command `fedlane reproduce`: the paper's figures, from results that are computed once and stored."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from fedlane.cli.compiling import announce_compilation
from fedlane.cli.options import RayAddressOption, RayOption, WorkersOption, chosen_ray, parsed_seeds
from fedlane.cli.reproduce_map import fresh_plan, judge_map, map_plan, write_map
from fedlane.cli.session import messages, screen
from fedlane.validate import InputError, unknown

if TYPE_CHECKING:  # imported inside functions, to keep `fedlane --help` fast
    from fedlane.experiments.engine.computing import Runner
    from fedlane.experiments.reproduce import ReproductionPlan
    from fedlane.experiments.store import ResultStore, SeededExperiment

MAX_SEEDS = 100_000
"""Largest number of seeds of an experiment."""


def reproduce(
    figure: Annotated[
        list[str] | None, typer.Argument(metavar="[FIGURE]...", help="Figures, for example fig-v (default: all).")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="K|A:B", help="Seeds for the accuracy figures (default: 10).")
    ] = None,
    delay_seeds: Annotated[
        str | None,
        typer.Option("--delay-seeds", metavar="K|A:B", help="Seeds for the delay-only figures (default: 200)."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Rough version: Fashion-MNIST, 3 seeds, 100 rounds; 10 rounds of CIFAR-10."),
    ] = False,
    task: Annotated[
        str | None, typer.Option("--task", metavar="T", help="One task: fashion-mnist or cifar10 (default: both).")
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="D", help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for results and figures.")] = Path(
        "runs/reproduce"
    ),
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", metavar="DIR", help="Write the untrained schedules, to train them on another machine."
        ),
    ] = None,
    import_: Annotated[
        Path | None, typer.Option("--import", metavar="DIR", help="Import learning curves from another machine.")
    ] = None,
    workers: WorkersOption = None,
    ray: RayOption = False,
    ray_address: RayAddressOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors.")] = False,
) -> None:
    """Draw the paper's figures on real data, with 95% intervals. Results are stored and reused."""
    from fedlane.experiments.pieces import prepare_export
    from fedlane.experiments.reproduce import (
        DELAY_SEEDS,
        FIGURES,
        LEARNING_SEEDS,
        MAP,
        ReproductionPlan,
        select_figures,
    )
    from fedlane.experiments.store import TASKS, ResultStore
    from fedlane.experiments.sweep import make_runner
    from fedlane.learning.federation import torch_device

    if task is not None and task not in TASKS:
        raise unknown("task", task, TASKS)
    delays = parsed_seeds("--delay-seeds", delay_seeds or str(10 if quick else DELAY_SEEDS), MAX_SEEDS)
    learns = parsed_seeds("--seeds", seeds or str(3 if quick else LEARNING_SEEDS), MAX_SEEDS)
    names = figure or [*FIGURES, MAP]
    with_map = MAP in names and task in (None, "fashion-mnist")
    plan = ReproductionPlan(
        figures=select_figures([name for name in names if name != MAP]),
        delay_seeds=len(delays),
        learning_seeds=len(learns),
        tasks=tuple(TASKS) if task is None else (task,),
        first_delay_seed=delays.start,
        first_learning_seed=learns.start,
    )
    if quick and (export is not None or import_ is not None):
        raise InputError("--quick cannot be combined with --export or --import")
    runner = make_runner(workers, chosen_ray(ray, ray_address))
    if not (ray or ray_address):
        torch_device(device)  # before the schedules, which take long
    if quick:
        _reproduce_quickly(plan, out / "quick", device, quiet, runner)
        if with_map:
            _map(out / "quick", device, quiet, runner, quick=True)
        return
    store = ResultStore(out)
    if import_ is not None:
        _import(store, import_)
    if export is not None:
        prepare_export(export)
        groups = map_plan(quick=False).groups(out) if with_map else iter(())
        _export([(plan, store), *groups], export, quiet, runner)
        return
    _compute(plan, store, device, quiet, runner)
    if with_map:  # before the page, which states how many readings each verdict holds under
        _map(out, device, quiet, runner)
    _draw(plan, store, quiet)


def _reproduce_quickly(plan: "ReproductionPlan", folder: Path, device: str, quiet: bool, runner: "Runner") -> None:
    """Draw the figures for Fashion-MNIST only, and check that CIFAR-10 runs."""
    from fedlane.experiments.store import ResultStore

    rough = replace(plan, tasks=tuple(task for task in plan.tasks if task == "fashion-mnist"))
    if rough.tasks:
        store = ResultStore(folder, rounds=100)
        _compute(rough, store, device, quiet, runner)
        _draw(rough, store, quiet)
    if "cifar10" in plan.tasks and plan.figures:
        _smoke(folder, device, quiet)


def _import(store: "ResultStore", folder: Path) -> None:
    from fedlane.experiments.pieces import import_pieces

    count = import_pieces(store, folder)
    screen.print(f"Imported {count} result file{'s' * (count != 1)}.", highlight=False)


def _map(folder: Path, device: str, quiet: bool, runner: "Runner", *, quick: bool = False) -> None:
    """Compute and draw the map of readings. On a CPU its learning would take a day, so it is left out there."""
    plan, learn = map_plan(quick), device == "cuda"
    for of_rounds, store in plan.groups(folder):
        _compute(of_rounds, store, device, quiet, runner, learn=learn)
        if not learn and not quiet and of_rounds.to_learn(store):
            note = (
                f"Left out the map's learning over {store.rounds} rounds: use --device cuda, or --export and --import."
            )
            screen.print(note, highlight=False)
    verdicts = judge_map(plan, folder, runner, quiet)
    fresh, confirmed = fresh_plan(plan, verdicts, folder), None
    if fresh is not None:
        for of_rounds, store in fresh.groups(folder):
            _compute(of_rounds, store, device, quiet, runner)
        confirmed = judge_map(fresh, folder, runner, quiet)
    write_map(plan, verdicts, confirmed, folder, quiet)


def _export(
    plans: "Sequence[tuple[ReproductionPlan, ResultStore]]", folder: Path, quiet: bool, runner: "Runner"
) -> None:
    """Write the untrained pieces of some plans, whose schedules are computed first."""
    from fedlane.experiments.pieces import export_pieces

    count = 0
    for plan, store in plans:
        _compute(plan, store, "cpu", quiet, runner, learn=False)
        count += export_pieces(plan, store, folder, first=count)
    screen.print(f"Wrote {count} piece{'s' * (count != 1)} to {folder}. Train each piece with", highlight=False)
    screen.print("python -m fedlane.learning.replay piece-NN.npz --device cuda --out curves-NN.npz", highlight=False)


class _Rate(ProgressColumn):
    """Progress column that shows the number of items per second."""

    def render(self, task: Task) -> Text:
        """Return the speed of a task as text."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.3g}/s")


def _compute(
    plan: "ReproductionPlan", store: "ResultStore", device: str, quiet: bool, runner: "Runner", *, learn: bool = True
) -> None:
    """Compute the missing schedules, learning curves and losses, with progress bars."""
    from fedlane.experiments.engine.local_runners import InProcessRunner
    from fedlane.experiments.long_runs import compute_long_runs, to_run_long
    from fedlane.experiments.reproduce import compute_schedules, learn_pieces
    from fedlane.experiments.theorems import compute_convergence, to_measure

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeElapsedColumn())
    hidden = quiet or not messages.is_terminal
    bars = Progress(*columns, TimeRemainingColumn(), console=messages, transient=True, disable=hidden)
    with announce_compilation(messages, quiet=quiet), bars as progress:
        bar = progress.add_task("schedules", total=len(plan.to_schedule(store)))
        compute_schedules(plan, store, lambda name: progress.advance(bar), runner)
        if missing := to_run_long(plan, store):
            bar = progress.add_task("long runs", total=len(missing))
            compute_long_runs(plan, store, lambda name: progress.advance(bar))
        pieces = plan.to_learn(store) if learn else []
        bar = progress.add_task("rounds learned", total=sum(len(piece) for piece in pieces) * store.rounds)
        if isinstance(runner, InProcessRunner):
            _learn_here(store, pieces, device, lambda rounds: progress.update(bar, completed=rounds))
        elif pieces:
            learn_pieces(plan, store, device, runner, lambda size: progress.advance(bar, size * store.rounds))
        if learn:
            bar = progress.add_task("losses for the theorems", total=len(to_measure(plan, store)))
            compute_convergence(plan, store, lambda name: progress.advance(bar))


def _learn_here(
    store: "ResultStore", pieces: "list[list[SeededExperiment]]", device: str, progress: Callable[[int], None]
) -> None:
    """Train from pieces in this process, on all its threads; ``progress`` is called with the rounds learned so far."""
    before = 0
    for piece in pieces:

        def advance(rounds: int, accuracy: float, size: int = len(piece), start: int = before) -> None:
            progress(start + size * rounds)

        store.learn(piece, device, advance)
        before += len(piece) * store.rounds


def _draw(plan: "ReproductionPlan", store: "ResultStore", quiet: bool) -> None:
    """Draw the figures, and write the results page if the plan includes all figures."""
    from fedlane.experiments.ablation import ablation_section
    from fedlane.experiments.claims import judge
    from fedlane.experiments.panels import Drawer
    from fedlane.experiments.reproduce import FIGURES
    from fedlane.experiments.results_page import PageParts, stored_map, write_page
    from fedlane.experiments.theorems import theorem_table
    from fedlane.report.paper_figures import draw

    drawer = Drawer(plan, store)
    folder = store.folder / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name in plan.figures:
        panels = getattr(drawer, name.replace("-", "_"))()
        written = draw(panels, folder / name) if panels else []
        if written:
            drawn.append(name)
        if written and not quiet:
            screen.print(f"Drew {written[0]}", highlight=False, markup=False, soft_wrap=True)
    if set(plan.figures) == set(FIGURES):  # the claims need all figures
        extras = PageParts(theorem_table(plan, store), ablation_section(plan, store), stored_map(folder))
        path = write_page(store.folder, plan, drawn, judge(plan, store), extras)
        if not quiet:
            screen.print(f"Wrote {path}", highlight=False, markup=False, soft_wrap=True)


def _smoke(folder: Path, device: str, quiet: bool) -> None:
    """Run ten rounds of CIFAR-10, to check that it works on this machine."""
    from fedlane.experiments.store import Experiment, ResultStore

    store = ResultStore(folder, rounds=10)
    experiment = Experiment("cifar10", "lane")
    store.schedule(experiment, range(1))
    if store.missing("learned", experiment, range(1)):
        store.learn([(experiment, 0)], device)
    learned = store.result(experiment, 0).learned
    if learned is not None and not quiet:
        screen.print(f"CIFAR-10, 10 rounds of lane: accuracy {float(learned.accuracy[0, -1]):.3f}", highlight=False)
