"""Write docs/results.md, docs/readings.md and their figures from a finished `fedlane reproduce`.

python examples/results_page.py NOTE.md [FOLDER]

NOTE.md states on which machine and for how long the results were computed; the rest comes from the stored results.
"""

import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq

from fedlane.experiments.ablation import ablation_section
from fedlane.experiments.claims import judge
from fedlane.experiments.readings.design import stored_design
from fedlane.experiments.readings.favourable import FAVOURABLE
from fedlane.experiments.readings.map_page import map_page
from fedlane.experiments.readings.mapping import MapPlan
from fedlane.experiments.readings.shares import map_of
from fedlane.experiments.reproduce import DELAY_SEEDS, FIGURES, LEARNING_SEEDS, MAP, ReproductionPlan
from fedlane.experiments.results_page import PageParts, page, stored_map, verdict_table
from fedlane.experiments.store import ResultStore
from fedlane.experiments.theorems import theorem_table


def main(note: Path, folder: Path = Path("runs/reproduce"), docs: Path = Path("docs")) -> None:
    """Copy the figures and write the page."""
    plan, store = ReproductionPlan(FIGURES, DELAY_SEEDS, LEARNING_SEEDS), ResultStore(folder)
    pictures = docs / "results"
    pictures.mkdir(exist_ok=True)
    for name in (*FIGURES, MAP):
        for suffix in (".png", ".parquet"):
            shutil.copy(folder / "figures" / f"{name}{suffix}", pictures)
    shutil.copy(folder / "figures" / f"{FAVOURABLE}.parquet", pictures)
    introduction = "\n\n" + note.read_text(encoding="utf-8").strip()
    parts = PageParts(theorem_table(plan, store), ablation_section(plan, store), stored_map(pictures), introduction)
    verdicts = judge(plan, store)
    pq.write_table(verdict_table(verdicts), pictures / "claims.parquet")
    (docs / "results.md").write_text(page(plan, list(FIGURES), verdicts, "results", parts), encoding="utf-8")
    (docs / "readings.md").write_text(readings_page(pictures), encoding="utf-8")


def readings_page(pictures: Path) -> str:
    """Return the page of the map from its stored tables."""
    plan = MapPlan(stored_design())
    verdicts = map_of(pq.read_table(pictures / f"{MAP}.parquet"))
    favourable = pq.read_table(pictures / f"{FAVOURABLE}.parquet")
    return map_page(verdicts, f"results/{MAP}.png", plan.schedule_seeds, plan.learning_seeds, favourable)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
