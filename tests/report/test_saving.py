"""Every chart of the page saved as SVG and CSV by a real browser, and read again."""

import csv
import json
import re
import shutil
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest

from support.browsing import Tab, page_of, save_run

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.slow]

SVG = "{http://www.w3.org/2000/svg}"
PAUSE_MS = 150
"""Chromium silently drops a download that follows ten others within a second."""
FIGURES = 16
"""Charts of a page with learning, privacy and predictions: thirteen figures, and three of a round."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("saving")
    return [save_run(base / policy, policy=policy) and base / policy for policy in ("lane", "random")]


def saved(tab, button, tmp_path):
    """Click a button and return the file that it saves."""
    tab.page.wait_for_timeout(PAUSE_MS)
    with tab.page.expect_download() as download:
        button.click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    return path


def read_svg(path):
    """The root of a saved picture, after checking that it stands alone."""
    text = path.read_text(encoding="utf-8")
    assert "var(" not in text
    assert "class=" not in text
    assert "href" not in text
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert (root.find(f"{SVG}rect").get("fill"), root.find(f"{SVG}rect").get("width")) == ("#ffffff", root.get("width"))
    assert root.find(f"{SVG}title").text
    return root


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_chart_is_saved_in_the_light_theme_with_its_data(browser, folders, tmp_path, theme):
    with Tab(browser, page_of(tmp_path, folders), color_scheme=theme) as tab:
        groups = tab.page.locator(".save:visible").all()
        assert len(groups) == FIGURES
        groups = groups if theme == "dark" else groups[:3]  # the files are the same in both themes
        background = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
        for group in groups:
            picture = read_svg(saved(tab, group.get_by_text("SVG"), tmp_path))
            drawn = [node for tag in ("path", "circle", "rect") for node in picture.iter(f"{SVG}{tag}")]
            assert len(drawn) > 3
            marks = {node.get("fill") for node in drawn if node.tag != f"{SVG}path"}
            assert "rgb(0, 0, 0)" not in marks  # every mark has the page's style
            texts = list(picture.iter(f"{SVG}text"))
            assert texts
            for node in texts:  # dark ink on white
                red, green, blue = map(int, re.findall(r"\d+", node.get("fill"))[:3])
                assert max(red, green, blue) < 140 or node.text.isdigit()  # numbers on marks are white
                assert node.get("font-size").endswith("px")
            rows = read_csv(saved(tab, group.get_by_text("CSV"), tmp_path))
            assert len(rows) > 1  # the coverage of predictions has one row for several rounds
            assert None not in rows[0]
        assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == background
        assert tab.errors == []
        for path in sorted(tmp_path.glob("*.svg")):  # a browser shows each file on its own
            tab.page.goto(path.as_uri())
            assert tab.page.evaluate("document.querySelector('parsererror') === null")
        assert len(list(tmp_path.glob("*.svg"))) == len(groups)


def test_the_saved_accuracy_is_that_of_the_tables_without_runs_that_are_switched_off(browser, folders, tmp_path):
    rounds = pq.read_table(folders[0] / "rounds.parquet")
    accuracy = rounds["accuracy"].to_numpy(zero_copy_only=False).reshape(2, -1)
    tested = np.flatnonzero(~np.isnan(accuracy[0]))
    with Tab(browser, page_of(tmp_path, folders)) as tab:
        figure = tab.page.locator("#learning figure").first
        path = saved(tab, figure.get_by_text("CSV"), tmp_path)
        assert path.name == "fedlane-accuracy-against-rounds.csv"
        rows = read_csv(path)
        assert {row["run"] for row in rows} == {"lane", "random"}
        lane = [row for row in rows if row["run"] == "lane"]
        assert [float(row["round"]) for row in lane] == (tested + 1).tolist()
        assert [float(row["test accuracy"]) for row in lane] == accuracy[:, tested].mean(axis=0).tolist()
        assert all(float(row["low"]) <= float(row["test accuracy"]) <= float(row["high"]) for row in lane)
        figure.get_by_role("button", name="random").click()
        assert {row["run"] for row in read_csv(saved(tab, figure.get_by_text("CSV"), tmp_path))} == {"lane"}
        texts = [node.text for node in read_svg(saved(tab, figure.get_by_text("SVG"), tmp_path)).iter(f"{SVG}text")]
        assert "lane" in texts
        assert "random" not in texts


def test_the_saved_timeline_has_the_assignments_of_the_run(browser, folders, tmp_path):
    table = pq.read_table(folders[0] / "assignments.parquet").to_pylist()
    expected = {(r["round"] + 1, r["client"], r["channel"], r["punctual"]) for r in table if r["replica"] == 0}
    with Tab(browser, page_of(tmp_path, folders)) as tab:
        figure = tab.page.locator("figure", has_text="Timeline")
        rows = read_csv(saved(tab, figure.get_by_text("CSV"), tmp_path))
    found = {(int(r["round"]), int(r["client"]), int(r["channel"]), r["punctual"] == "true") for r in rows}
    assert found == expected


def test_a_spreadsheet_does_not_take_a_name_for_a_formula(browser, folders, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(folders[0], folder)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "policy": '=HYPERLINK("http://x","y")'}))
    with Tab(browser, page_of(tmp_path, [folder, folders[1]])) as tab:
        figure = tab.page.locator("#learning figure").first
        rows = read_csv(saved(tab, figure.get_by_text("CSV"), tmp_path))
    assert '\'=HYPERLINK("http://x","y")' in {row["run"] for row in rows}
