"""The notebooks in examples/: whole, small, and played again with the same printed results."""

import importlib.util
import operator
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.parts import missing
from support.play_page import about_the_same

pytestmark = pytest.mark.long
ROOT = Path(__file__).parent.parent.parent
PLAYER = Path(__file__).parent.parent / "support" / "play_notebook.py"
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def printed(notebook):
    """What each code cell printed; learned figures (tag `learned`) depend on the processor and are left out."""
    return [
        "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")
        for cell in _played(notebook)
    ]


def same_as_stored(stored, again):
    """Whether each cell printed the same; the numbers of a cell with the tag `about` need not be exactly the same."""
    return [
        (about_the_same if "about" in cell.metadata.get("tags", []) else operator.eq)(want, got)
        for cell, want, got in zip(_played(stored), printed(stored), printed(again), strict=True)
    ]


def _played(notebook):
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in code if "learned" not in cell.metadata.get("tags", [])]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, tmp_path):
    if any(importlib.util.find_spec(name) is None for name in ("nbclient", "nbformat", "ipykernel")):
        missing("nbclient, nbformat or ipykernel is not installed (extra dev)")
    import nbformat

    stored = nbformat.read(path, as_version=4)
    assert path.stat().st_size < 300_000
    assert all(cell.outputs or cell.source.startswith(("import", "from")) for cell in stored.cells if "outputs" in cell)
    assert any("image/png" in output.get("data", {}) for cell in stored.cells for output in cell.get("outputs", []))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "IPYTHONDIR": str(tmp_path / "ipython")}
    command = [sys.executable, str(PLAYER), str(path), "again.ipynb"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    again = nbformat.read(tmp_path / "again.ipynb", as_version=4)
    assert all(same_as_stored(stored, again)), printed(again)
    assert any(printed(stored))
