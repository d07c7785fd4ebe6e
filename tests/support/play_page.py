"""Play a page: run its code blocks in order, in the current folder, and print what came of them as JSON.

python play_page.py PAGE

A block is ```python (one namespace for the page) or ```bash. With title="FILE" it is written to that file instead. A
```text block right behind it is its output, compared with doctest's `...`. Before it may stand
<!-- not run: reason --> or <!-- fails: status -->, and then its output is what it writes to stderr.
"""

import contextlib
import doctest
import io
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"(?:^<!-- (?P<marker>not run|fails): (?P<value>[^>]+?) -->\n\s*)?"
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```\n'
    r"(?:\n*^```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    title: str | None
    code: str
    output: str | None
    skipped: str | None
    status: int


def blocks(page):
    """The code blocks of a page; text blocks that are nobody's output are left out."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        if match["language"] == "text":
            continue
        found.append(
            Block(
                text[: match.start("code")].count("\n") + 1,
                match["language"],
                match["title"],
                match["code"],
                match["output"],
                match["value"] if match["marker"] == "not run" else None,
                int(match["value"]) if match["marker"] == "fails" else 0,
            )
        )
    return found


def same(want, got):
    """Whether an output is as the page shows it; spaces at the ends of lines do not count."""
    want, got = ("\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n" for text in (want, got))
    return doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)


def play(block, namespace):
    """What went wrong with a block; None if nothing did."""
    if block.title:
        Path(block.title).write_text(block.code)
        return None
    if block.language == "python":
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            exec(compile(block.code, f"block at line {block.line}", "exec"), namespace)
        got = told.getvalue()
    else:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", block.code], capture_output=True, text=True)
        if done.returncode != block.status:
            return f"ended with {done.returncode}, not {block.status}:\n{done.stderr[-2000:]}"
        got = done.stderr if block.status else done.stdout
    if block.output is not None and not same(block.output, got):
        return f"the page shows\n{block.output}\nbut it is\n{got}"
    return None


def main():
    page, wrong, took = Path(sys.argv[1]), [], []
    namespace = {"__name__": "page"}
    for block in blocks(page):
        if block.skipped or block.language not in ("python", "bash"):
            continue
        begun = time.perf_counter()
        try:
            problem = play(block, namespace)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        took.append(f"{page.name}:{block.line} {time.perf_counter() - begun:.1f} s")
        if problem:
            wrong.append(f"{page.name}:{block.line}: {problem}")
    print(json.dumps({"wrong": wrong, "took": took}))


if __name__ == "__main__":
    main()
