"""Help texts, and suggestions for mistyped words."""

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


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_fits_80_columns_and_explains_every_parameter(path, tmp_path):
    result = fedlane(*path, "--help", cwd=tmp_path)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    command = ALL[path]
    boxed = [line.strip("│ *") for line in lines if line.startswith("│")]
    for parameter in command.params:
        names = [name for name in parameter.opts if name.startswith("--")] or [parameter.name]
        (row,) = [line for line in boxed if re.match(rf"{names[0]}(?=\s{{2}})", line)]
        assert parameter.help, f"{names[0]} has no help"
        assert " ".join(parameter.help.split()[:2]) in row
    if not isinstance(command, click.Group):
        stripped = [line.strip() for line in lines]
        assert "Examples:" in stripped
        assert stripped[stripped.index("Examples:") + 1].startswith(" ".join(("fedlane", *path)))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("rnu",), "Did you mean 'run'?"),
        (("privacy", "calibrat"), "Did you mean 'calibrate'?"),
        (("run", "--polcy", "lane"), "Did you mean '--policy'?"),
        (("run", "quikstart"), "(did you mean 'quickstart'?)"),
        (("show", "paper-fminst"), "(did you mean 'paper-fmnist'?)"),
        (("run", "--policy", "mamab-mo"), "(did you mean 'mamab-om'?)"),
        (("run", "--policy", "mamab-om:explration=1"), "(did you mean 'exploration'?)"),
        (("run", "--set", "netwrk.clients=3"), "(did you mean 'network'?)"),
        (("run", "--set", "network.client=3"), "(did you mean 'clients'?)"),
        (("run", "--set", "polices.lane.V=3"), "(did you mean 'policies'?)"),
        (("run", "--set", "policies.lnae.V=3"), "(did you mean 'lane'?)"),
        (("run", "--set", "data.dataset=fashon-mnist"), "(did you mean 'fashion-mnist'?)"),
        (("run", "--set", "data.partition=dirichlt"), "(did you mean 'dirichlet'?)"),
        (("run", "--set", "privacy.mechanism=rigourous"), "(did you mean 'rigorous'?)"),
        (("run", "--set", "privacy.epsilon=nonunifrm"), "(did you mean 'nonuniform'?)"),
        (("run", "--set", "learning.model=ccn"), "(did you mean 'cnn'?)"),
        (("run", "--track", "mlfow"), "(did you mean 'mlflow'?)"),
        (("reproduce", "fig-dealy"), "(did you mean 'fig-delay'?)"),
        (("reproduce", "--task", "cifar-10"), "(did you mean 'cifar10'?)"),
    ],
)
def test_a_mistyped_word_gets_one_suggestion(arguments, hint, tmp_path):
    result = fedlane(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("fedlane: ")
    assert line.count(hint) == line.lower().count("did you mean") == 1
    assert list(tmp_path.iterdir()) == []
