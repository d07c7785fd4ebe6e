"""The command `fedlane merge`: one run folder from runs that differ in their seeds alone."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedlane.cli.options import JsonOption, QuietOption
from fedlane.cli.session import messages, screen


def merge(
    folder: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders that differ in seeds alone.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output folder, new or empty.")],
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Merge runs that differ in their seeds alone into the run of all seeds."""
    from fedlane.simulation import Run
    from fedlane.simulation.merging import merge_runs

    with messages.status("Merging"):
        merged = merge_runs({str(path): Run.load(path) for path in folder})
        merged.save(out)
    if as_json:
        print(json.dumps({**merged.summary, "folder": str(out)}))
    elif not quiet:
        from fedlane.report.terminal import summary_table

        screen.print(summary_table(merged.summary))
        screen.print(f"Saved to {out}", highlight=False, markup=False, soft_wrap=True)
