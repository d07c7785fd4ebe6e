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


def test_spaces_around_functions_signs_and_bars():
    module = load_docs_module("formulas")
    thin = '<mspace width="0.167em"></mspace>'
    assert f"<mi>E</mi>{thin}<mi>ln</mi>{thin}<mi>n</mi>" in module.mathml(r"E \ln n")
    assert f"<mi>ln</mi>{thin}<mi>max</mi><mo" in module.mathml(r"\ln \max(n, 1)")
    assert thin not in module.mathml(r"d_{\max}")
    assert '<mo form="prefix">&#x02212;</mo><mi>t</mi>' in module.mathml(r"\exp(-t)")
    assert '<mo form="prefix">&#x0002B;</mo><mi>&#x0221E;</mi>' in module.mathml(r"e = +\infty")
    assert '<mo form="prefix">' not in module.mathml("a - b")
    assert '<mo stretchy="false" lspace="0" rspace="0">&#x0007C;</mo>' in module.mathml(r"\lvert D \rvert")


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
