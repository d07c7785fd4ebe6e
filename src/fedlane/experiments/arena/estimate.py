"""An estimate, from short trials, of the time that an arena takes on this machine.

Not every cell is tried. A cell's time is estimated as the time of its policy in a reference world, times the ratio of
the reference policy's times in the cell's world and in the reference world.
"""

import os
from collections.abc import Sequence

from fedlane.experiments.arena.entrants import OPTIMUM
from fedlane.experiments.arena.plan import ArenaCell, ArenaPlan
from fedlane.scheduling.registry import split_name
from fedlane.simulation.trial import estimated_seconds

OPTIMUM_S = 2.0
"""Approximate time of the optimum's linear program for one seed."""


def estimated_arena_seconds(plan: ArenaPlan, cells: Sequence[ArenaCell], workers: int = 1) -> float:
    """Estimate how long some cells of an arena take.

    Args:
        plan: The arena.
        cells: The cells that are still to be computed.
        workers: Number of workers; more than there are batches or cores do not help.
    """
    played = [cell for cell in cells if cell.entrant.name != OPTIMUM and cell.error is None]
    total = OPTIMUM_S * len(plan.seeds) * sum(cell.entrant.name == OPTIMUM for cell in cells)
    for learning in (False, True):
        same = [cell for cell in played if cell.learning == learning]
        if same:
            total += _total(plan, same, learning=learning)
    batches = {batch.key for cell in cells for batch in cell.batches}
    return total / max(1, min(workers, len(batches), os.cpu_count() or 1))


def _total(plan: ArenaPlan, cells: Sequence[ArenaCell], *, learning: bool) -> float:
    """Return the seconds of cells that all learn or all do not, from one trial per policy and one per world."""
    smallest = min(cells, key=lambda cell: cell.world.scenario.network.clients * cell.world.scenario.network.channels)
    by_policy: dict[str, float] = {}
    by_world: dict[str, float] = {}
    reference = next(_base(cell) for cell in cells if cell.world == smallest.world)
    for cell in cells:
        device = "cpu" if cell.entrant.needs_losses else plan.device
        in_reference, of_reference = cell.world == smallest.world, _base(cell) == reference
        if (in_reference and _base(cell) not in by_policy) or (of_reference and cell.world.name not in by_world):
            scenario, options = cell.world.scenario, {"learning": learning, "device": device}
            seconds = estimated_seconds(scenario, cell.entrant.policy, plan.seeds, **options)  # type: ignore[arg-type]
            if in_reference:
                by_policy.setdefault(_base(cell), seconds)
            if of_reference:
                by_world.setdefault(cell.world.name, seconds)
    base = by_world.get(smallest.world.name) or max(by_world.values(), default=1.0)
    mean = sum(by_policy.values()) / max(len(by_policy), 1)
    return sum(
        by_policy.get(_base(cell), mean) * by_world.get(cell.world.name, base) / max(base, 1e-6) for cell in cells
    )


def _base(cell: ArenaCell) -> str:
    """The cell's policy without its parameters, which hardly change the time."""
    return split_name(cell.entrant.policy)[0]
