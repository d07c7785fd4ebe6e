"""The tables of docs/worlds.md: their numbers are those of real runs."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlane import simulate
from fedlane.experiments.world_results import insert_worlds, result_table, world_numbers, world_section

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def stored():
    return pq.read_table(DOCS / "results" / "worlds.parquet")


@pytest.mark.parametrize("name", ["churn", "drifting"])
def test_stored_numbers_are_those_of_a_run(stored, name):
    fresh = world_numbers(name, {"random": simulate(name, "random", seeds=[3], learning=False)}).to_pylist()[0]
    kept = next(r for r in stored.to_pylist() if (r["world"], r["policy"], r["seed"]) == (name, "random", 3))
    assert fresh == pytest.approx(kept, rel=1e-9)


def test_numbers_are_means_of_the_tables():
    run = simulate("churn", "random", rounds=20, seeds=[0, 5], learning=False)
    rows = world_numbers("churn", {"random": run}).to_pylist()
    attempts = [row for row in run.assignments.to_pylist() if row["replica"] == 1]
    punctual = [row for row in attempts if row["punctual"]]
    assert [row["seed"] for row in rows] == [0, 5]
    assert rows[1]["late_share"] == pytest.approx(1 - len(punctual) / len(attempts))
    assert rows[1]["upload_s"] == pytest.approx(np.mean([row["upload_s"] for row in punctual]))
    assert rows[1]["energy_j"] == pytest.approx(np.mean([row["energy_j"] for row in attempts]))
    assert rows[1]["delay_s"] == pytest.approx(20 * rows[1]["round_s"])


def test_a_difference_that_rounds_to_nothing_is_no_gain():
    row = {"world": "w", "seed": 0, "late_share": 0.123, "round_s": 2.0, "energy_j": 1.0}
    row |= {"download_s": 1.0, "compute_s": 1.0, "upload_s": 2.0}
    table = pa.Table.from_pylist(
        [{**row, "policy": "random", "delay_s": 100.0}, {**row, "policy": "lane", "delay_s": 100.2}]
    )
    shown = result_table(table, "w")
    assert "`lane` needs as much simulated time as `random`" in shown
    assert "| random | 12.3% | 2.00 | 25 : 25 : 50 | 1.14 |" in shown  # 1 J an attempt, 87.7% of which are punctual


def test_inserting_replaces_only_what_is_between_the_marks(stored, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- churn -->\nold\n<!-- end of churn -->\nafter\n")
    insert_worlds(page, stored, ["churn"])
    assert page.read_text() == f"before\n{world_section(stored, 'churn')}\nafter\n"
