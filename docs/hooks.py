"""Pages that MkDocs does not find in docs/: Markdown files from elsewhere in the repository, and source files.

A link to a source file is redirected to a page that shows the file. `path.py#name` links to the line where `name`
begins, `path.py#name+text` to the first line of `name` that contains `text`; the line number is appended to the link's
text.
"""

import ast
import logging
import os
import posixpath
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parent.parent
log = logging.getLogger("mkdocs.hooks.fedlane")  # a warning here fails a strict build

MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages by the file outside docs/ that they show. The README has no page; links to it lead to the front page."""
ORIGIN = {page: path for path, page in MOVED.items() if path != "README.md"}

LINK = re.compile(r"(?P<bang>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)


class Place(NamedTuple):
    """A file of the repository and a line number in it (0 means the whole file)."""

    path: str
    line: int


def line_of(source: str, fragment: str) -> int:
    """Return the line number of `name`, `Class.method` or `name+text` in Python source, or raise LookupError."""
    name, _, text = unquote(fragment).partition("+")
    body: list[ast.stmt] = ast.parse(source).body
    node: ast.stmt | None = None
    for part in name.split("."):
        node = next((found for found in body if part in _names(found)), None)
        if node is None:
            raise LookupError(f"no {name}")
        body = getattr(node, "body", [])
    assert node is not None
    if not text:
        return node.lineno
    last = node.end_lineno or node.lineno
    for number, line in enumerate(source.splitlines()[node.lineno - 1 : last], node.lineno):
        if text in line:
            return number
    raise LookupError(f"no {text!r} in {name}")


def place_of(target: str, origin: str) -> Place | None:
    """Resolve a link in the file `origin`; None for links to other sites and within the same page."""
    if re.match(r"[a-z]+:|#|/", target):
        return None
    path, _, fragment = target.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
    if path.startswith("docs/") or path in MOVED:
        return Place(path, 0)
    if not (ROOT / path).is_file():
        raise LookupError("no such file")
    if not fragment or not path.endswith(".py"):
        return Place(path, 0)
    return Place(path, line_of((ROOT / path).read_text(), fragment))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose files are outside docs/, and a page for every source file that a page links to."""
    for page, path in ORIGIN.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    shown = set()
    for file in files.documentation_pages():
        origin = ORIGIN.get(file.src_uri, f"docs/{file.src_uri}")
        for match in LINK.finditer(FENCE.sub("", file.content_string)):
            try:
                place = place_of(match["target"], origin)
            except LookupError:
                continue  # on_page_markdown warns about it
            if place and not place.path.startswith("docs/") and place.path not in MOVED:
                shown.add(place.path)
    for path in sorted(shown):
        files.append(File.generated(config, source_page(path), content=source_markdown(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Redirect links to files of the repository to the pages that show them."""
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown
    origin = ORIGIN.get(here, f"docs/{here}")
    return outside_fences(markdown, lambda text: LINK.sub(lambda match: _link(match, here, origin), text))


def _link(match: re.Match[str], here: str, origin: str) -> str:
    text, target = match["text"], match["target"]
    try:
        place = place_of(target, origin)
    except LookupError as error:
        log.warning(f"{origin}: link to {target}: {error}")
        return match[0]
    if place is None:
        return match[0]
    fragment = "#" + target.partition("#")[2] if "#" in target else ""
    if place.path in MOVED:
        page = MOVED[place.path]
    elif place.path.startswith("docs/"):
        page = place.path.removeprefix("docs/")
    else:
        page = source_page(place.path)
        fragment = f"#L-{place.line}" if place.line else ""
        if place.line:
            text += f" <small>{place.path.removeprefix('src/fedlane/')}:{place.line}</small>"
    return f"{match['bang']}[{text}]({os.path.relpath(page, posixpath.dirname(here) or '.')}{fragment})"


def outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """Apply `change` to all Markdown outside fenced code blocks."""
    done, end = [], 0
    for fence in FENCE.finditer(markdown):
        done += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*done, change(markdown[end:])])


def source_page(path: str) -> str:
    """Return the name of the page that shows a file of the repository."""
    return f"source/{path}.md"


def source_markdown(path: str) -> str:
    """Return a page with the text of the file, in which each line has an anchor `L-number`."""
    text = (ROOT / path).read_text()
    try:
        lexer = get_lexer_for_filename(path)
        lines = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True, wrapcode=True)
        code = re.sub(r'(class="linenos">[^<]*)', r"\1 ", highlight(text, lexer, lines))
    except ClassNotFound:
        code = f"<pre>{escape(text)}</pre>"
    return f"---\nsearch: {{exclude: true}}\nhide: [toc]\n---\n\n# `{path}`\n\n{code}\n"


def _names(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return (node.name,)
    if isinstance(node, ast.Assign):
        return tuple(target.id for target in node.targets if isinstance(target, ast.Name))
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return (node.target.id,)
    return ()
