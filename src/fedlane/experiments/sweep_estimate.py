"""The time that a sweep takes here, from short trials of some of its cells."""

from collections.abc import Sequence

from fedlane.experiments.sweep_plan import SweepCell, SweepPlan
from fedlane.scenario import Scenario
from fedlane.simulation.trial import estimated_seconds


def estimated_sweep_seconds(plan: SweepPlan, cells: Sequence[SweepCell], workers: int = 1) -> float:
    """Estimate how long some cells of a sweep take.

    For each policy, the first and the last of its cells are measured, and the others are taken to need as long as these
    on average.

    Args:
        plan: The sweep.
        cells: The cells that are still to be computed.
        workers: Number of cells that are computed at a time.
    """
    total = 0.0
    for policy in plan.policies:
        same = [cell for cell in cells if cell.policy == policy]
        measured = same if len(same) < 2 else [same[0], same[-1]]
        times = [_cell_seconds(plan, cell) for cell in measured]
        batches = {batch.key for cell in same for batch in cell.batches}
        in_measured = max(1, sum(len(cell.batches) for cell in measured))
        total += sum(times) / in_measured * len(batches)
    return total / workers


def _cell_seconds(plan: SweepPlan, cell: SweepCell) -> float:
    """Estimate the time of one cell, batch by batch."""
    seconds = 0.0
    for batch in cell.batches[:1]:
        scenario, seeds = Scenario.from_values(batch.values["scenario"]), batch.values["seeds"]
        each = estimated_seconds(scenario, cell.policy, seeds, learning=plan.learning, device=plan.device)
        seconds += each * sum(len(other.values["seeds"]) for other in cell.batches) / len(seeds)
    return seconds
