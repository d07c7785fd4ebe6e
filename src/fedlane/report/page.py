"""The report page: one self-contained HTML file that loads nothing else."""

import base64
import hashlib
import html
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedlane import __version__
from fedlane.files import write_atomically
from fedlane.report.figures import COLOURS
from fedlane.report.packing import embedded
from fedlane.validate import InputError

SCRIPTS = (
    *("dom", "format", "data", "scales", "pen", "saving", "chart", "lines", "dots", "grid", "bars", "heatmap"),
    *(
        "movement",
        "city",
        "map",
        "predictions",
        "round",
        "timeline",
        "player",
        "summary",
        "figures",
        "privacy",
        "scenario",
    ),
    *("sweep", "sweep_figures", "sweep_heat", "live", "app"),
)
"""Script files, in the order in which they are joined."""
STYLES = ("theme", "page", "tables", "controls", "charts", "rounds", "narrow")
"""Style sheets, in the order in which they are joined."""

MAX_TITLE = 200
"""Maximum number of characters of the scenarios' names in the title."""


def build_page(data: Mapping[str, Any], *, live: bool = False) -> str:
    """Build the HTML of a report page.

    Args:
        data: data from `page_data` or `sweep_page_data`.
        live: make the page poll its server for newer data (`fedlane watch`).

    Returns:
        The page as one self-contained HTML text.
    """
    script, style = _script(), _style()
    shown = [data["sweep"]] if "sweep" in data else data["runs"]
    title = " and ".join(dict.fromkeys(str(item["scenario"]) for item in shown)) or "waiting for a run"
    fields = {
        "policy": content_policy(live=live),
        "title": html.escape(f"{title[:MAX_TITLE]} · FedLane"),
        "style": style,
        "data": embedded({**data, "live": live, "version": __version__}),
        "script": script,
    }
    page = _asset("page.html")
    pieces = page.split("@@")  # text, field, text, ..., text; the values of fields are never searched for fields
    return "".join(piece if k % 2 == 0 else fields[piece] for k, piece in enumerate(pieces))


def write_page(page: str, path: Path) -> None:
    """Write a page atomically.

    Args:
        page: HTML text from `build_page`.
        path: file to write; an existing file is replaced.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        write_atomically(path, page.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"page {path} cannot be written: {error.strerror}") from error


def content_policy(*, live: bool) -> str:
    """Content-Security-Policy of the page: only its own script and style are allowed."""
    rules = [
        "default-src 'none'",
        f"script-src '{_digest(_script())}'",
        f"style-src '{_digest(_style())}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join([*rules, "connect-src 'self'"] if live else rules)


@cache
def _script() -> str:
    parts = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\nstart();\n}})();\n'


@cache
def _style() -> str:
    palette = "".join(f"--c{k}:{colour};" for k, colour in enumerate(COLOURS))
    return f":root{{{palette}}}\n" + "\n".join(_asset(f"{name}.css") for name in STYLES)


def _asset(name: str) -> str:
    return (files("fedlane.report") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
