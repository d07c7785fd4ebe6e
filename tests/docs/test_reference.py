"""The generated reference: every scenario key and every option, with its meaning."""

import json
import re
from pathlib import Path

import click
import pytest
import typer
from pydantic import BaseModel

from fedlane import Scenario
from fedlane.cli import app
from fedlane.scenario.reference import scenario_keys
from support.docs_modules import load_docs_module
from support.terminal import fedlane

ROOT = Path(__file__).parent.parent.parent
KEYS = {entry.key: entry for entry in scenario_keys()}


@pytest.fixture(scope="module")
def tables():
    return load_docs_module("reference_tables")


def model_keys(model=Scenario, prefix=""):
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from model_keys(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_key_is_listed():
    listed = {key.removesuffix(".NAME.KEY") for key in KEYS}
    assert listed == set(model_keys())


def test_types_bounds_and_defaults_are_those_of_the_model():
    rows = {key: (entry.type, entry.bounds, entry.default) for key, entry in KEYS.items()}
    assert rows["network.clients"] == ("integer", "1 to 2^31 - 1", "10")
    assert rows["network.payload_bits"] == ('number or "model"', "greater than 0", "5000.0")
    assert rows["network.fading"] == ('"none" or "rayleigh"', "", '"none"')
    assert rows["network.interference_db"] == ("list of 2 numbers", "-1000 to 1000", "[-5.0, 10.0]")
    assert rows["data.imbalance"] == ("number", "at least 0, less than 1", "0.0")
    assert rows["learning.batch_size"] == ("integer or list of integers", "1 to 2^31 - 1", "64")


def test_the_bounds_hold():
    """A value just outside the bounds that the reference shows is refused, one at the bound is accepted."""
    for entry in KEYS.values():
        bound = re.match(r"(-?[\d.]+) to|at least (-?[\d.]+)", entry.bounds)
        if bound and entry.type.split()[0] in ("number", "integer"):
            low = float(bound[1] or bound[2])
            value = int(low) - 1 if entry.type.startswith("integer") else low - 1e-9
            with pytest.raises(ValueError, match=f"{entry.key} must be at least"):
                Scenario.load("quickstart").with_values({entry.key: value})


def test_list_keys(tmp_path):
    rows = json.loads(fedlane("list", "keys", "--json", cwd=tmp_path, code=0).stdout)
    assert [row["key"] for row in rows] == list(KEYS)
    text = fedlane("list", "keys", cwd=tmp_path, code=0).stdout
    assert "[low, high]" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_page_of_scenario_keys_shows_every_key(tables):
    page = tables.scenario_tables()
    for entry in KEYS.values():
        (row,) = [line for line in page.splitlines() if f'id="{entry.key}"' in line]
        cells = re.split(r"(?<!\\) \| ", row.strip("| "))
        assert len(cells) == 5, row
        assert cells[2].strip() == entry.unit
        assert cells[4]


def parameters(command, path=("fedlane",)):
    """Yield every parameter of every command, with the words that call the command."""
    for parameter in command.params:
        yield path, parameter
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            yield from parameters(sub, (*path, name))


def test_the_page_of_the_command_line_shows_every_option(tables):
    sections = {
        part.split("`", 2)[1]: part for part in re.split(r"^## ", tables.command_sections(), flags=re.MULTILINE)[1:]
    }
    for path, parameter in parameters(typer.main.get_command(app)):
        section = sections[" ".join(path)]
        name = parameter.opts[0] if isinstance(parameter, click.Option) else tables.argument_name(parameter)
        assert len([line for line in section.splitlines() if re.match(rf"\| <code>{re.escape(name)}[ <,]", line)]) == 1
    assert (
        "| <code>--checkpoint-every K</code> | <code>50</code> | Rounds between checkpoints. |"
        in sections["fedlane run"]
    )
    assert (
        "| <code>--device cpu&#124;cuda</code> | <code>cpu</code> | Device that trains the models. |"
        in sections["fedlane run"]
    )
    assert "| <code>[SCENARIO]</code> | <code>quickstart</code> | A preset or a TOML file. |" in sections["fedlane run"]
    assert "fedlane run --resume runs/mine" in sections["fedlane run"]
    assert "<code>--look-every S</code> | <code>0.25</code>" in sections["fedlane-supernode"]
