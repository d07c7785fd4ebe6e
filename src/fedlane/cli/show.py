"""The command `fedlane show`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.syntax import Syntax

from fedlane.cli.options import JsonOption, SeedOption, SetOption, resolved_scenario
from fedlane.cli.session import damaged_if_wrong, messages, print_notes, screen, warn
from fedlane.validate import printable


def show(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A preset, a TOML file, or a folder of run, compare or sweep.")
    ],
    set_: SetOption = None,
    seed: SeedOption = 0,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Draw each client's classes into a PNG or PDF file."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show all values of a scenario, the summary of a run folder, a comparison, or a sweep."""
    from fedlane.scenario import presets

    if Path(scenario).is_dir() and scenario not in presets():
        _show_folder(Path(scenario), as_json)
        return
    resolved = resolved_scenario(scenario, set_, None)
    if picture is not None:
        from fedlane.report.figures import partition_figure
        from fedlane.simulation.setup import prepare

        partition_figure(prepare(resolved, [seed]).label_counts[0], picture)
        line = f"Drew the partition of seed {seed} to {printable(str(picture))}"
        messages.print(line, highlight=False, markup=False, soft_wrap=True)
    elif as_json:
        print(json.dumps(resolved.model_dump()))
    elif screen.is_terminal:
        screen.print(Syntax(resolved.to_toml(), "toml", background_color="default"))
    else:
        print(resolved.to_toml(), end="")


def _show_folder(folder: Path, as_json: bool) -> None:
    """Show the run, the comparison or the sweep in a folder."""
    from fedlane.report.comparison_files import NAME, read_comparison
    from fedlane.report.comparison_tables import comparison_tables
    from fedlane.report.sweep_cells import is_sweep
    from fedlane.report.terminal import notes, summary_table
    from fedlane.simulation.folder_files import load_summary

    if is_sweep(folder):
        _show_sweep(folder, as_json)
        return
    is_comparison = (folder / NAME).is_file()
    content = read_comparison(folder) if is_comparison else load_summary(folder)
    if as_json:
        print(json.dumps(content))
        return
    with damaged_if_wrong(folder / (NAME if is_comparison else "summary.json")):
        table = comparison_tables(content) if is_comparison else summary_table(content)
        summaries = content["runs"] if is_comparison else [content]
        remarks = [note for summary in summaries for note in notes(summary)]
    screen.print(table)
    for summary in summaries:
        if "caution" in summary:
            warn(str(summary["caution"]))
    print_notes(remarks)


def _show_sweep(folder: Path, as_json: bool) -> None:
    """Show the cells of a sweep, and how many failed."""
    from fedlane.report.sweep_cells import FAILURES, cells_json, cells_table, read_sweep

    files = read_sweep(folder)
    if as_json:
        print(json.dumps({"cells": cells_json(files.cells), "failures": list(files.failures)}))
        return
    screen.print(cells_table(files.cells))
    if files.failures:
        warn(f"{len(files.failures)} cell{'s' * (len(files.failures) > 1)} failed; see {folder / FAILURES}")
