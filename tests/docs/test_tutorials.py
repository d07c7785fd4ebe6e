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


FEWER_ROUNDS = ("README", "own-model-and-data")
"""Pages that show no result of most runs: `make test` plays a few rounds, `make long` all."""


@pytest.fixture(scope="module")
def play():
    """Play a page in a folder and return what went wrong, from a process that has imported everything already."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONUTF8": "1",
        "COLUMNS": "88",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, play_page.__file__], env=environment, **pipes) as player:

        def ask(page, folder, few=False):
            player.stdin.write(json.dumps([str(page), str(folder), few]) + "\n")
            player.stdin.flush()
            return json.loads(player.stdout.readline())

        yield ask
        player.stdin.close()
        assert player.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page, play, tmp_path):
    if page.stem == "real-federation" and importlib.util.find_spec("flwr") is None:
        missing("flwr is not installed (extra flower)")
    prepare(tmp_path)
    wrong = play(page, tmp_path, few=page.stem in FEWER_ROUNDS)
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in PAGES if page.stem in FEWER_ROUNDS], ids=lambda page: page.stem)
def test_page_with_all_rounds(page, play, tmp_path):
    prepare(tmp_path)
    wrong = play(page, tmp_path)
    assert not wrong, "\n\n".join(wrong)


def prepare(folder):
    """Put there what a page may name: the README is read in a checkout with its .venv."""
    (folder / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "patient_policy.py", folder / "examples")
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(Path(sys.executable).parent)


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


@pytest.mark.parametrize(
    ("got", "same"),
    [
        ("title\n a  334 ± 55  0.9%  1,106\nend", True),
        ("title\n a  331 ± 50  0.8%  1,110\nend", True),
        ("title\n a  334 ± 5   0.9%  1,106\nend", False),
        ("title\n a  434 ± 55  0.9%  1,106\nend", False),
        ("title\n a  334 ± 55  1.9%  1,106\nend", False),
        ("title\n a  334 ± 55  0.9%  1,206\nend", False),
        ("title\n b  334 ± 55  0.9%  1,106\nend", False),
        ("title\n a  334 ± 55  0.9%\nend", False),
    ],
)
def test_numbers_that_depend_on_the_processor_are_compared_with_a_tolerance(got, same):
    assert play_page.about_the_same("...\n a    334 ± 55   0.9%  1,106\n...", got) == same


@pytest.mark.parametrize(
    ("code", "commands"),
    [
        ("fedlane run --out a  # why it's run\n", [["fedlane", "run", "--out", "a"]]),
        ("cd b\n../bin/fedlane run \\\n    --seeds 2\n", [["cd", "b"], ["../bin/fedlane", "run", "--seeds", "2"]]),
        ("ls\n", None),
        ("fedlane run && ls\n", None),
        ("fedlane show 'a b'\n", None),
        ("fedlane show $HOME *.toml\n", None),
    ],
)
def test_blocks_of_plain_fedlane_commands_need_no_shell(code, commands):
    assert play_page.fedlane_commands(code) == commands


@pytest.mark.slow
def test_wrong_pages_are_noticed(play, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\n```\n\n```python\nprint(x + 1)\n```\n\n```text\n3\n```\n\n"
        "```python\nraise KeyError(5)\n```\n\n```bash\nfalse\n```\n\n<!-- fails: 2 -->\n```bash\ntrue\n```\n\n"
        "```bash\necho one two\n```\n\n```text\none ...\n```\n"
    )
    wrong = play(page, tmp_path)
    assert [text.split(":")[1] for text in wrong] == ["6", "14", "18", "23"]
