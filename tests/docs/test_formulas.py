"""Formulas of the documentation: MathML without a script, from LaTeX that reads well as plain text."""

import re
from pathlib import Path

import pytest

from support.docs_modules import load_docs_module

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(ROOT.glob("docs/**/*.md"))
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\w$])\$(\S|\S[^$\n]*\S)\$(?![\w$])", re.DOTALL)


def formulas(path):
    """The formulas of a page, code aside."""
    text = re.sub(r"^(```|~~~).*?^\1|^ {4}.*?$|`[^`\n]*`", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [(block or inline).strip() for block, inline in FORMULA.findall(text)]


def test_every_formula_can_be_converted():
    module = load_docs_module("formulas")
    for path in PAGES:
        for formula in formulas(path):
            assert "<math" in module.mathml(formula), f"{path.name}: {formula}"


def test_unknown_commands_are_reported():
    with pytest.raises(ValueError, match="unknown command"):
        load_docs_module("formulas").mathml(r"\nonsense{x}")


def test_the_repository_is_shown_without_credentials():
    address = load_docs_module("site_info").web_address
    assert address("https://user:secret@code.example.org/team/fedlane.git") == "https://code.example.org/team/fedlane"
    assert address("git@code.example.org:team/fedlane.git") == "https://code.example.org/team/fedlane"
    assert address("ssh://git@code.example.org:2222/team/fedlane") == "https://code.example.org/team/fedlane"
    for local in ("/srv/git/fedlane.git", "../fedlane", "file:///srv/fedlane", ""):
        assert address(local) is None


def test_the_header_shows_version_and_repository(monkeypatch):
    from mkdocs.config import load_config

    from fedlane import __version__

    monkeypatch.setenv("FEDLANE_REPOSITORY", "https://code.example.org/team/fedlane")
    config = load_config(str(ROOT / "mkdocs.yml"))
    load_docs_module("site_info").on_config(config)
    assert config.extra["release"] == __version__
    assert f"FedLane {__version__}" in config.copyright
    assert '<a href="https://code.example.org/team/fedlane">' in config.copyright
    assert config.theme["logo"] == "assets/logo-header.svg"
    for name in ("logo", "logo-dark", "logo-header", "favicon"):
        assert (ROOT / "docs" / "assets" / f"{name}.svg").read_text().startswith("<svg ")
