"""The results page shows every figure and every claim."""

from fedlane.experiments.claims import CLAIMS, judge
from fedlane.experiments.reproduce import FIGURES, ReproductionPlan
from fedlane.experiments.results_page import CAPTIONS, page, write_page
from fedlane.experiments.store import ResultStore


def test_every_figure_has_a_caption():
    assert set(CAPTIONS) == set(FIGURES)


def test_the_page_shows_figures_and_all_claims(tmp_path):
    """With an empty store, every claim is listed as not computed."""
    plan = ReproductionPlan(FIGURES, 2, 2)
    verdicts = judge(plan, ResultStore(tmp_path))
    text = page(plan, ["fig-v", "fig-delay"], verdicts, "| 5 | a bound |", "pictures", note="Computed on a laptop.")
    assert "![fig-v](pictures/fig-v.png)" in text
    assert CAPTIONS["fig-delay"] in text
    assert sum(line.startswith("| ") for line in text.splitlines()) == 2 + len(CLAIMS)
    assert "## The theorems" in text
    assert "not computed (34)" in text
    assert write_page(tmp_path, plan, [], verdicts, "").read_text().startswith("# Results")
