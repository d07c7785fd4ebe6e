"""Every code block of the tutorials and the README is run, and the outputs that they show are compared."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import play_page
from support.parts import missing

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
PLAYER = Path(play_page.__file__)


def play(page, folder):
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])),
        "PYTHONUTF8": "1",
        "COLUMNS": "88",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "OMP_NUM_THREADS": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    command = [sys.executable, str(PLAYER), str(page)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["wrong"]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page, tmp_path):
    if page.stem == "real-federation" and importlib.util.find_spec("flwr") is None:
        missing("flwr is not installed (extra flower)")
    if page.name == "README.md":  # it is read in a checkout with its .venv
        (tmp_path / "examples").mkdir()
        shutil.copy(ROOT / "examples" / "patient_policy.py", tmp_path / "examples")
        (tmp_path / ".venv").mkdir()
        (tmp_path / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    wrong = play(page, tmp_path)
    assert not wrong, "\n\n".join(wrong)


def test_few_blocks_are_not_run_and_each_says_why():
    found = [block for page in PAGES for block in play_page.blocks(page)]
    skipped = [block for block in found if block.skipped]
    assert len(found) > 30
    assert len(skipped) < len(found) / 4
    assert all(len(block.skipped.split()) > 4 for block in skipped)
    assert {block.language for block in found} == {"python", "bash"}


def test_no_block_is_missed():
    """As many fences as the player knows of: an odd one would silently not run."""
    for page in PAGES:
        fences = sum(line.startswith("```") for line in page.read_text().splitlines()) // 2
        known = play_page.blocks(page)
        assert fences == len(known) + sum(block.output is not None for block in known), page.name


def test_titled_blocks_are_the_examples():
    for page in PAGES:
        for block in play_page.blocks(page):
            example = ROOT / "examples" / (block.title or "")
            if block.title and example.is_file():
                assert block.code in example.read_text(), f"{page.name} and {example.name} differ"


def test_wrong_pages_are_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\n```\n\n```python\nprint(x + 1)\n```\n\n```text\n3\n```\n\n"
        "```python\nraise KeyError(5)\n```\n\n```bash\nfalse\n```\n\n<!-- fails: 2 -->\n```bash\ntrue\n```\n\n"
        "```bash\necho one two\n```\n\n```text\none ...\n```\n"
    )
    wrong = play(page, tmp_path)
    assert [text.split(":")[1] for text in wrong] == ["6", "14", "18", "23"]
