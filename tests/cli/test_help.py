"""The help text of every command."""

import re

import click
import pytest
import typer

from fedlane.cli import app
from fedlane.cli.help import explain_arguments
from support.terminal import fedlane


def commands(command, path=()):
    """Yield every command and group with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            yield from commands(sub, (*path, name))


ROOT = typer.main.get_command(app)
explain_arguments(ROOT)
ALL = dict(commands(ROOT))


@pytest.mark.slow
def test_help_fits_80_columns_and_explains_every_parameter(tmp_path):
    for path, command in ALL.items():
        result = fedlane(*path, "--help", cwd=tmp_path, code=0)
        lines = result.stdout.splitlines()
        assert max(map(len, lines)) <= 80, path
        boxed = [line.strip("│ *") for line in lines if line.startswith("│")]
        for parameter in command.params:
            names = [name for name in parameter.opts if name.startswith("--")] or [parameter.name]
            assert parameter.help, (path, names[0])
            assert any(re.match(rf"{names[0]}(?=\s{{2}})", line) for line in boxed), (path, names[0])
        if not isinstance(command, click.Group):
            stripped = [line.strip() for line in lines]
            assert stripped[stripped.index("Examples:") + 1].startswith(" ".join(("fedlane", *path)))
