"""Counts of attacks: every test that docs/security.md names is one, or as many as it records.

A test that tries many attacks calls ``record_property("attacks", count)``; it passes only if all were withstood.
"""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def named_tests():
    """Return the section of docs/security.md that names each test function or file of tests, by its name."""
    sections, title = {}, ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ")
        for name in re.findall(r"`(test_\w+|tests/[\w/]+\.py)`", line):
            if not re.search(rf"`{name}`: `test_", line):  # a file that only says where the tests after it are
                sections.setdefault(name, title)
    return sections


def summary_lines(reports):
    """Return a table with the attacks that were tried and withstood, from the reports of finished tests."""
    sections, counts = named_tests(), {}
    for report in reports:
        path, _, function = report.nodeid.partition("::")
        title = sections.get(function.partition("[")[0], sections.get(path))
        if title is None or report.outcome == "skipped":
            continue
        tried = dict(report.user_properties).get("attacks", 1)
        count = counts.setdefault(title, [0, 0])
        count[0] += tried
        count[1] += tried if report.passed else 0
    width = max(map(len, counts), default=0)
    return [f"{title:{width}}  tried {tried:5}, withstood {held:5}" for title, (tried, held) in sorted(counts.items())]
