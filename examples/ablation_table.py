"""Write docs/results/ablation.parquet and its table in README.md, docs/policies.md and docs/results.md.

python examples/ablation_table.py      # about two minutes
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

from fedlane.experiments.ablation import ablation_numbers, compute_ablation, insert_ablation
from fedlane.experiments.reproduce import DELAY_SEEDS
from fedlane.experiments.store import ResultStore

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/policies.md", "docs/results.md")


def main() -> None:
    """Compute the ablation, store its numbers and write them into the pages."""
    with TemporaryDirectory() as folder:
        store = ResultStore(Path(folder))
        compute_ablation(store, range(DELAY_SEEDS), print)
        numbers = ablation_numbers(store, range(DELAY_SEEDS))
    pq.write_table(numbers, ROOT / "docs" / "results" / "ablation.parquet", compression="zstd")
    for page in PAGES:
        insert_ablation(ROOT / page, numbers)


if __name__ == "__main__":
    main()
