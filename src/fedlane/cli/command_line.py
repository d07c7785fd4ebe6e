"""The command line as a run folder records it: no secrets, no home folder; and which options were given."""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")
_QUERY = re.compile(r"(?<==)[^&\s]+")


def recorded_command(arguments: Sequence[str]) -> str:
    """Return a command line for the records, ready to be typed again.

    The credentials and the query of an address (``mlflow:https://NAME:PASSWORD@HOST/?token=TOKEN``) are replaced by
    ``***``, and the user's home folder, which contains the user's name, by ``~``.

    Args:
        arguments: The program and its arguments, as in `sys.argv`.
    """
    return " ".join(["fedlane", *(_quoted(_without_secrets(word)) for word in arguments[1:])])


def _quoted(word: str) -> str:
    """Quote a word for the shell, which replaces a leading ``~`` only outside of quotes."""
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") and len(word) > 2 else shlex.quote(word)


def _without_secrets(word: str) -> str:
    if "://" in word:
        address, mark, query = _CREDENTIALS.sub("***@", word).partition("?")
        return address + mark + _QUERY.sub("***", query)
    home = str(Path.home())
    at = word.find(home + os.sep) if len(home) > 1 else -1
    return word if at < 0 else f"{word[:at]}~{word[at + len(home) :]}"


def was_given(*names: str) -> bool:
    """Whether the user gave one of the current command's parameters, as opposed to leaving its default."""
    context = click.get_current_context()
    sources = [context.get_parameter_source(name) for name in names]
    return any(source is not click.core.ParameterSource.DEFAULT for source in sources)
