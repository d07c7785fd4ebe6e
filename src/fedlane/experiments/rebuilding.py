"""Rebuilding of an unpacked artifact: its runs are played again and compared, tables and figures written again."""

from collections.abc import Callable
from pathlib import Path

from fedlane.experiments.artifact import changed_files
from fedlane.experiments.artifact_results import write_results
from fedlane.simulation.provenance import source_commit, versions
from fedlane.simulation.replaying import compare_runs, prepare_replay, settings_of, tolerances
from fedlane.simulation.results import Run
from fedlane.validate import InputError, printable


def rebuild(folder: Path, out: Path, device: str | None, say: Callable[[str], object]) -> bool:
    """Play the runs of an artifact again, compare them with the packed ones, and write tables and figures.

    Args:
        folder: The unpacked artifact.
        out: A new or empty folder for the runs, tables and figures.
        device: Where models are trained; None for the class of device that each run used.
        say: Called with each line about the progress.

    Returns:
        Whether every run agrees within its limits.

    Raises:
        InputError: The artifact was changed, or a run cannot be played here.
    """
    if changed := changed_files(folder):
        raise InputError(f"{changed[0]} differs from the manifest ({len(changed)} of the files do)")
    if out.exists() and any(out.iterdir()):
        raise InputError(f"output folder {out} is not empty")
    say(f"FedLane {versions()['fedlane']}" + (f" at commit {commit[:10]}" if (commit := source_commit()[0]) else ""))
    agree, rebuilt = True, {}
    for path in sorted((folder / "runs").iterdir()):
        stored = Run.load(path)
        used = device or settings_of(stored).device
        say(f"{path.name}: playing {stored.summary['rounds']} rounds of {len(stored.summary['seeds'])} seeds on {used}")
        simulation = prepare_replay(stored, used)
        simulation.play()
        rebuilt[path.name] = simulation.result()
        rebuilt[path.name].save(out / "runs" / path.name)
        for check in compare_runs(stored, rebuilt[path.name], tolerances(stored, used)):
            verdict = "agrees" if check.agrees else "DIFFERS"
            limit = f"allowed {check.allowed:g} {check.measured}" if check.allowed else "equal bits required"
            say(printable(f"  {check.name}: {verdict} (difference {check.difference:.2g}, {limit})"))
            agree &= check.agrees
    for name, content in write_results(rebuilt).items():
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    say(f"tables and figures are in {out}")
    return agree
