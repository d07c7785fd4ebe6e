"""Pages of several runs in a real browser: one number per quantity, targets, and tables that stay readable."""

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlane import Run
from fedlane.report.page_data import page_data
from support.browsing import Tab, page_of, save_run

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.slow]

TARGET = "learning.target_accuracy=0.3"
BROKEN_LABELS = """cells => cells.flatMap(cell => {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    const broken = [];
    for (let node; (node = walker.nextNode()); ) {
        for (const match of node.data.matchAll(/[^\\s,:/]+/g)) {
            const range = document.createRange();
            range.setStart(node, match.index);
            range.setEnd(node, match.index + match[0].length);
            if (range.getClientRects().length > 1) broken.push(match[0]);
        }
    }
    return broken;
})"""
"""Words of the cells that are broken within themselves."""


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Three runs that learn, two of them with a target."""
    base = tmp_path_factory.mktemp("learned")
    for policy, settings in (("lane", [TARGET]), ("random", [TARGET]), ("round-robin", [])):
        save_run(base / policy, policy=policy, rounds=24, seeds=(0, 1, 2), settings=settings)
    return base


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Twelve runs of one policy without learning."""
    base = tmp_path_factory.mktemp("many")
    for V in (1, 2, 5, 10, 20, 30, 50, 100, 200, 500, 1000, 2000):
        policy = f"mamab-om:V={V},exploration=0.05"
        save_run(base / f"run-{V}", policy=policy, rounds=6, seeds=(0, 1), learning=False)
    return sorted(base.iterdir())


def overview(tab):
    """The overview's table: {row: {column: text}}."""
    head = tab.page.locator(".compare thead tr > *").all_inner_texts()
    rows = tab.page.locator(".compare tbody tr").all()
    return {
        row.locator("th").inner_text(): dict(zip(head[1:], row.locator("td").all_inner_texts(), strict=True))
        for row in rows
    }


def with_final_accuracy(source, folder, values):
    """Copy a run and give its seeds these accuracies at the end."""
    shutil.copytree(source, folder)
    table = pq.read_table(folder / "rounds.parquet")
    accuracy = table["accuracy"].to_numpy(zero_copy_only=False).copy().reshape(len(values), -1)
    accuracy[:, -1] = values
    at = table.column_names.index("accuracy")
    column = pa.array(accuracy.ravel(), from_pandas=True)
    pq.write_table(table.set_column(at, "accuracy", column), folder / "rounds.parquet")
    summary = json.loads((folder / "summary.json").read_text())
    summary["final_accuracy"] = {"mean": float(np.mean(values)), "low": 0.7, "high": 0.8}
    (folder / "summary.json").write_text(json.dumps(summary))


def test_final_accuracy_is_rounded_once(browser, learned, tmp_path):
    """0.7495 is 75.0%, but as a 32-bit number it is 0.74949998."""
    with_final_accuracy(learned / "lane", tmp_path / "run", [0.7485, 0.7495, 0.7505])
    with Tab(browser, page_of(tmp_path, [tmp_path / "run"])) as tab:
        tiles = " ".join(tab.page.locator(".tile").all_inner_texts())
        figure = tab.page.locator("#learning figure").first
        figure.locator("summary").click()
        last = figure.locator("tbody tr").last
        last.wait_for()
        shown = [tiles, figure.locator(".note").inner_text(), last.inner_text()]
        assert ["75.0%" in text for text in shown] == [True] * 3
        assert not any("74.9%" in text for text in shown)
        tab.look_at_round(24)
        tab.page.select_option("#choose-seed", label="1")
        assert "accuracy 75.0%" in tab.page.locator("#rounds").inner_text()


def test_min_participation_and_simulated_time_have_one_value(browser, learned, tmp_path):
    """The smallest mean of a client differs from the mean of the smallest values: the page shows the latter only."""
    summary = Run.load(learned / "lane").summary
    folders = [learned / "lane", learned / "random"]
    with Tab(browser, page_of(tmp_path, folders)) as tab:
        table = overview(tab)
        smallest = re.match(r"[\d.]+", table["Min. participation"]["lane"])[0]
        assert float(smallest) == pytest.approx(summary["min_participation"]["mean"], abs=5e-4)
        note = tab.page.locator("#service .note").first.inner_text()
        assert re.search(r"lane: .*?min\. participation ([\d.]+);", note)[1] == smallest
        clock = table["Simulated time"]["lane"].split(" s")[0]
        assert f"lane {clock} s" in tab.page.locator("#delays .note").first.inner_text()
        assert "Longest queue of all rounds" in table
        assert tab.page.locator("#queues h3").first.inner_text() == "Longest queue after each round"


def test_the_page_uses_the_saved_target(browser, learned, tmp_path):
    with Tab(browser, page_of(tmp_path, [learned / "lane", learned / "random"])) as tab:
        row = overview(tab)["Time to 30%"]
        for policy, cell in row.items():
            saved = json.loads((learned / policy / "summary.json").read_text())["time_to_accuracy"]
            shown = float(cell.split(" s")[0].replace(",", "")) if saved["reached"] else None
            assert shown == (pytest.approx(saved["mean"], abs=0.51) if saved["reached"] else None)
        note = tab.page.locator("#learning .note").nth(1).inner_text()
        assert note.startswith("Time to 30%: lane ")
        assert row["lane"].split(" s")[0] in note
        assert "target: 30%" in tab.page.locator("#learning .plot svg").first.inner_html()
        assert tab.errors == []


def test_without_a_target_the_page_invents_none(browser, learned, tmp_path):
    with Tab(browser, page_of(tmp_path, [learned / "round-robin"])) as tab:
        assert "Time to" not in tab.page.locator("main").inner_text()
        assert "first reached" not in tab.page.locator("#learning").inner_text()


def test_different_targets_are_all_shown_for_all_runs(browser, learned, tmp_path):
    save_run(tmp_path / "other", policy="lane", rounds=24, seeds=(0, 1, 2), settings=["learning.target_accuracy=0.2"])
    folders = [learned / "lane", tmp_path / "other", learned / "round-robin"]
    with Tab(browser, page_of(tmp_path, folders)) as tab:
        table = overview(tab)
        assert list(table)[-3:-1] == ["Time to 30%", "Time to 20%"]
        first, second, _ = table["Time to 20%"]
        assert table["Time to 20%"][first].split("\n")[0] == table["Time to 20%"][second].split("\n")[0]
        text = tab.page.locator("#overview").inner_text()
        assert "saved with different target accuracies: the time to each of 30% and 20% is shown for all" in text
        assert "1 run was saved without a target" in text


def test_genies_warning_is_on_the_page(browser, tmp_path):
    rates = [[[2.0, 4.0], [2.0, 8.0]], [[8.0, 2.0], [4.0, 1.0]]]
    settings = [f"network.rates_mbps={rates}", "network.clients=2", "network.channels=2", "compute.seconds=0.1"]
    settings += ["network.payload_bits=1000000.0", "network.deadline_s=30.0", "privacy.mechanism=none"]
    with pytest.warns(UserWarning, match="averages over time"):
        save_run(tmp_path / "run", policy="genie", rounds=6, seeds=[0], learning=False, settings=settings)
    with Tab(browser, page_of(tmp_path, [tmp_path / "run"])) as tab:
        assert "Caution: genie knows the delay distributions as averages" in tab.page.locator("#overview").inner_text()
        assert tab.page.locator("#map-title").inner_text() == "Links"
        assert tab.errors == []


def test_three_runs_on_a_phone_keep_their_first_column(browser, learned, tmp_path):
    with Tab(
        browser, page_of(tmp_path, [learned / name for name in ("lane", "random", "round-robin")]), width=390
    ) as tab:
        assert tab.scroll_width() <= 390
        assert tab.page.locator(".compare th").evaluate_all(BROKEN_LABELS) == []
        box, cell = tab.page.locator(".card.scroll"), tab.page.locator(".compare tbody th").first
        before = cell.bounding_box()["x"]
        moved = box.evaluate("box => { box.scrollLeft = 200; return box.scrollLeft }")
        assert moved > 50
        assert cell.bounding_box()["x"] == before
        assert cell.bounding_box()["width"] < 0.45 * 390


def test_twelve_runs_are_rows_in_natural_order(browser, many, tmp_path):
    with Tab(browser, page_of(tmp_path, many)) as tab:
        labels = list(overview(tab))
        assert labels[:4] == ["V=1", "V=2", "V=5", "V=10"]
        assert len(labels) == 12
        assert tab.page.locator(".compare th").evaluate_all(BROKEN_LABELS) == []
        assert "mamab-om, 12 runs that differ in V ·" in tab.page.locator("#facts").inner_text()
        assert tab.page.locator(".swatch.hollow").count() == 5
        assert tab.errors == []


def test_twelve_runs_fit_every_screen(browser, many, tmp_path):
    with Tab(browser, page_of(tmp_path, many)) as tab:
        for width in tab.screens([390, 768, 1280]):
            assert tab.scroll_width() <= width
            assert tab.page.locator(".compare th").evaluate_all(BROKEN_LABELS) == []
        assert tab.errors == []


def test_participation_of_many_runs_is_a_grid_with_a_row_per_run(browser, many, tmp_path):
    runs, below = page_data(many)["runs"], 0
    for folder in many:
        table = pq.read_table(folder / "clients.parquet")
        mean = {key: table[key].to_numpy().reshape(2, -1).mean(axis=0) for key in ("participation", "quota")}
        below += int((mean["participation"] < mean["quota"]).sum())
    assert below > 0
    with Tab(browser, page_of(tmp_path, many)) as tab:
        figure = tab.page.locator("#service figure").first
        rows = figure.locator(".grid-row")
        for _ in tab.screens([390, 1280], themes=["light"]):
            assert rows.locator(".row-name").all_text_contents() == [run["name"] for run in runs]
            assert rows.locator("text.cell").count() == 12 * runs[0]["clients"]
            measure = "all => all.map(r => r.getBoundingClientRect().width)"
            assert min(figure.locator(".grid-row rect[rx]").evaluate_all(measure)) > 20
            assert figure.locator(".grid-row rect[height='3']").count() == below
            assert figure.locator(".legend").inner_text().strip() == "below quota"
        assert tab.errors == []


def test_best_values_and_ratios_are_shown_among_equal_scenarios_only(browser, tmp_path):
    for policy, channels in (("lane", 4), ("random", 4), ("lane", 3), ("random", 3)):
        settings = [f"network.channels={channels}"]
        save_run(tmp_path / f"{policy}-{channels}", policy=policy, rounds=6, learning=False, settings=settings)
    with Tab(browser, page_of(tmp_path, [tmp_path / "lane-4", tmp_path / "lane-3"])) as tab:
        assert tab.page.locator(".compare .best").count() == 0
        assert "\N{MULTIPLICATION SIGN}" not in tab.page.locator(".compare").inner_text()
        notes = tab.page.locator("#overview .remark").all_inner_texts()
        assert "The runs do not have the same scenario (they differ in network.channels): " in notes[0]
        assert notes[0].endswith("best values and ratios are not shown.")
    folders = [tmp_path / name for name in ("random-4", "lane-4", "random-3", "lane-3")]
    with Tab(browser, page_of(tmp_path, folders)) as tab:
        times = overview(tab)["Simulated time"]
        assert [text.partition("\N{MULTIPLICATION SIGN} ")[2] for text in times.values()] == [
            "",
            "first run",
            "",
            "random, channels=3",
        ]
        row = tab.page.locator(".compare tbody tr").first
        assert row.locator(".best").count() == 2
        assert "among runs of the same scenario only" in tab.page.locator("#overview").inner_text()
    with Tab(browser, page_of(tmp_path, folders[:2])) as tab:
        assert "same scenario" not in tab.page.locator("#overview").inner_text()
        notes = tab.page.locator("#overview").inner_text()
        assert "The policies serve different quotas, because some lower them by a slack." in notes
        row = tab.page.locator(".compare tbody tr", has_text="Longest queue")
        assert row.locator(".best").count() == 0


def test_thinned_clients_keep_their_indices(browser, tmp_path):
    settings = ["network.clients=3000", "network.channels=4", "privacy.mechanism=none", "network.deadline_s=50.0"]
    save_run(tmp_path / "run0", "paper-fmnist", policy="random", rounds=3, seeds=[0], learning=False, settings=settings)
    folders = [tmp_path / f"run{k}" for k in range(8)]
    for folder in folders[1:]:
        folder.symlink_to(folders[0])
    every = page_data(folders)["client_every"]
    with Tab(browser, page_of(tmp_path, folders)) as tab:
        figure = tab.page.locator("#service figure").first
        figure.locator("summary").click()
        figure.locator("tbody th").first.wait_for()
        clients = [int(text) for text in figure.locator("tbody th").all_inner_texts()]
        assert clients == list(range(0, 3000, every))
        assert f"one in every {every} clients" in tab.page.locator("#foot").inner_text()
        assert tab.errors == []
