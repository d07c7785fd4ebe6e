"""Self-contained HTML pages without scripts, in the style of the report."""

import base64
import hashlib
import html
from importlib.resources import files

from fedlane.report.figures import COLOURS


def static_page(title: str, body: str) -> str:
    """Return a page that loads nothing and runs nothing.

    Args:
        title: Title of the page.
        body: HTML of its content.
    """
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def _style() -> str:
    palette = "".join(f"--c{k}:{colour};" for k, colour in enumerate(COLOURS))
    assets = files("fedlane.report") / "assets"
    sheets = (assets.joinpath(f"{name}.css").read_text(encoding="utf-8") for name in ("theme", "static"))
    return f":root{{{palette}}}\n" + "\n".join(sheets)
