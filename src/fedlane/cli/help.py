"""Help texts: examples below every command, help for arguments, and no suggestion printed twice."""

import re
from typing import Annotated, get_args, get_origin, get_type_hints

import click
from typer.models import ArgumentInfo


def examples(*lines: str) -> str:
    """Make a help epilogue of example commands, one per line."""
    return "\n\n".join(["[dim]Examples:[/dim]", *(f"[bold cyan]{line}[/bold cyan]" for line in lines)])


def explain_arguments(command: click.Command) -> None:
    """Restore the help texts of arguments, which typer 0.20 loses under click 8.5."""
    if isinstance(command, click.Group):
        for sub in command.commands.values():
            explain_arguments(sub)
    if command.callback is None:
        return
    hints = get_type_hints(command.callback, include_extras=True)
    for parameter in command.params:
        hint = hints.get(parameter.name or "")
        if not isinstance(parameter, click.Argument) or get_origin(hint) is not Annotated:
            continue
        for note in get_args(hint):
            if isinstance(note, ArgumentInfo) and getattr(parameter, "help", None) is None:
                parameter.help = note.help


def dedupe_suggestion(message: str) -> str:
    """Remove the second copy of a suggestion that both click and typer add."""
    return re.sub(r"( Did you mean [^?]*\?)\1", r"\1", message)
