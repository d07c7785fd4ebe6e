"""docs/security.md: the tests that it names exist, and CI counts their attacks."""

import re
from pathlib import Path
from types import SimpleNamespace

from support.attacks import named_tests, summary_lines

ROOT = Path(__file__).parent.parent.parent


def test_every_test_that_the_security_page_names_exists():
    tests = ROOT / "tests"
    functions = {
        name for path in tests.rglob("*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    for name in named_tests():
        assert name in functions or (ROOT / name).is_file(), name


def test_attacks_are_counted_by_section():
    def report(nodeid, outcome, **properties):
        passed = outcome == "passed"
        return SimpleNamespace(nodeid=nodeid, outcome=outcome, passed=passed, user_properties=list(properties.items()))

    lines = summary_lines(
        [
            report("tests/x.py::test_padding_holds_no_record[cnn]", "passed"),
            report("tests/learning/test_strict.py::test_anything", "failed"),
            report("tests/x.py::test_kills_at_random_instants", "passed", attacks=10),
            report("tests/x.py::test_killed_and_resumed", "skipped"),
            report("tests/x.py::test_of_something_else", "passed"),
        ]
    )
    assert [" ".join(line.split()) for line in lines] == [
        "Crashes tried 10, withstood 10",
        "What a server can do to clipping tried 2, withstood 1",
    ]
