"""The report page shows what a policy predicted about uploads, and whether they agreed with it."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedlane.delay_predictions import NAMES, covered
from fedlane.report.page import build_page
from fedlane.report.page_data import page_data
from support.browsing import Tab, save_run
from support.packed import unpacked

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.slow]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs of a policy that predicts and of one that does not."""
    folder = tmp_path_factory.mktemp("predicted")
    for policy in ("lane", "random"):
        save_run(folder / policy, "paper-fmnist", policy=policy, rounds=60, learning=False)
    return folder


@pytest.fixture(scope="module")
def inside(folders):
    """(R, T, N): whether each upload of `lane` lies in its interval."""
    table = {name: column.to_numpy() for name, column in _columns(folders / "lane")}
    shown = covered(table[NAMES[0]], table[NAMES[2]], table["delay_s"], table["punctual"], 5.0)
    return shown.reshape(2, 60, 4)


def _columns(folder):
    table = pq.read_table(folder / "assignments.parquet")
    return zip(table.column_names, table.columns, strict=True)


def test_embedded_predictions_are_those_of_the_table(folders, inside):
    run = page_data([folders / "lane"])["runs"][0]
    table = dict(_columns(folders / "lane"))
    for name in NAMES:
        embedded = unpacked(run["detail"]["predicted"][name])
        np.testing.assert_allclose(embedded.ravel(), table[name].to_numpy(), atol=1e-4)
    np.testing.assert_array_equal(unpacked(run["detail"]["predicted"]["covered"]), inside)
    assert run["measures"]["coverage_90"] == json.loads((folders / "lane" / "summary.json").read_text())["coverage_90"]


def test_the_curve_of_coverage_has_every_upload_once(folders, inside):
    curve = page_data([folders / "lane"])["runs"][0]["curves"]["coverage"]
    ends = unpacked(curve["round"]).astype(int)
    assert ends[-1] == 60
    mean = unpacked(curve["mean"])
    starts = np.append(0, ends[:-1])
    for start, end, share in zip(starts, ends, mean, strict=True):
        assert share == pytest.approx(inside[:, start:end].mean())
    assert mean @ (ends - starts) / 60 == pytest.approx(inside.mean())


def test_a_run_without_predictions_shows_none(folders):
    run = page_data([folders / "random"])["runs"][0]
    assert run["detail"]["predicted"] is None
    assert "coverage" not in run["curves"]
    assert run["measures"]["coverage_90"]["mean"] is None


def test_a_damaged_table_of_predictions_is_shown_without_them(folders, tmp_path):
    for path in (folders / "lane").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    table = pq.read_table(tmp_path / "assignments.parquet").drop_columns(["predicted_median_s"])
    pq.write_table(table, tmp_path / "assignments.parquet")
    assert page_data([tmp_path])["runs"][0]["detail"]["predicted"] is None


def test_a_round_shows_what_was_predicted_and_what_happened(browser, folders, inside, tmp_path):
    paths = {}
    for name in ("lane", "random"):
        paths[name] = tmp_path / f"{name}.html"
        paths[name].write_text(build_page(page_data([folders / name])))
    with Tab(browser, paths["lane"].as_uri()) as tab:
        for number in (1, 30, 47):
            tab.look_at_round(number)
            marks = tab.page.locator(".slots .predicted")
            assert marks.count() == 4
            missed = tab.page.locator(".slots .predicted.missed").count()
            assert missed == 4 - inside[0, number - 1].sum()
            text = tab.page.locator("section:has(> #round-title) > .note").inner_text()
            assert f"{4 - missed} of 4 uploads in the predicted 90% intervals" in text
        share = json.loads((folders / "lane" / "summary.json").read_text())["coverage_90"]["mean"]
        assert f"lane {100 * share:.1f}%" in tab.page.locator("#predictions .note").inner_text()
        with tab.page.expect_download() as download:
            tab.page.get_by_label("Save as CSV: Delays of a round").click()
        download.value.save_as(tmp_path / "round.csv")
        with (tmp_path / "round.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert all(float(row[NAMES[0]]) <= float(row[NAMES[1]]) <= float(row[NAMES[2]]) for row in rows)
        assert not tab.errors
    with Tab(browser, paths["random"].as_uri()) as tab:
        assert tab.page.locator("#predictions, .slots .predicted").count() == 0
        assert not tab.page.locator(".legend.predicted").is_visible()
        assert not tab.errors
