"""The report page in a real browser, on real run folders."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlane.number_text import number_text
from fedlane.report import page as page_module
from fedlane.report.page import build_page
from fedlane.report.page_data import page_data
from support.browsing import Tab, page_of, save_run
from support.terminal import fedlane

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.slow]

HOSTILE = "</title></script><script>window.hacked=1</script>\"'&<img src=x onerror=window.hacked=2>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder as `compare` writes it, with two policies that learn on the quickstart, and a run without learning."""
    base = tmp_path_factory.mktemp("report")
    save_run(base / "compare" / "lane", policy="lane")
    save_run(base / "compare" / "random", policy="random")
    save_run(base / "paper", "paper-fmnist", rounds=40, seeds=(0, 1, 2), learning=False)
    return base


@pytest.fixture(scope="module")
def compared(folders):
    """Address of the page that `fedlane report` writes for a compare folder."""
    done = fedlane("report", folders / "compare", cwd=folders, code=0)
    page = folders / "compare" / "report.html"
    assert "2 runs" in done.stdout
    assert str(page) in done.stdout
    return page.as_uri()


def assigned(folder, replica, round):
    """Links of a round according to the run folder."""
    table = pq.read_table(folder / "assignments.parquet")
    return {
        (row["client"], row["channel"], row["punctual"])
        for row in table.to_pylist()
        if (row["replica"], row["round"]) == (replica, round)
    }


def test_the_page_loads_nothing_else_and_has_no_errors(browser, compared):
    with Tab(browser, compared) as tab:
        assert tab.requests == [compared]
        assert tab.errors == []
        headings = ["Overview", "Rounds", "Learning", "Participation", "Queues", "Delays", "Predictions"]
        headings += ["Energy", "Privacy", "Scenario"]
        assert tab.page.locator("h2").all_inner_texts() == headings
        assert tab.page.locator("figure .plot > *").count() == tab.page.locator("figure").count()


def test_the_map_shows_the_links_of_the_round_the_seed_and_the_run(browser, compared, folders):
    lane, random = folders / "compare" / "lane", folders / "compare" / "random"
    with Tab(browser, compared) as tab:
        for round in (0, 5, 11):
            tab.look_at_round(round + 1)
            assert tab.links() == assigned(lane, 0, round)
        tab.page.select_option("#choose-seed", label="1")
        assert tab.links() == assigned(lane, 1, 11)
        tab.page.select_option("#choose-run", label="random")
        assert tab.links() == assigned(random, 1, 11)
        assert tab.page.locator("#round-title").inner_text() == "Round 12"
        assert tab.errors == []


def test_the_round_table_shows_clients_channels_and_delays(browser, compared, folders):
    with Tab(browser, compared) as tab:
        tab.look_at_round(3)
        cells = tab.page.locator(".slots tbody tr").evaluate_all("rows => rows.map(r => r.innerText.split(/\\s+/))")
        table = pq.read_table(folders / "compare" / "lane" / "assignments.parquet").to_pylist()
        rows = [row for row in table if (row["replica"], row["round"]) == (0, 2)]
        assert {(int(row[0]), int(row[1])) for row in cells} == {(row["client"], row["channel"]) for row in rows}
        shown = {int(row[0]): float(row[2].replace(",", "")) for row in cells}
        for row in rows:
            assert shown[row["client"]] == pytest.approx(row["delay_s"], rel=5e-3)


def test_two_runs_are_compared(browser, compared, folders):
    with Tab(browser, compared) as tab:
        assert tab.page.locator(".compare thead th").all_inner_texts() == ["lane", "random"]
        for column, policy in enumerate(("lane", "random")):
            summary = json.loads((folders / "compare" / policy / "summary.json").read_text())
            cell = tab.page.locator(".compare tbody tr").first.locator("td").nth(column).inner_text()
            value, low, high = re.search(r"([\d.,]+) s.*\[(\S+), (\S+)\]", cell, re.DOTALL).groups()
            expected = [summary["cumulative_delay_s"][key] for key in ("mean", "low", "high")]
            found = [float(text.replace(",", "").replace("\N{MINUS SIGN}", "-")) for text in (value, low, high)]
            assert found == pytest.approx(expected, rel=0.02, abs=0.5)
        curves = tab.page.locator("#learning figure").first.locator("path.line")
        assert curves.count() == 2
        tab.page.locator("#learning figure").first.get_by_role("button", name="random").click()
        assert curves.count() == 1
        assert tab.page.locator("#learning figure").nth(1).locator("path.line").count() == 2


def test_curves_show_the_means_of_the_tables(browser, compared, folders):
    rounds = pq.read_table(folders / "compare" / "lane" / "rounds.parquet")
    accuracy = rounds["accuracy"].to_numpy(zero_copy_only=False).reshape(2, -1)
    tested = np.flatnonzero(~np.isnan(accuracy[0]))
    with Tab(browser, compared) as tab:
        figure = tab.page.locator("#learning figure").first
        figure.locator("summary").click()
        figure.locator("tbody tr").first.wait_for()
        rows = figure.locator("tbody tr").evaluate_all("rows => rows.map(r => [...r.cells].map(c => c.innerText))")
        lane = {int(row[1].split()[1]): float(row[2].rstrip("%")) / 100 for row in rows if row[0] == "lane"}
        assert lane == pytest.approx({t + 1: accuracy[:, t].mean() for t in tested}, abs=6e-4)


def test_keys_select_rounds_and_read_curves(browser, compared, folders):
    from playwright.sync_api import expect

    with Tab(browser, compared) as tab:
        page = tab.page
        page.locator("#slider").focus()
        page.keyboard.press("ArrowRight")
        assert tab.links() == assigned(folders / "compare" / "lane", 0, 1)
        page.locator("h1").click()  # no control has the focus
        page.keyboard.press("ArrowRight")
        assert page.locator("#slider").get_attribute("aria-valuetext").startswith("round 3 of 12, 4 clients, ")
        page.locator("#learning svg[tabindex]").first.focus()
        page.keyboard.press("Home")
        assert re.match(r"round 3: lane [\d.]+%.*random", page.locator("#spoken").inner_text())
        assert page.locator("#slider").input_value() == "3"
        page.locator(".play").press("Enter")
        expect(page.locator("#slider")).not_to_have_value("3")
        page.locator(".play").press("Enter")
        assert page.locator(".play").inner_text() == "Play"
        assert tab.errors == []


def test_everything_has_a_name_for_screen_readers(browser, compared):
    with Tab(browser, compared) as tab:
        nameless = tab.page.evaluate("""() => [...document.querySelectorAll(
            'button, select, input, svg[role=img], canvas, [role=region], [role=group], nav')]
            .filter(n => !(n.getAttribute('aria-label') || n.innerText?.trim() || n.closest('label')?.innerText.trim()))
            .map(n => n.outerHTML.slice(0, 90))""")
        assert nameless == []
        assert [tab.page.locator(part).count() for part in ("main", "header", "footer", "nav", "h1")] == [1] * 5
        assert tab.page.locator("html").get_attribute("lang") == "en"
        ids = tab.page.evaluate("[...document.querySelectorAll('[id]')].map(n => n.id)")
        assert len(ids) == len(set(ids))
        named = tab.page.evaluate("""[...document.querySelectorAll('[aria-labelledby],[aria-describedby]')]
            .flatMap(n => [n.getAttribute('aria-labelledby'), n.getAttribute('aria-describedby')]).filter(Boolean)""")
        assert set(named) <= set(ids)
        assert all(tab.page.locator("figure .note").evaluate_all("notes => notes.map(n => n.innerText.length > 20)"))


def test_dark_and_light_follow_the_system_and_the_button(browser, compared):
    colour = "getComputedStyle(document.body).backgroundColor"

    def contrast(tab):
        return tab.page.evaluate("""() => {
            const light = (c) => { const v = c.match(/\\d+/g).slice(0, 3).map(x => { x /= 255;
                return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4 });
                return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2] };
            const ground = light(getComputedStyle(document.querySelector('.card')).backgroundColor);
            return Math.min(...[...document.querySelectorAll('.note, .where, h3, .detail, .entry')].map(n => {
                const ink = light(getComputedStyle(n).color);
                return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05) })) }""")

    with Tab(browser, compared, color_scheme="light") as light, Tab(browser, compared, color_scheme="dark") as dark:
        assert light.page.evaluate(colour) != dark.page.evaluate(colour)
        assert min(contrast(light), contrast(dark)) >= 4.5
        light.page.locator("#theme").click()
        assert light.page.evaluate(colour) == dark.page.evaluate(colour)
        assert light.page.locator("#theme").get_attribute("aria-label") == "Switch to the light theme"


def test_a_phone_does_not_scroll_sideways(browser, compared):
    with Tab(browser, compared) as tab:
        for width in tab.screens([320, 390], themes=["light"]):
            for details in tab.page.locator("details.figure-numbers").all():
                details.locator("summary").click()
                details.locator("table").wait_for()
            assert tab.scroll_width() == width


def test_markup_in_names_stays_text(browser, folders, tmp_path):
    name = HOSTILE.replace("/", "\N{DIVISION SLASH}")
    folder = tmp_path / name
    shutil.copytree(folders / "compare" / "lane", folder)
    for file in ("summary.json", "status.json"):
        content = json.loads((folder / file).read_text())
        content.update({key: HOSTILE for key in ("policy", "scenario", "state", "version") if key in content})
        (folder / file).write_text(json.dumps(content))
    with (folder / "scenario.toml").open("a") as toml:
        toml.write(f"note = '''{HOSTILE}'''\n# {HOSTILE}\n")
    url = page_of(tmp_path, [folder, folders / "compare" / "random"])
    with Tab(browser, url) as tab:
        tab.page.wait_for_timeout(200)
        assert tab.page.evaluate("window.hacked") is None
        assert tab.errors == []
        assert tab.requests == [url]
        assert tab.page.locator("img").count() == 0
        assert HOSTILE in tab.page.locator(".compare thead").inner_text()
        assert HOSTILE in tab.page.title()
        assert name in tab.page.locator("#scenario").inner_text()


def test_the_page_does_not_run_an_injected_script(browser, folders, tmp_path):
    page = build_page(page_data([folders / "paper"]))
    (tmp_path / "page.html").write_text(page.replace("</main>", "<script>window.hacked=1</script></main>"))
    with Tab(browser, (tmp_path / "page.html").as_uri()) as tab:
        assert tab.page.evaluate("window.hacked") is None
        assert any("Content Security Policy" in error for error in tab.errors)


def test_the_papers_mechanism_is_called_a_lower_bound(browser, folders, tmp_path):
    with Tab(browser, page_of(tmp_path, [folders / "paper"])) as tab:
        notes = tab.page.locator("#privacy .note").all_inner_texts()
        assert "lower bound" in notes[0]
        assert "not a bound" in notes[1]
        assert "No accuracy was recorded" in tab.page.locator("#learning").inner_text()
        assert tab.page.locator(".tile").count() == 9
        assert tab.errors == []


def test_a_run_without_positions_shows_its_links_and_no_map(browser, folders, tmp_path):
    folder = tmp_path / "real"
    shutil.copytree(folders / "paper", folder)

    def change(name, columns, extra=()):
        table = pq.read_table(folder / f"{name}.parquet")
        for column, value in columns.items():
            at = table.column_names.index(column)
            table = table.set_column(at, column, pa.array([value] * len(table), pa.float64()))
        for column in extra:
            table = table.append_column(column, pa.array(["n"] * len(table)))
        pq.write_table(table, folder / f"{name}.parquet")

    change("clients", {"x_m": float("nan"), "y_m": float("nan"), "quota": None}, ["node"])
    change("channels", {"x_m": None, "y_m": None})
    change("client_rounds", {"queue": None, "epsilon": None})
    change("clients", {"epsilon": None, "epsilon_paper": None})
    with Tab(browser, page_of(tmp_path, [folder])) as tab:
        assert tab.page.locator("#map-title").inner_text() == "Links"
        assert "This run has no positions" in tab.page.locator("#rounds").inner_text()
        assert tab.page.locator(".scale-bar").count() == 0
        heights = tab.page.locator("#map .node.client").evaluate_all("nodes => nodes.map(n => n.getCTM().f)")
        assert len(set(heights)) == 1  # a row, in the order of the indices
        tab.look_at_round(7)
        assert tab.links() == assigned(folder, 0, 6)
        assert tab.page.locator("#map .node.client").count() == 10
        assert "no privacy mechanism" in tab.page.locator("#privacy").inner_text()
        assert tab.errors == []


@pytest.mark.parametrize("all_unreported", [True, False])
def test_clients_that_have_not_reported_their_epsilon_are_mentioned(browser, folders, tmp_path, all_unreported):
    folder = tmp_path / "real"
    shutil.copytree(folders / "paper", folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary["privacy"] |= {"mechanism": "rigorous", "unreported": 10 if all_unreported else 1}
    (folder / "summary.json").write_text(json.dumps(summary))
    for name in ("clients", "client_rounds"):
        table = pq.read_table(folder / f"{name}.parquet")
        missing = [all_unreported or client == 3 for client in table["client"].to_pylist()]
        values = [None if gone else value for gone, value in zip(missing, table["epsilon"].to_pylist(), strict=True)]
        at = table.column_names.index("epsilon")
        pq.write_table(table.set_column(at, "epsilon", pa.array(values, pa.float64())), folder / f"{name}.parquet")
    with Tab(browser, page_of(tmp_path, [folder])) as tab:
        tiles = " ".join(tab.page.locator(".tile").all_inner_texts())
        assert ("no client has answered its last order" if all_unreported else "1 clients unreported") in tiles
        text = tab.page.locator("#privacy").inner_text()
        assert ("No client has reported" if all_unreported else "1 clients unreported") in text
        assert tab.errors == []


def test_epsilon_is_shown_with_its_delta_and_formula_6_only_for_paper(browser, folders, tmp_path):
    for folder, delta, by_formula in (("compare/lane", "1e-5", False), ("paper", "0.001", True)):
        with Tab(browser, page_of(tmp_path, [folders / folder])) as tab:
            (tile,) = [text for text in tab.page.locator(".tile").all_inner_texts() if "epsilon" in text.lower()]
            assert f"at delta {delta}" in tile
            text = tab.page.locator("#privacy").inner_text()
            assert f"epsilon at delta {delta}" in tab.page.locator("#privacy").inner_html()
            assert f"at delta {delta}" in text
            assert ("formula (6)" in text) == by_formula
            assert tab.errors == []


def test_runs_of_different_sizes_are_compared(browser, folders, tmp_path):
    save_run(tmp_path / "small", policy="random", rounds=3, seeds=[4], learning=False, settings=["network.clients=5"])
    with Tab(browser, page_of(tmp_path, [folders / "paper", tmp_path / "small"])) as tab:
        tab.look_at_round(30)
        tab.page.select_option("#choose-run", label="random, quickstart, seed 4")
        assert tab.page.locator("#slider").get_attribute("max") == "3"
        assert tab.links() == assigned(tmp_path / "small", 0, 2)
        assert tab.page.locator("#map .node.client").count() == 5
        assert tab.errors == []


def test_the_page_rounds_numbers_as_the_terminal_does(browser):
    """Decimally, with twelve digits kept before rounding: half less 10^-13 is a half, half less 10^-11 is not."""
    script = (Path(page_module.__file__).parent / "assets" / "format.js").read_text()
    values = [0.95, -0.95, 12.45, 2.675, 0.1 + 0.2, 1234.5, 0.94999, 0.5 - 1e-13, 0.5 - 1e-11, 2.5]
    tab = browser.new_page()
    for digits in (0, 1, 2):
        shown = tab.evaluate(f"values => {{ {script}; return values.map(value => fixed(value, {digits})) }}", values)
        expected = [number_text(value, f"{{:,.{digits}f}}") for value in values]
        assert [text.replace("\u2212", "-") for text in shown] == expected
    tab.close()
