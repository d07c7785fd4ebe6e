"""The results page shows every figure and every claim."""

from pathlib import Path

import pyarrow.parquet as pq

from fedlane.experiments.claims import CLAIMS, Verdict, judge
from fedlane.experiments.readings.favourable import most_favourable
from fedlane.experiments.readings.shares import COUNTED, ClaimShares, map_of, sentences
from fedlane.experiments.reproduce import FIGURES, ReproductionPlan
from fedlane.experiments.results_page import CAPTIONS, PageParts, claims_section, page, stored_map, write_page
from fedlane.experiments.store import ResultStore
from fedlane.scenario import Scenario

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_figure_has_a_caption():
    assert set(CAPTIONS) == set(FIGURES)


def test_the_page_shows_figures_and_all_claims(tmp_path):
    """With an empty store, every claim is listed as not computed."""
    plan = ReproductionPlan(FIGURES, 2, 2)
    verdicts = judge(plan, ResultStore(tmp_path))
    parts = PageParts(theorems="| 5 | a bound |", note="Computed on a laptop.")
    text = page(plan, ["fig-v", "fig-delay"], verdicts, "pictures", parts)
    assert "![fig-v](pictures/fig-v.png)" in text
    assert CAPTIONS["fig-delay"] in text
    assert sum(line.startswith("| ") for line in text.splitlines()) == 2 + len(CLAIMS)
    assert "## The theorems" in text
    assert "not computed (34)" in text
    assert "| readings |" not in text
    assert write_page(tmp_path, plan, [], verdicts, PageParts()).read_text().startswith("# Results")
    assert stored_map(tmp_path / "figures") == []


def test_the_claims_name_the_readings_under_which_they_hold():
    counts = {**dict.fromkeys(COUNTED, 0), "holds": 3, "refuted": 1}
    rows = [ClaimShares(number, claim.text, counts, counts, []) for number, claim in enumerate(CLAIMS, start=1)]
    verdict = Verdict(1, "Fig. 2", "a claim", "measure", 0.1, 0.0, 0.2, "holds", 3, "")
    text = claims_section([verdict], rows)
    assert "| 1 | Fig. 2: a claim | 0.1 [0, 0.2] measure | holds | 3 of 4 | 3 |  |" in text
    assert sentences(rows) in text


def test_the_favourable_preset_is_the_map_s_most_favourable_reading():
    reading = most_favourable(map_of(pq.read_table(DOCS / "results" / "fig-readings.parquet")))
    preset = Scenario.load("paper-fmnist-favourable")
    expected = Scenario.load("paper-fmnist").with_values(reading.values())
    assert preset.model_copy(update={"name": "paper-fmnist"}) == expected
