"""Optional packages: whoever lacks one reads which command installs it, in the error and on the page."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedlane.validate import missing_extra

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
WITHOUT_FLOWER = """
import sys
sys.modules["flwr"] = None
import fedlane.flower
from fedlane.cli import main
from fedlane.flower.node import supernode

try:
    fedlane.flower.LaneStrategy
except ValueError as error:
    print(error)
for program, words in ((main, ["fedlane", "testbed"]), (supernode.main, ["fedlane-supernode"])):
    sys.argv = words
    try:
        program()
    except SystemExit as end:
        assert end.code == 2, end.code
"""


def test_the_error_names_the_command():
    assert str(missing_extra("--track mlflow", "trackers")) == (
        "--track mlflow needs the extra trackers: pip install 'fedlane[trackers]'"
    )


@pytest.mark.slow
def test_without_flower_every_part_names_the_command(tmp_path):
    result = subprocess.run([sys.executable, "-c", WITHOUT_FLOWER], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    command = "needs the extra flower: pip install 'fedlane[flower]'"
    assert result.stdout == f"fedlane.flower.LaneStrategy {command}\n"
    assert result.stderr.splitlines() == [f"fedlane: fedlane testbed {command}", f"fedlane-supernode {command}"]


def test_only_extras_that_exist_are_named():
    call = re.compile(r"missing_extra\([^)]*, [\"'](\w+)[\"']\)|fedlane\[(\w+)\]")
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.py")):
        named = {first or second for first, second in call.findall(path.read_text())}
        assert named <= {*EXTRAS, "extra"}, path
