"""What `fedlane arena` and `fedlane arena tune` share: choosing worlds and policies, playing, and the dry run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlane.cli.cell_progress import cell_progress
from fedlane.cli.run_plan import duration
from fedlane.cli.session import InterruptedRunError, messages, print_notes, screen
from fedlane.validate import InputError, printable, unknown

if TYPE_CHECKING:  # imported inside functions, to keep `fedlane --help` fast
    from fedlane.experiments.arena.arena_worlds import ArenaWorld
    from fedlane.experiments.arena.plan import ArenaPlan
    from fedlane.experiments.arena.playing import ArenaResult
    from fedlane.experiments.engine.computing import Runner

SHOWN_FAILURES = 5
"""Largest number of failures that are printed; failures.json has all."""


@dataclass(frozen=True)
class Output:
    """How a command prints.

    Attributes:
        as_json: Print JSON and nothing else.
        quiet: Print only errors.
    """

    as_json: bool
    quiet: bool

    @property
    def silent(self) -> bool:
        """Whether neither progress nor notes are shown."""
        return self.as_json or self.quiet

    def line(self, text: str) -> None:
        """Print a line of the result."""
        if not self.silent:
            screen.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def notes(self, lines: list[str]) -> None:
        """Print notes."""
        if not self.silent:
            print_notes(lines)


def chosen_worlds(
    names: Sequence[str], settings: list[str] | None, rounds: int | None, output: Output, *, learning: bool
) -> "tuple[ArenaWorld, ...]":
    """Return the worlds whose data are on this machine; a line names each of the others.

    Raises:
        InputError: A world is unknown or named twice, a setting is invalid, or no world is left.
    """
    from fedlane.experiments.arena.arena_worlds import make_world

    if len(set(names)) < len(names):
        raise InputError(f"--world names the same world twice: {', '.join(names)}")
    present, absent = [], []
    for name in names:
        world = make_world(known_world(name), settings or (), rounds)
        missing = world.missing_data(learning=learning)
        if missing is None:
            present.append(world)
        else:
            absent.append(f"skipped {name}: {missing}")
    if not present:
        raise InputError(absent[0] if absent else "the arena needs at least one world")
    output.notes(absent)
    return tuple(present)


def known_world(name: str) -> str:
    """Return the name of a world if it is a preset or a file; otherwise raise `InputError` with the most similar."""
    from fedlane.experiments.arena.arena_worlds import TARGETS
    from fedlane.scenario import presets

    if name in presets() or name.endswith(".toml") or Path(name).exists():
        return name
    raise unknown("world", name, TARGETS)


def chosen_policies(names: list[str] | None, output: Output, *, no_learning: bool) -> list[str]:
    """Return the policies that a command names, by default FedLane's own.

    Raises:
        InputError: A policy is unknown, or requires losses although nothing may be learned.
    """
    from fedlane.experiments.arena.entrants import built_in_policies
    from fedlane.scheduling.policy import check_losses, requires_losses
    from fedlane.scheduling.registry import make_policy

    if names is not None:
        for name in names:
            check_losses(make_policy(name), learning=not no_learning)
        return names
    chosen = built_in_policies()
    if no_learning:
        left_out = [name for name in chosen if requires_losses(make_policy(name))]
        if left_out:
            output.notes([f"left out {', '.join(left_out)}, which require losses"])
        chosen = [name for name in chosen if name not in left_out]
    return chosen


def play(plan: "ArenaPlan", runner: "Runner", folder: Path, output: Output) -> "ArenaResult":
    """Play an arena with a progress bar.

    Raises:
        InterruptedRunError: The user pressed Ctrl-C.
    """
    from fedlane.experiments.arena.playing import is_stored, play_arena, stored_keys

    cells = [{batch.key for batch in cell.batches} for cell in plan.cells]
    try:
        weights = [cell.weight for cell in plan.cells]
        with cell_progress(cells, stored_keys(plan, folder), quiet=output.silent, weights=weights) as on_finished:
            result = play_arena(plan, runner, folder, on_finished)
    except KeyboardInterrupt:
        stored = stored_keys(plan, folder)
        count = sum(is_stored(cell, stored) for cell in plan.cells)
        raise InterruptedRunError(
            f"interrupted: {count} of {len(plan.cells)} cells are stored in {folder}; "
            "the same command with --out continues"
        ) from None
    report_failures(result, len(plan.cells), folder)
    return result


def report_failures(result: "ArenaResult", cells: int, folder: Path) -> None:
    """Print the first failures in red."""
    from fedlane.experiments.arena.playing import FAILURES

    for failure in result.failures[:SHOWN_FAILURES]:
        _red(f"fedlane: {failure['policy']} in {failure['world']} failed: {failure['error']}")
    if result.failures:
        _red(f"fedlane: {len(result.failures)} of {cells} cells failed; see {folder / FAILURES}")


def _red(text: str) -> None:
    messages.print(printable(text), style="red", highlight=False, markup=False, soft_wrap=True)


def show_plan(plan: "ArenaPlan", folder: Path | None, workers: int, output: Output) -> None:
    """Print the cells of an arena, which of them are stored, and about how long the others take."""
    from fedlane.experiments.arena.estimate import estimated_arena_seconds
    from fedlane.experiments.arena.playing import check_arena_folder, is_stored, stored_keys

    if folder is not None:
        check_arena_folder(folder)
    stored = stored_keys(plan, folder)
    missing = [cell for cell in plan.cells if not is_stored(cell, stored) and cell.error is None]
    with messages.status("measuring cells"):
        seconds = estimated_arena_seconds(plan, missing, workers)
    if output.as_json:
        cells: list[dict[str, Any]] = [
            {
                "world": c.world.name,
                "policy": c.entrant.label,
                "parameters": c.entrant.policy,
                "league": c.entrant.league,
                "learning": c.learning,
                "stored": is_stored(c, stored),
                "error": c.error,
            }
            for c in plan.cells
        ]
        print(json.dumps({"cells": cells, "seeds": list(plan.seeds), "missing": len(missing), "seconds": seconds}))
        return
    for cell in plan.cells:
        remark = f"  fails: {cell.error}" if cell.error else "  stored" if is_stored(cell, stored) else ""
        output.line(f"{cell.label}{remark}")
    time_left = f": about {duration(seconds)} with {workers} worker{'s' * (workers != 1)}" if missing else ""
    seeds = f"{len(plan.seeds)} seed{'s' * (len(plan.seeds) != 1)}"
    output.line(f"{len(plan.cells)} cells x {seeds}, {len(missing)} to compute{time_left}")
