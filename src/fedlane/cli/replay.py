"""The command `fedlane replay`: play a stored run again and check that it reproduces."""

import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedlane.cli.display import Display
from fedlane.cli.options import Device, JsonOption, QuietOption
from fedlane.cli.session import InterruptedRunError, messages, print_notes, screen
from fedlane.validate import InputError

if TYPE_CHECKING:  # imported only for annotations, to keep `fedlane --help` fast
    from fedlane.simulation import Run
    from fedlane.simulation.replaying import ReplayCheck


@dataclass(frozen=True)
class ReplayResult:
    """A run that was played again."""

    folder: Path
    device: str
    checks: "list[ReplayCheck]"
    notes: list[str]

    @property
    def reproduces(self) -> bool:
        """Whether every check agrees."""
        return all(check.agrees for check in self.checks)

    def as_values(self) -> dict[str, Any]:
        """Return the result as plain values for JSON."""
        return {
            "folder": str(self.folder),
            "device": self.device,
            "reproduces": self.reproduces,
            "checks": [check.as_values() for check in self.checks],
            "notes": self.notes,
        }


def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, or a folder written by compare.")],
    device: Annotated[
        Device | None, typer.Option("--device", help="Device that trains the models (default: the run's class).")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Play a stored run again and check that it reproduces.

    Exit code 0 if it does, 1 if not. Schedules must agree to the bit, learning within the printed limits. A policy or a
    model that the run names by an import path is imported: replay only folders that you trust.
    """
    from fedlane.report.run_files import run_folders

    results = [_replayed(path, device, quiet or as_json) for path in run_folders([folder])]
    if as_json:
        done = all(result.reproduces for result in results)
        print(json.dumps({"reproduces": done, "runs": [result.as_values() for result in results]}))
    elif not quiet:
        for result in results:
            screen.print(_table(result))
            print_notes(result.notes)
            verdict = "reproduces" if result.reproduces else "does NOT reproduce"
            screen.print(f"{result.folder} {verdict}", highlight=False, markup=False, soft_wrap=True)
    if not all(result.reproduces for result in results):
        raise typer.Exit(1)


def _replayed(folder: Path, device: str | None, quiet: bool) -> ReplayResult:
    """Play one run again in a temporary folder, and compare the two folders."""
    from fedlane.simulation import Run
    from fedlane.simulation.replaying import compare_runs, settings_of, tolerances

    stored = Run.load(folder)
    try:
        used = device or _available(settings_of(stored).device)
        with tempfile.TemporaryDirectory(prefix="fedlane-replay-") as temporary:
            _play(stored, used, quiet).save(Path(temporary) / "run")
            again = Run.load(Path(temporary) / "run")
        checks = compare_runs(stored, again, tolerances(stored, used))
    except InputError as error:
        raise InputError(f"{folder} cannot be replayed: {error}") from error
    except KeyboardInterrupt:
        raise InterruptedRunError(f"interrupted: {folder} was not replayed to its end; it is unchanged") from None
    return ReplayResult(folder, used, checks, _differences(stored, again))


def _play(stored: "Run", device: str, quiet: bool) -> "Run":
    from fedlane.simulation.replaying import prepare_replay

    with Display(messages, quiet=quiet) as display:
        with display.preparing("replay"):
            simulation = prepare_replay(stored, device)
        display.begin(simulation)
        simulation.play(on_round=lambda: display.update(simulation), until=stored.summary["rounds"])
        return simulation.result()


def _available(device: str) -> str:
    """Return the run's class of device, or the CPU where there is no GPU."""
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            return "cpu"
    return device


def _differences(stored: "Run", again: "Run") -> list[str]:
    """Return what differs between the machine that recorded a run and this one."""
    sessions = stored.provenance.get("sessions")
    if not sessions:
        return ["the folder has no provenance.json: versions and host of the recorded run are unknown"]
    notes: dict[str, None] = {}
    now = again.provenance["sessions"][-1]
    for session in sessions:
        for part in ("versions", "device", "host"):
            before, after = session.get(part) or {}, now.get(part) or {}
            if not isinstance(before, dict):
                continue
            for key in (key for key in before if key in after and before[key] != after[key]):
                label = key if part == "versions" else f"{part} {key}"
                notes[f"recorded with {label} {before[key]}, replayed with {after[key]}"] = None
    return list(notes)


def _table(result: ReplayResult) -> Table:
    table = Table(title=escape(f"{result.folder}, replayed on {result.device}"), title_justify="left")
    for heading, justify in (("compared", "left"), ("values", "right"), ("difference", "right"), ("allowed", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("")
    for check in result.checks:
        difference = "equal" if check.difference == 0 else f"{check.difference:.1e}"
        if not math.isfinite(check.difference):
            difference = "differs"
        allowed = "none (bits)" if check.allowed == 0 else f"{check.allowed:g} {check.measured}"
        verdict = "agrees" if check.agrees else "DIFFERS"
        table.add_row(check.name, f"{check.values:,}", difference, allowed, verdict)
    return table
