"""Tables of the reference that are generated from the program: scenario keys and the command line.

A page contains the line `<!-- generated: scenario keys -->` or `<!-- generated: command line -->` where the tables go.
"""

import argparse
import enum
import re
import sys
import warnings
from collections.abc import Iterator
from html import escape
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer 0.20 with a newer click; MkDocs would show it
    import typer

    from fedlane.cli import app
    from fedlane.cli.help import explain_arguments
    from fedlane.flower.node import supernode
    from fedlane.scenario.reference import scenario_keys, section_meaning

DEFAULT = re.compile(r"\s*\(default: ([^()]*)\)")
HEAD = "| key | value | unit | default | meaning |\n|---|---|---|---|---|"
READING = re.compile(r"\breadings? \d+")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the tables."""
    for name, make in (("scenario keys", scenario_tables), ("command line", command_sections)):
        mark = f"<!-- generated: {name} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, f'<div class="reference" markdown="1">\n\n{make()}\n\n</div>')
    return markdown


def scenario_tables() -> str:
    """Return a table of keys for each section of a scenario."""
    sections: dict[str, list[str]] = {}
    for entry in scenario_keys():
        section, _, name = entry.key.rpartition(".")
        section = section.split(".")[0]
        bounds = f"{entry.type}, {entry.bounds}" if entry.bounds else entry.type
        bounds = bounds.replace("2^31 - 1", "2<sup>31</sup>&nbsp;-&nbsp;1")
        default = code(entry.default) if entry.default else "none"
        label = entry.key if section == "policies" else name
        meaning = READING.sub(lambda match: f"[{match[0]}](../reading-the-paper.md)", cell(entry.meaning))
        cells = (f'<span id="{entry.key}"></span>{code(label)}', cell(bounds), entry.unit, default, meaning)
        sections.setdefault(section, []).append("| " + " | ".join(cells) + " |")
    return "\n\n".join(f"{section_head(name)}\n\n{HEAD}\n" + "\n".join(rows) for name, rows in sections.items())


def section_head(section: str) -> str:
    """Return the heading of a section and the sentence below it."""
    if section == "":
        return "## Top level\n\nThese keys come first in a file, before any table."
    if section == "policies":
        return "## `[policies.NAME]`\n\nParameters of a policy; [Policies](../policies.md) describes them."
    return f"## `[{section}]`\n\n{section_meaning(section)}"


def command_sections() -> str:
    """Return a section for each command, with its arguments and options, and one for `fedlane-supernode`."""
    root = typer.main.get_command(app)
    explain_arguments(root)
    parts = [command_section(path, command) for path, command in commands(root, ("fedlane",))]
    return "\n\n".join([*parts, supernode_section()])


def commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command and group with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            yield from commands(sub, (*path, name))


def command_section(path: tuple[str, ...], command: click.Command) -> str:
    """Return the section of one command."""
    words = " ".join(path)
    arguments = [argument_name(parameter) for parameter in command.params if isinstance(parameter, click.Argument)]
    usage = " ".join([words, *(["COMMAND"] if isinstance(command, click.Group) else arguments), "[OPTIONS]"])
    parts = [f"## `{words}`", cell((command.help or "").strip()), f"    {usage}"]
    rows = [parameter_row(parameter) for parameter in command.params]
    if rows:
        parts.append("| argument or option | default | meaning |\n|---|---|---|\n" + "\n".join(rows))
    examples = re.sub(r"\[/?[a-z ]*\]", "", command.epilog or "").split("\n\n")[1:]
    if examples:
        parts.append("Examples:\n\n```bash\n" + "\n".join(examples) + "\n```")
    return "\n\n".join(parts)


def argument_name(parameter: click.Parameter) -> str:
    """Return an argument as the usage line shows it."""
    return parameter.metavar or (parameter.name or "").upper()


def parameter_row(parameter: click.Parameter) -> str:
    """Return the row of an argument or option."""
    help_text = getattr(parameter, "help", None) or ""
    inline = DEFAULT.search(help_text)
    default = inline[1] if inline else default_text(parameter)
    if isinstance(parameter, click.Argument):
        name = argument_name(parameter)
    else:
        name = ", ".join(parameter.opts)
        if not getattr(parameter, "is_flag", False):
            choices = getattr(parameter.type, "choices", None)
            values = "|".join(str(getattr(choice, "value", choice)) for choice in choices) if choices else ""
            name += f" {parameter.metavar or values or 'VALUE'}"
    meaning = DEFAULT.sub("", help_text)
    if getattr(parameter, "multiple", False) and "repeat" not in meaning:
        meaning += " Repeatable."
    if parameter.required and not isinstance(parameter, click.Argument):
        meaning += " Required."
    return f"| {code(name)} | {code(default) if default else ''} | {cell(meaning)} |"


def default_text(parameter: click.Parameter) -> str:
    """Return the default of a parameter; empty for none and for flags that are off."""
    default = parameter.default
    if default is None or default is False or callable(default) or type(default).__name__ == "Sentinel":
        return ""
    return str(default.value if isinstance(default, enum.Enum) else default)


def supernode_section() -> str:
    """Return the section of the second program."""
    parser = supernode.make_parser()
    rows = []
    for action in parser._actions:
        if action.help not in (None, argparse.SUPPRESS):
            help_text = str(action.help)
            default = DEFAULT.search(help_text)
            text = DEFAULT.sub("", help_text)
            rows.append(
                f"| {code(f'{action.option_strings[0]} {action.metavar}')} | {code(default[1]) if default else ''} "
                f"| {text[:1].upper()}{cell(text[1:])}. |"
            )
    head = "| option | default | meaning |\n|---|---|---|"
    return f"## `fedlane-supernode`\n\n{parser.description}\n\n{head}\n" + "\n".join(rows)


def code(text: str) -> str:
    """Return text as code in a cell of a table, in which Markdown would keep the backslash before a bar."""
    return f"<code>{escape(text).replace('|', '&#124;')}</code>"


def cell(text: str) -> str:
    """Return text that is safe in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|") if "\n\n" not in text else text
