"""Play pages: run their code blocks in order and compare the outputs that they show.

python play_page.py

Each line of stdin is a JSON list: the page, the folder in which to play it, and whether to play fewer rounds. Each line
of stdout is a JSON list: what went wrong. A page is played in a process that is forked from this one, which has
imported everything, and so is every `fedlane` command; a program takes seconds to start.

A block is ```python (one namespace for the page) or ```bash. With title="FILE" it is written to that file instead. A
```text block right behind it is its output, compared with doctest's `...`. Before it may stand
<!-- not run: reason -->, or <!-- fails: status -->, and then its output is what it writes to stderr, or
<!-- about: reason -->, and then the numbers of its output need not be exactly those that the page shows.
"""

import contextlib
import doctest
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

NUMBER = re.compile(r"(?:± *)?\d+(?:,\d{3})*(?:\.\d+)?")
FENCE = re.compile(
    r"(?:^<!-- (?P<marker>not run|fails|about): (?P<value>[^>]+?) -->\n\s*)?"
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
    about: bool


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
                match["marker"] == "about",
            )
        )
    return found


def same(want, got):
    """Whether an output is as the page shows it; spaces at the ends of lines do not count."""
    want, got = ("\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n" for text in (want, got))
    return doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)


def about_the_same(want, got):
    """Whether an output has the words that the page shows, and about the same numbers.

    A policy that compares estimates decides otherwise when the last digit of one is rounded differently, which depends
    on the processor. From then on it is another sample of the same run: a mean over five seeds or more changes by a
    few percent at most, the half-width of its interval (behind a plus-minus sign) by more.
    """
    pattern = f"({NUMBER.pattern})".join(map(_spaced, NUMBER.split(want.strip())))
    found = re.fullmatch(pattern, got.strip(), re.DOTALL)
    return found is not None and all(map(_near, NUMBER.findall(want), found.groups()))


def _spaced(text):
    """Return a pattern for a text in which `...` is anything, and spaces are as many as a table needs."""
    return re.sub(r"(\\\s)+", r"\\s+", re.escape(text)).replace(r"\.\.\.", ".*?")


def _near(want, got):
    values = [float(text.strip("± ").replace(",", "")) for text in (want, got)]
    relative = 0.2 if want.startswith("±") else 0.05
    last_digits = 5.0 * 10.0 ** -len(want.partition(".")[2]) if "." in want else 0.0
    return abs(values[0] - values[1]) <= max(relative * values[0], 1.001 * last_digits)


PLAIN = re.compile(r"[\w./:=,@%+-]+")
"""A word in which a shell expands nothing, and which does not quote, pipe or redirect."""
FEW_ROUNDS, FEW_SEEDS = 5, 2


def fedlane_commands(code):
    """Return the words of each line of a block that holds nothing but `fedlane` and `cd`; None for any other block."""
    lines = [re.sub(r"(^|\s)#.*", "", line).split(" ") for line in code.replace("\\\n", " ").splitlines()]
    commands = [words for words in ([word for word in line if word] for line in lines) if words]
    plain = all(PLAIN.fullmatch(word) for words in commands for word in words)
    known = all(Path(words[0]).name == "fedlane" or (words[0] == "cd" and len(words) == 2) for words in commands)
    return commands if plain and known else None


def with_few_rounds(words):
    """Return the words of a command that simulates so many rounds and seeds that it ends soon."""
    if words[1] not in ("run", "compare", "sweep"):
        return words
    seeds = ["--seeds", str(FEW_SEEDS)] if "--seeds" in words else []
    workers = ["--workers", "1"] if "--workers" in words else []
    return [*words, "--rounds", str(FEW_ROUNDS), *seeds, *workers]  # the last of several values counts


def run_fedlane(words):
    """Run `fedlane` in a forked process, with the output on descriptors 1 and 2; return its exit status."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        from fedlane.cli import main

        status = 1
        try:
            sys.argv = words
            main()
            status = 0
        except SystemExit as end:
            status = end.code
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def descriptors(out, err):
    """Let what is written to descriptors 1 and 2 go to two files."""
    sys.stdout.flush()
    kept = os.dup(1), os.dup(2)
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    try:
        yield
    finally:
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def run_commands(commands):
    """Do what bash -e does with these commands; return the status, stdout and stderr."""
    status, before = 0, Path.cwd()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with descriptors(out, err):
            for words in commands:
                if words[0] == "cd":
                    os.chdir(words[1])
                elif "/" in words[0] and not Path(words[0]).is_file():
                    status = 127
                else:
                    status = run_fedlane(words)
                if status:
                    break
        os.chdir(before)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return status, *texts


def run_bash(code):
    """Return the status, stdout and stderr of a block."""
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def play(block, namespace, few):
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
        commands = fedlane_commands(block.code)
        if commands and few and block.output is None:
            commands = [with_few_rounds(words) for words in commands]
        status, out, err = run_commands(commands) if commands else run_bash(block.code)
        if status != block.status:
            return f"ended with {status}, not {block.status}:\n{err[-2000:]}"
        got = err if block.status else out
    if block.output is not None and not (about_the_same if block.about else same)(block.output, got):
        return f"the page shows\n{block.output}\nbut it is\n{got}"
    return None


def import_everything():
    """Import what the pages need, and let a short run load the compiled kernels."""
    for name in ("fedlane.cli", "fedlane.experiments.engine", "fedlane.report.page", "matplotlib.pyplot"):
        importlib.import_module(name)
    from fedlane import simulate

    simulate("quickstart", rounds=1)


def play_page(page, few):
    """Play a page in the current folder; return what went wrong."""
    wrong, namespace = [], {"__name__": "page"}
    for block in blocks(page):
        if block.skipped or block.language not in ("python", "bash"):
            continue
        try:
            problem = play(block, namespace, few)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            wrong.append(f"{page.name}:{block.line}: {problem}")
    return wrong


def play_in_a_fork(page, folder, few):
    """Play a page in a process of its own, as if it had been started in the folder."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.chdir(folder)
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        with os.fdopen(write, "w") as answer:
            answer.write(json.dumps(play_page(Path(page), few)))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        told = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(told) if status == 0 else [f"{page}: the player ended with {status}"]


def main():
    sys.path.pop(0)  # this file's folder, which has modules with common names
    import_everything()
    for line in sys.stdin:
        print(json.dumps(play_in_a_fork(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
