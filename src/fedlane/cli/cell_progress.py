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
    cells: Sequence[set[str]], stored: set[str], *, quiet: bool
) -> "Iterator[Callable[[FinishedBatch], None]]":
    """Show the number of finished cells and the time left: a bar on a terminal, occasional lines elsewhere.

    Args:
        cells: For each cell, the keys of its batches.
        stored: Keys of the batches that are stored.
        quiet: Whether nothing is shown.
    """
    failed = 0
    pending = [keys - stored for keys in cells]
    owners: dict[str, list[set[str]]] = {}
    for keys in pending:
        for key in keys:
            owners.setdefault(key, []).append(keys)
    total, first = len(pending), sum(not keys for keys in pending)
    complete = first
    started = shown = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = quiet or not messages.is_terminal
    bars = Progress(*columns, TimeRemainingColumn(), console=messages, transient=True, disable=hidden)
    with announce_compilation(messages, quiet=quiet), bars as progress:
        bar = progress.add_task("cells", total=total, completed=first)

        def on_finished(finished: "FinishedBatch") -> None:
            nonlocal complete, failed, shown
            failed += finished.error is not None
            for keys in owners.get(finished.key, ()):
                keys.discard(finished.key)
                complete += not keys
            progress.update(bar, completed=complete, description=f"cells, {failed} failed" if failed else "cells")
            now = time.monotonic()
            if hidden and not quiet and now - shown > LINE_S and complete > first:
                left = (now - started) / (complete - first) * (total - complete)
                line = f"{complete} of {total} cells, about {duration(left)} left"
                messages.print(line, highlight=False, soft_wrap=True)
                shown = now

        yield on_finished
