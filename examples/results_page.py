"""Write docs/results.md and its figures from a finished `fedlane reproduce`.

python examples/results_page.py NOTE.md

NOTE.md states on which machine and for how long the results were computed; the rest comes from the stored results.
"""

import shutil
import sys
from pathlib import Path

from fedlane.experiments.ablation import ablation_section
from fedlane.experiments.claims import judge
from fedlane.experiments.reproduce import DELAY_SEEDS, FIGURES, LEARNING_SEEDS, ReproductionPlan
from fedlane.experiments.results_page import page
from fedlane.experiments.store import ResultStore
from fedlane.experiments.theorems import theorem_table


def main(note: Path, folder: Path = Path("runs/reproduce"), docs: Path = Path("docs")) -> None:
    """Copy the figures and write the page."""
    plan, store = ReproductionPlan(FIGURES, DELAY_SEEDS, LEARNING_SEEDS), ResultStore(folder)
    pictures = docs / "results"
    pictures.mkdir(exist_ok=True)
    for name in FIGURES:
        for suffix in (".png", ".parquet"):
            shutil.copy(folder / "figures" / f"{name}{suffix}", pictures)
    introduction = "\n\n" + note.read_text(encoding="utf-8").strip()
    theorems, ablation = theorem_table(plan, store), ablation_section(plan, store)
    text = page(plan, list(FIGURES), judge(plan, store), theorems, "results", introduction, ablation)
    (docs / "results.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
