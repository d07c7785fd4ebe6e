"""A page for every cell of the arena: the run of its first seed, as `fedlane report` shows it.

A page takes about a quarter of a megabyte and half a second, so every cell gets one. Only entrants that require losses
train for it; the pages of the others show only their schedules.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedlane.experiments.arena.entrants import OPTIMUM
from fedlane.experiments.arena.plan import ArenaCell, ArenaPlan
from fedlane.experiments.engine.cells import Cell
from fedlane.experiments.engine.computing import Runner, compute
from fedlane.experiments.engine.measuring import played
from fedlane.experiments.engine.work_batches import FinishedBatch, WorkBatch
from fedlane.files import file_name, write_atomically
from fedlane.report.page import build_page
from fedlane.report.page_data import page_data
from fedlane.validate import InputError

FOLDER = "runs"
"""Folder of the pages in an arena's folder."""
PAGE = f"{__name__}:run_page"


def run_page(values: Mapping[str, Any]) -> pa.Table:
    """Simulate the seeds of a cell and return the page of their run, as a table with one value.

    Args:
        values: As in `fedlane.experiments.engine.measuring.played`.
    """
    run = played(values).result()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        run.save(folder)
        page = build_page(page_data([folder]))
    return pa.table({"page": pa.array([page.encode()], pa.binary())})


class PageKeeper:
    """Keeps pages as files whose names contain the key of their batch, so that each page is made once.

    Args:
        folder: The folder of the pages.
        names: The name of each page, by key.
    """

    def __init__(self, folder: Path, names: Mapping[str, str]) -> None:
        self.folder, self.names = folder, names

    def path(self, key: str) -> Path:
        """Return the file of a page."""
        return self.folder / f"{self.names[key]}-{key[:8]}.html"

    def keys(self) -> set[str]:
        """Return the keys of the pages that exist."""
        return {key for key in self.names if self.path(key).is_file()}

    def write(self, key: str, content: bytes) -> None:
        """Write a page.

        Raises:
            InputError: The file cannot be written.
        """
        page = pq.read_table(pa.BufferReader(content))["page"][0].as_py()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path(key), page)
        except OSError as error:
            raise InputError(f"{self.path(key)} cannot be written: {error.strerror}") from error


def page_batches(plan: ArenaPlan) -> list[tuple[ArenaCell, WorkBatch]]:
    """Return the batch that makes each cell's page; cells of the optimum and refused cells have none."""
    pairs = []
    for cell in plan.cells:
        if cell.error is None and cell.entrant.name != OPTIMUM:
            learning = cell.entrant.needs_losses
            single = Cell(cell.world.scenario, cell.entrant.policy, plan.seeds[:1], learning)
            pairs.append((cell, single.batches(PAGE)[0]))
    return pairs


def page_keeper(plan: ArenaPlan, folder: Path) -> PageKeeper:
    """Return the keeper of a plan's pages in an arena's folder."""
    names = {batch.key: file_name(f"{cell.world.name}-{cell.entrant.label}") for cell, batch in page_batches(plan)}
    return PageKeeper(folder / FOLDER, names)


def make_pages(
    plan: ArenaPlan, runner: Runner, folder: Path, on_finished: Callable[[FinishedBatch], None] | None = None
) -> None:
    """Make the pages that an arena's folder lacks. A run that fails has no page."""
    compute([batch for _, batch in page_batches(plan)], page_keeper(plan, folder), runner, on_finished)


def page_links(plan: ArenaPlan, folder: Path) -> dict[tuple[str, str], str]:
    """Return the pages that exist, as links from the arena's folder, by world and label."""
    keeper = page_keeper(plan, folder)
    existing = keeper.keys()
    return {
        (cell.world.name, cell.entrant.label): f"{FOLDER}/{keeper.path(batch.key).name}"
        for cell, batch in page_batches(plan)
        if batch.key in existing
    }
