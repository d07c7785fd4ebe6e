"""The command line's `fedlane reproduce`: the paper's figures, from cells that are computed once."""

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

from fedlane.cli.session import messages, screen
from fedlane.validate import InputError, at_least, unknown

if TYPE_CHECKING:  # imported where they are used: `fedlane --help` answers at once
    from fedlane.experiments.reproduce import ReproductionPlan
    from fedlane.experiments.store import ResultStore


def reproduce(
    figure: Annotated[
        list[str] | None, typer.Argument(metavar="[FIGURE]...", help="fig-v, fig-delay, ...; all if none is named.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", metavar="K", help="Seeds that learn (10).")] = None,
    delay_seeds: Annotated[int | None, typer.Option("--delay-seeds", metavar="K", help="Of delays (200).")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Rough: Fashion-MNIST, 3 seeds, 100 rounds; CIFAR-10 for 10 rounds.")
    ] = False,
    task: Annotated[str | None, typer.Option("--task", metavar="T", help="fashion-mnist or cifar10 alone.")] = None,
    device: Annotated[str, typer.Option("--device", metavar="D", help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where cells and figures are kept.")] = Path(
        "runs/reproduce"
    ),
    export: Annotated[
        Path | None, typer.Option("--export", metavar="DIR", help="Write what is to be learned, to learn it elsewhere.")
    ] = None,
    import_: Annotated[
        Path | None, typer.Option("--import", metavar="DIR", help="Take in what was learned elsewhere.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors.")] = False,
) -> None:
    """Draw the paper's figures on real data, with intervals; what is computed once is kept."""
    from fedlane.experiments.reproduce import (
        DELAY_SEEDS,
        LEARNING_SEEDS,
        ReproductionPlan,
        chosen,
        export_pieces,
        import_pieces,
    )
    from fedlane.experiments.store import TASKS, ResultStore

    if task is not None and task not in TASKS:
        raise unknown("task", task, TASKS)
    at_least("--seeds", 1 if seeds is None else seeds, 1)
    at_least("--delay-seeds", 1 if delay_seeds is None else delay_seeds, 1)
    figures = chosen(figure or [])
    tasks = tuple(TASKS) if task is None else (task,)
    learning, delays = seeds or (3 if quick else LEARNING_SEEDS), delay_seeds or (10 if quick else DELAY_SEEDS)
    if not quick:
        plan, store = ReproductionPlan(figures, delays, learning, tasks), ResultStore(out)
        if import_ is not None:
            count = import_pieces(store, import_)
            screen.print(f"Took in {count} pieces", highlight=False)
        _compute(plan, store, device, quiet, learn=export is None)
        if export is not None:
            count = export_pieces(plan, store, export)
            screen.print(f"Wrote {count} pieces to {export}; learn each with", highlight=False)
            screen.print(
                "python -m fedlane.learning.replay piece-NN.npz --device cuda --out curves-NN.npz", highlight=False
            )
            return
        _draw(plan, store, quiet)
        return
    if export is not None or import_ is not None:
        raise InputError("--quick is computed here: it takes no --export or --import")
    rough = ReproductionPlan(figures, delays, learning, tuple(t for t in tasks if t == "fashion-mnist"))
    if rough.tasks:
        store = ResultStore(out / "quick", rounds=100)
        _compute(rough, store, device, quiet)
        _draw(rough, store, quiet)
    if "cifar10" in tasks:
        _smoke(out / "quick", device, quiet)


class _Rate(ProgressColumn):
    """How many a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.3g}/s")


def _compute(plan: "ReproductionPlan", store: "ResultStore", device: str, quiet: bool, *, learn: bool = True) -> None:
    """Schedules, then learning, with bars of cells and replicas."""
    from fedlane.experiments.reproduce import compute_schedules
    from fedlane.experiments.theorems import compute_convergence, to_measure

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeElapsedColumn())
    hidden = quiet or not messages.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=messages, transient=True, disable=hidden) as progress:
        todo = plan.to_schedule(store)
        bar = progress.add_task("schedules", total=len(todo))
        compute_schedules(plan, store, lambda name: progress.advance(bar))
        pieces = plan.to_learn(store) if learn else []
        bar = progress.add_task("rounds learned", total=sum(len(piece) for piece in pieces) * store.rounds)
        before = 0
        for piece in pieces:

            def tell(rounds: int, accuracy: float, size: int = len(piece), start: int = before) -> None:
                progress.update(bar, completed=start + size * rounds)

            store.learn(piece, device, tell)
            before += len(piece) * store.rounds
        if learn:
            bar = progress.add_task("losses for the theorems", total=len(to_measure(plan, store)))
            compute_convergence(plan, store, lambda name: progress.advance(bar))


def _draw(plan: "ReproductionPlan", store: "ResultStore", quiet: bool) -> None:
    from fedlane.experiments.claims import judge
    from fedlane.experiments.figures import Drawer
    from fedlane.experiments.reproduce import FIGURES
    from fedlane.experiments.results_page import write_page
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
    if set(plan.figures) == set(FIGURES):  # the claims need all of them
        path = write_page(store.folder, plan, drawn, judge(plan, store), theorem_table(plan, store))
        if not quiet:
            screen.print(f"Wrote {path}", highlight=False, markup=False, soft_wrap=True)


def _smoke(folder: Path, device: str, quiet: bool) -> None:
    """Ten rounds of CIFAR-10: that it runs here."""
    from fedlane.experiments.store import Experiment, ResultStore

    store = ResultStore(folder, rounds=10)
    cell = Experiment("cifar10", "lane")
    store.schedule(cell, range(1))
    if store.missing("learned", cell, range(1)):
        store.learn([(cell, 0)], device)
    learned = store.result(cell, 0).learned
    if learned is not None and not quiet:
        screen.print(f"CIFAR-10, 10 rounds of lane: accuracy {float(learned.accuracy[0, -1]):.3f}", highlight=False)
