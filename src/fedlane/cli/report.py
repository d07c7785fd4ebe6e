"""The commands `fedlane report` and `fedlane watch`: a page of run folders, written to a file or served."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedlane.cli.session import messages, screen
from fedlane.validate import InputError, missing_extra, printable

DEFAULT_NAME = "report.html"


def report(
    folder: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run folders, folders written by compare, or a sweep's.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Page to write (default: report.html in the first DIR)."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors.")] = False,
) -> None:
    """Write a self-contained HTML page that shows and compares runs, or shows a sweep; it needs no network."""
    from fedlane.report.page import build_page, write_page
    from fedlane.report.sweep_page import folders_page

    path = out or folder[0] / DEFAULT_NAME
    if path.is_dir():
        raise InputError(f"page {path} is a folder: give the path of a file")
    with messages.status("Building the page"):
        data, shown = folders_page(folder)
        write_page(build_page(data), path)
    if not quiet:
        size = path.stat().st_size / 1e6
        line = f"Wrote {printable(str(path))} ({shown}, {size:.1f} MB)"
        screen.print(line, highlight=False, markup=False, soft_wrap=True)


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, or a folder written by compare.")],
    host: Annotated[str, typer.Option("--host", metavar="H", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="Port; 0 chooses a free port.")] = 8050,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the address and errors.")] = False,
) -> None:
    """Serve the report page of a run, and update it while the run continues.

    By default only this machine can open the page. With another --host, a token in the printed address is required.
    """
    if not folder.is_dir():
        raise InputError(f"run folder {folder} does not exist: start the run first, or check the path")
    if (folder / "sweep.json").is_file():
        raise InputError(f"{folder} holds a sweep, and watch follows runs: fedlane report {folder} shows a sweep")
    if not 0 <= port <= 65535:
        raise InputError(f"--port must be 0 to 65535, got {port}")
    try:
        from fedlane.report.watch import Watch, listen, serve
    except ModuleNotFoundError as error:
        raise missing_extra("fedlane watch", "watch") from error
    with contextlib.suppress(KeyboardInterrupt), listen(host, port) as socket:
        watched = Watch.on(folder, host, socket)
        screen.print(watched.url, highlight=False, markup=False, soft_wrap=True)
        if not quiet:
            screen.print(f"Following {folder}. Press Ctrl-C to stop.", highlight=False, markup=False, soft_wrap=True)
        if open_ and _has_display():
            import webbrowser

            webbrowser.open(watched.url)
        serve(watched, socket)


def _has_display() -> bool:
    """Whether a browser can open a window; without a display, a text browser would take over the terminal."""
    if not screen.is_terminal:
        return False
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
