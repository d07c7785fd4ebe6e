"""The page's scripts, which are joined into one."""

import re
from collections import Counter
from importlib.resources import files

from fedlane.report.page import SCRIPTS


def test_no_name_is_declared_in_two_scripts():
    """A name that is declared twice stops the whole page."""
    assets = files("fedlane.report") / "assets"
    texts = [(assets / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    names = [
        name for text in texts for name in re.findall(r"^(?:const|let|function|class|async function) (\w+)", text, re.M)
    ]
    assert len(names) > 200
    assert [name for name, count in Counter(names).items() if count > 1] == []
