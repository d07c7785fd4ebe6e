"""The section on how close `lane` comes shows the stored results."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def lane_page():
    spec = importlib.util.spec_from_file_location("lane_page", ROOT / "examples" / "lane_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_the_page_are_those_of_the_stored_results(lane_page):
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    assert lane_page.with_tables(page, ROOT / "docs" / "results") == page


def test_the_stored_results_keep_the_bounds_that_the_page_states(lane_page):
    """The bounds under which this version of `lane` was accepted, on the seeds that were played once."""
    import json

    import numpy as np

    from fedlane.intervals import student_interval

    bench = lane_page.benchmark()
    records = json.loads((ROOT / "docs" / "results" / "lane.json").read_text())
    lane, long = (bench.merged(records, case, "lane") for case in ("paper", "long"))
    ratio, half = (lane[key] / lane["optimum_s"] for key in ("mean_s", "last_half_s"))
    low, mean, _ = student_interval(ratio[~np.isnan(ratio)])
    assert low <= 1.045
    assert mean <= 1.055
    low, mean, _ = student_interval(half[~np.isnan(half)])
    assert low <= 1.02
    assert mean <= 1.03
    assert np.nanquantile(ratio, 0.95) < 1.12
    assert np.nanmean(long["mean_s"] / long["optimum_s"]) <= 1.025
    served = lane["feasible_scale"] >= bench.FEASIBLE
    assert lane["under_quota"][served].max() <= 0.05
    assert lane["largest_queue"][served].max() < 30
    for case, bound in (("rayleigh", 1.06), ("100 x 10", 3.0), ("1,000 x 100", 5.0)):
        own, genie = (bench.merged(records, case, policy) for policy in ("lane", "genie"))
        assert np.mean(own["mean_s"] / genie["mean_s"]) <= bound
    assert abs(lane["covered"][0] / lane["covered"][1] - 0.9) <= 0.03
