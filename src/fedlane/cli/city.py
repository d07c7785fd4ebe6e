"""The command `fedlane city`: path gains of base stations in a city, by ray tracing."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from fedlane.cli.options import JsonOption, QuietOption
from fedlane.cli.session import messages, screen
from fedlane.validate import InputError

OPEN_STREET_MAP = ("munich", "etoile", "florence", "san_francisco")
"""Scenes of Sionna RT that were made from OpenStreetMap."""
NOTICE = "Contains information from OpenStreetMap, which is available under the ODbL 1.0: share the map under it, too"


def city(
    scene: Annotated[str, typer.Argument(metavar="SCENE", help="A scene of Sionna RT (munich, ...), or an XML file.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Map to write (.npz).")],
    stations: Annotated[
        int | None, typer.Option("--stations", min=1, max=1024, metavar="S", help="Number of stations (default: 4).")
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option("--at", metavar="X,Y,Z", help="Position of a station in metres; repeatable."),
    ] = None,
    height_m: Annotated[
        float, typer.Option("--height", metavar="M", help="Height of stations in metres, where --at is not given.")
    ] = 50.0,
    size_m: Annotated[
        float, typer.Option("--size", metavar="M", help="Side of the map around the scene's centre, in metres.")
    ] = 600.0,
    cell_m: Annotated[float, typer.Option("--cell", metavar="M", help="Side of a cell in metres.")] = 5.0,
    carrier_hz: Annotated[float, typer.Option("--carrier", metavar="HZ", help="Carrier frequency in Hz.")] = 3.5e9,
    samples: Annotated[
        int,
        typer.Option("--samples", min=1000, max=10**9, metavar="N", help="Rays per station; more lower the error."),
    ] = 4_000_000,
    depth: Annotated[int, typer.Option("--depth", min=0, max=50, metavar="N", help="Most bounces of a ray.")] = 5,
    seed: Annotated[
        int,
        typer.Option("--seed", min=0, max=4_000_000, metavar="N", help="Seed of rays and stations."),
    ] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Trace rays through a city and write a map for network.map (needs the extra city)."""
    from fedlane.network.ray_tracing import TracingSettings, trace_city

    _check_output(out, overwrite)
    for option, value, (low, high) in (
        ("--height", height_m, (1.0, 1000.0)),
        ("--size", size_m, (1.0, 1e6)),
        ("--cell", cell_m, (0.1, 1000.0)),
        ("--carrier", carrier_hz, (1e8, 1e12)),
    ):
        if not low <= value <= high:  # also for NaN
            raise InputError(f"{option} must be from {low:g} to {high:g}, got {value:g}")
    places = _places(at)
    if places is not None and stations not in (None, len(places)):
        raise InputError(f"--stations must be {len(places)}, the number of --at, got {stations}")
    number = len(places) if places is not None else stations or 4
    settings = TracingSettings(number, places, height_m, size_m, cell_m, carrier_hz, samples, depth, seed)
    with Progress(console=messages, transient=True, disable=quiet or not messages.is_terminal) as progress:
        task = progress.add_task("Tracing rays", total=settings.passes)
        traced = trace_city(scene, settings, lambda done, _: progress.update(task, completed=done))
    traced.save(out)
    heard = math.nan if not traced.streets.any() else float((traced.gain_db[:, traced.streets] > -130).mean())
    rows, columns = traced.building.shape
    notice = NOTICE if scene in OPEN_STREET_MAP else None
    if as_json:
        size = {"rows": rows, "columns": columns, "cell_m": cell_m, "bytes": out.stat().st_size}
        values = {"stations": traced.station_xyz_m.tolist(), "covered_share": heard, "notice": notice}
        print(json.dumps({"file": str(out), **size, **values}))
    elif not quiet:
        lines = [
            f"Wrote {out}: {traced.stations} stations, {rows} x {columns} cells of {cell_m:g} m, "
            f"{out.stat().st_size / 1000:.0f} kB",
            f"{100 * heard:.0f}% of the pairs of a station and a street cell lose less than 130 dB",
            f'To use it: network.model = "city", network.map = "{out}"',
        ]
        for line in (*lines, *([notice] if notice else [])):
            screen.print(line, highlight=False, markup=False, soft_wrap=True)


def _check_output(out: Path, overwrite: bool) -> None:
    """Refuse a file that cannot be written, before minutes are spent on it."""
    if out.suffix != ".npz":
        raise InputError(f"--out must end in .npz, got {out}")
    if out.exists() and not (overwrite and out.is_file()):
        raise InputError(f"{out} exists: choose another file, or replace it with --overwrite")
    if not out.parent.is_dir():
        raise InputError(f"folder {out.parent} does not exist")


def _places(texts: list[str] | None) -> tuple[tuple[float, float, float], ...] | None:
    """Return the positions of --at; None without any."""
    places = []
    for text in texts or []:
        try:
            x_m, y_m, z_m = (float(part) for part in text.split(","))
        except ValueError:
            x_m = y_m = z_m = math.nan
        if not all(abs(value) <= 1e7 for value in (x_m, y_m, z_m)):
            raise InputError(f"--at must be three numbers X,Y,Z in metres, got {text}")
        places.append((x_m, y_m, z_m))
    return tuple(places) or None
