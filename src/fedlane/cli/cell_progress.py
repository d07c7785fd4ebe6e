"""Progress of a study: the number of finished cells and the time left."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedlane.cli.compiling import announce_compilation
from fedlane.cli.display import LINE_S
from fedlane.cli.run_plan import duration
from fedlane.cli.session import messages

if TYPE_CHECKING:  # imported inside functions, to keep `fedlane --help` fast
    from fedlane.experiments.engine.work_batches import FinishedBatch


@contextlib.contextmanager
def cell_progress(
    cells: Sequence[set[str]], stored: set[str], *, quiet: bool, weights: Sequence[float] | None = None
) -> "Iterator[Callable[[FinishedBatch], None]]":
    """Show the number of finished cells and the time left: a bar on a terminal, occasional lines elsewhere.

    Args:
        cells: For each cell, the keys of its batches.
        stored: Keys of the batches that are stored.
        quiet: Whether nothing is shown.
        weights: About how long each cell takes, in any unit; by default all take as long. The time left follows from
            the weights of finished and unfinished cells.
    """
    failed = 0
    pending = [keys - stored for keys in cells]
    owners: dict[str, list[int]] = {}
    for k, keys in enumerate(pending):
        for key in keys:
            owners.setdefault(key, []).append(k)
    total, first = len(pending), sum(not keys for keys in pending)
    complete, work = first, list(weights or [1.0] * total)
    open_work = sum(weight for weight, keys in zip(work, pending, strict=True) if keys)
    done_work = 0.0
    started = shown = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = quiet or not messages.is_terminal
    remaining = [] if weights else [TimeRemainingColumn()]
    bars = Progress(*columns, *remaining, console=messages, transient=True, disable=hidden)
    with announce_compilation(messages, quiet=quiet), bars as progress:
        bar = progress.add_task("cells", total=total, completed=first)

        def on_finished(finished: "FinishedBatch") -> None:
            nonlocal complete, done_work, failed, shown
            failed += finished.error is not None
            for k in owners.get(finished.key, ()):
                pending[k].discard(finished.key)
                complete += not pending[k]
                done_work += 0.0 if pending[k] else work[k]
            now = time.monotonic()
            left = (now - started) * (open_work / done_work - 1.0) if done_work else None
            remark = f", {failed} failed" if failed else ""
            if weights and left is not None:
                remark += f", about {duration(left)} left"
            progress.update(bar, completed=complete, description=f"cells{remark}")
            if hidden and not quiet and now - shown > LINE_S and left is not None:
                line = f"{complete} of {total} cells, about {duration(left)} left"
                messages.print(line, highlight=False, soft_wrap=True)
                shown = now

        yield on_finished
