"""The command `fedlane artifact`: pack runs for readers of a paper."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedlane.cli.options import JsonOption, QuietOption
from fedlane.cli.session import messages, print_notes, screen
from fedlane.validate import InputError


def artifact(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, or a folder written by compare.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Archive to write: .zip, .tar.gz or .tgz.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing archive.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Pack runs with their tables, figures and a script that rebuilds them elsewhere."""
    from fedlane.experiments.artifact import pack_artifact
    from fedlane.report.run_files import run_folders

    if out.is_file() and not overwrite:
        raise InputError(f"artifact {out} exists: choose another file, or replace it with --overwrite")
    folders = run_folders([folder])
    with messages.status("Packing"):
        packed = pack_artifact(folders, out, None if folders == [folder] else folder)
    if as_json:
        values = {"file": str(packed.path), "bytes": packed.size, "runs": packed.runs, "files": packed.files}
        print(json.dumps({**values, "notes": packed.notes}))
    elif not quiet:
        runs = "1 run" if len(packed.runs) == 1 else f"{len(packed.runs)} runs"
        line = f"Wrote {packed.path} ({runs}, {packed.files} files, {packed.size / 1e6:.1f} MB)"
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
        screen.print("To rebuild: unpack it and run python artifact/rebuild.py", highlight=False, markup=False)
        print_notes(list(packed.notes))
