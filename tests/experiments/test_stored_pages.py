"""The pages of the documentation show the results that are stored beside them."""

import runpy
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedlane.experiments.ablation import BEGIN, END, ablation_text
from fedlane.experiments.claims import CLAIMS, Verdict
from fedlane.experiments.readings.design import stored_design
from fedlane.experiments.readings.map_page import map_page
from fedlane.experiments.readings.mapping import MapPlan
from fedlane.experiments.readings.shares import map_of
from fedlane.experiments.results_page import claims_section, stored_map
from fedlane.experiments.world_results import WORLDS, world_section

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"


def stored(name):
    return pq.read_table(RESULTS / f"{name}.parquet")


def ablation():
    return [f"{BEGIN}\n{ablation_text(stored('ablation'))}{END}"]


def verdicts():
    rows = [Verdict(**row) for row in stored("claims").to_pylist()]
    assert [verdict.claim for verdict in rows] == [claim.text for claim in CLAIMS]
    return [claims_section(rows, stored_map(RESULTS))]


def readings():
    plan, found = MapPlan(stored_design()), map_of(stored("fig-readings"))
    assert tuple(found) == plan.readings
    picture, seeds = "results/fig-readings.png", (plan.schedule_seeds, plan.learning_seeds)
    return [map_page(found, picture, *seeds, stored("map-favourable"))]


def arena():
    return [runpy.run_path(str(ROOT / "examples" / "arena_page.py"))["page"](RESULTS)]


def worlds():
    return [world_section(stored("worlds"), name) for name in WORLDS]


@pytest.mark.parametrize(
    ("page", "sections"),
    [
        ("README.md", ablation),
        ("docs/policies.md", ablation),
        ("docs/results.md", ablation),
        ("docs/results.md", verdicts),
        ("docs/readings.md", readings),
        ("docs/arena.md", arena),
        ("docs/worlds.md", worlds),
    ],
)
def test_a_page_shows_the_stored_results(page, sections):
    text = (ROOT / page).read_text(encoding="utf-8")
    for section in sections():
        assert section in text
