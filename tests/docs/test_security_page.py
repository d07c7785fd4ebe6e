"""The tests that docs/security.md names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_security_page_names_exists():
    page = (ROOT / "docs" / "security.md").read_text()
    named = set(re.findall(r"`(test_\w+|tests/[\w/]+\.py)`", page))
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    functions = set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))
    assert len(named) > 50
    assert not [name for name in named if name not in functions and not (ROOT / name).is_file()]
