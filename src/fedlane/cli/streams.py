"""The program's output streams: notes for warnings, terminals that are not UTF-8, and devices that are full."""

import codecs
import contextlib
import errno
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO

import click

from fedlane.cli.session import print_notes
from fedlane.validate import ScenarioWarning

PLAIN = {
    "\u00b7": "-",
    "\u00b1": "+-",
    "\u00d7": "x",
    "\u2013": "-",
    "\u2014": "-",
    "\u2026": "...",
    "\u2019": "'",
    "\u201c": '"',
    "\u201d": '"',
    "\u2264": "<=",
    "\u2265": ">=",
}
"""ASCII for characters that the program prints."""


def _plain_characters(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a stream cannot encode: by ASCII that looks similar, or by an escape that TOML reads."""
    assert isinstance(error, UnicodeEncodeError)
    characters = error.object[error.start : error.end]
    return "".join(PLAIN.get(c) or _escape(c) for c in characters), error.end


def _escape(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 2**16 else f"\\U{number:08x}"


def accept_all_characters() -> None:
    """Let both streams replace the characters that they cannot encode, instead of raising an error."""
    codecs.register_error("fedlane", _plain_characters)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a stream that a caller put there
            stream.reconfigure(errors="fedlane")  # type: ignore[union-attr]


@contextlib.contextmanager
def notes_for_warnings() -> Iterator[None]:
    """Print a `ScenarioWarning` as a one-line note, unless the command is quiet."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: object) -> None:
            if not issubclass(category, ScenarioWarning):
                show(message, category, filename, lineno)
            elif not _is_quiet():
                print_notes([str(message)])

        warnings.simplefilter("always", ScenarioWarning)
        warnings.showwarning = note  # type: ignore[assignment]
        yield


def _is_quiet() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.params.get("quiet"))


def flush_output() -> None:
    """Write what is buffered, so that a full device is reported as an error and not while the program exits."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def discard_failed_output() -> None:
    """Send the output of a stream that failed to nowhere: flushing it again at exit would print a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if not _works(stream):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def _works(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True


def output_error(error: OSError) -> str | None:
    """Return one line on an operating system's error; None if the reader of a pipe has left, which is no error."""
    if error.errno == errno.EPIPE:
        return None
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else f"the output cannot be written: {reason}"
