"""Write docs/arena.md and its pictures from a finished `fedlane arena`.

python examples/arena_page.py FOLDER NOTE.md [TUNED.json]

FOLDER holds leaderboard.parquet and curves.parquet. NOTE.md states on which machine and for how long the results were
computed. TUNED.json is the file that the arena used; by default the one that comes with the package.
"""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq

from fedlane.experiments.arena.docs_page import FOLDER, arena_page, write_pictures
from fedlane.experiments.arena.playing import CURVES_TABLE, TABLE
from fedlane.experiments.arena.tuned import read_tuned, shipped_values

NAMES = {TABLE: "arena.parquet", CURVES_TABLE: "arena-curves.parquet"}
"""The files of an arena's folder, and their names in the documentation."""


def main(folder: Path, note: Path, tuned: Path | None = None, docs: Path = Path("docs")) -> None:
    """Store the numbers and write the pictures and the page."""
    results = docs / FOLDER
    results.mkdir(parents=True, exist_ok=True)
    for name, stored in NAMES.items():
        (results / stored).write_bytes((folder / name).read_bytes())
    values = shipped_values() if tuned is None else read_tuned(tuned)
    (results / "arena-tuned.json").write_text(json.dumps(values.content, indent=1) + "\n", encoding="utf-8")
    (results / "arena-note.txt").write_text(note.read_text(encoding="utf-8").strip() + "\n", encoding="utf-8")
    (docs / "arena.md").write_text(page(results), encoding="utf-8")
    write_pictures(pq.read_table(results / NAMES[TABLE]), pq.read_table(results / NAMES[CURVES_TABLE]), results)


def page(results: Path) -> str:
    """Return the page from what the documentation stores."""
    tuned = json.loads((results / "arena-tuned.json").read_text(encoding="utf-8"))
    note = (results / "arena-note.txt").read_text(encoding="utf-8")
    return arena_page(pq.read_table(results / NAMES[TABLE]), tuned, note)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
