"""A report page plays movement, absence and energy: what it embeds, and what a browser shows of it."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedlane import Scenario, Simulation
from fedlane.report.page import build_page
from fedlane.report.page_data import page_data
from fedlane.report.page_fit import PAGE_BYTES
from fedlane.report.run_files import signature
from fedlane.report.watch import Watch
from fedlane.simulation.results import RunFolder
from support.browsing import Tab, page_of, save_run
from support.packed import unpacked

pytestmark = pytest.mark.xdist_group("browser")

MOVING = ["network.mobility='waypoint'", "network.speed_m_s=[20.0, 30.0]", "network.area_m=1500.0"]
AWAY = ["availability.model='markov'", "availability.mean_on_s=20.0", "availability.mean_off_s=20.0"]
BATTERY = ["energy.battery_j=0.02"]


@pytest.fixture(scope="module")
def moving(tmp_path_factory):
    """A run whose clients move, come and go, and have batteries."""
    folder = tmp_path_factory.mktemp("moving") / "run"
    save_run(folder, rounds=30, learning=False, settings=[*MOVING, *AWAY, *BATTERY])
    return folder


@pytest.fixture(scope="module")
def page(moving):
    return page_of(moving.parent, [moving])


def positions(folder, replica):
    """(rounds, clients, 2) from the table."""
    table = pq.read_table(folder / "positions.parquet")
    rows = table.filter(np.asarray(table["replica"]) == replica)
    clients = max(rows["client"].to_pylist()) + 1
    return np.stack([rows[name].to_numpy().reshape(-1, clients) for name in ("x_m", "y_m")], axis=-1)


def test_embedded_positions_and_clocks_are_those_of_the_tables(moving):
    run = page_data([moving])["runs"][0]
    moved = run["movement"]
    rounds = pq.read_table(moving / "rounds.parquet")
    start_s = (rounds["clock_s"].to_numpy() - rounds["delay_s"].to_numpy()).reshape(2, 30)
    assert moved["round"] == list(range(30))
    np.testing.assert_allclose(unpacked(moved["clock_s"]), start_s, atol=1e-9)
    for replica in (0, 1):
        embedded = unpacked(moved["xy_m"])[replica] + moved["origin_m"]
        np.testing.assert_allclose(embedded, positions(moving, replica), atol=0.05)
    left, low, right, high = moved["extent_m"]
    assert (left, low) == (0.0, 0.0)
    assert (right, high) == (1500.0, 1500.0)


def test_presence_and_energy_are_those_of_the_tables(moving):
    run = page_data([moving])["runs"][0]
    table = pq.read_table(moving / "client_rounds.parquet")
    present = np.asarray(table["present"]).reshape(2, 30, 10)
    assert 0 < present.mean() < 1
    np.testing.assert_array_equal(unpacked(run["detail"]["present"]), present)
    assignments = pq.read_table(moving / "assignments.parquet")
    energy_j = unpacked(run["detail"]["energy_j"])
    assert np.nansum(energy_j) == pytest.approx(sum(assignments["energy_j"].to_pylist()), rel=1e-6)
    clients = pq.read_table(moving / "clients.parquet")
    mean_j = clients["energy_j"].to_numpy().reshape(2, -1).mean(axis=0)
    np.testing.assert_allclose(unpacked(run["per_client"]["energy_j"]["mean"]), mean_j)
    assert run["measures"]["energy_j"] == json.loads((moving / "summary.json").read_text())["energy_j"]
    assert run["battery_j"] == 0.02


def test_a_federation_has_no_movement_and_no_energy():
    run = page_data([Path(__file__).parents[1] / "golden" / "files" / "server-state"])["runs"][0]
    assert run["movement"] is None
    assert run["detail"]["energy_j"] is None
    assert run["per_client"]["energy_j"] is None
    assert run["battery_j"] is None


@pytest.mark.slow
def test_the_page_of_a_large_fleet_that_moves_stays_within_its_limit(tmp_path):
    settings = [*MOVING, *AWAY, "network.clients=4000", "network.channels=20", "data.samples_per_client=1"]
    settings += ["privacy.mechanism='none'", "learning.batch_size=1"]
    save_run(tmp_path / "run", policy="random", rounds=60, seeds=[0], learning=False, settings=settings)
    data = page_data([tmp_path / "run"])
    assert len(build_page(data)) <= PAGE_BYTES
    moved = data["runs"][0]["movement"]
    assert moved["round"][-1] == 59  # the last round is always there
    assert 2 <= len(moved["round"]) < 30


def test_the_live_view_follows_positions(tmp_path):
    scenario = Scenario.load("quickstart").with_settings([*MOVING, "rounds=9"])
    simulation, folder = Simulation(scenario, "lane", [0]), RunFolder.create(tmp_path / "run")
    watched = Watch(tmp_path / "run", "127.0.0.1", 0, None, frozenset())
    shown = []
    for until in (4, 9):
        simulation.play(until=until)
        folder.write(simulation.result())
        tag, data = watched.current()
        shown.append((tag, data["runs"][0]["movement"]["round"]))
    assert [rounds for _, rounds in shown] == [list(range(4)), list(range(9))]
    assert shown[0][0] != shown[1][0]
    before = signature(tmp_path / "run")
    (tmp_path / "run" / "positions.parquet").touch()
    assert signature(tmp_path / "run") != before


def map_rows(tab, folder):
    """Rows of the CSV file that the map saves."""
    with tab.page.expect_download() as download:
        tab.page.get_by_label("Save as CSV: Links of a round").click()
    path = folder / "map.csv"
    download.value.save_as(path)
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["kind"] == "client"]


def circles(tab):
    """Pixel positions of the clients on the map, in the order of their indices."""
    return tab.page.locator("#map .node.client").evaluate_all("nodes => nodes.map(n => [n.getCTM().e, n.getCTM().f])")


@pytest.mark.slow
def test_clients_move_on_the_map_with_the_rounds(browser, moving, page, tmp_path):
    with Tab(browser, page) as tab:
        before = circles(tab)
        tab.look_at_round(21)
        after = circles(tab)
        assert np.abs(np.subtract(after, before)).max() > 20
        rows = map_rows(tab, tmp_path)
        shown = np.array([[float(row["x_m"]), float(row["y_m"])] for row in rows])
        np.testing.assert_allclose(shown, positions(moving, 0)[20], atol=0.1)
        assert "when the round began" in tab.page.locator("#rounds .note").first.inner_text()
        tab.page.select_option("#choose-seed", label="1")
        shown = np.array([[float(row["x_m"]), float(row["y_m"])] for row in map_rows(tab, tmp_path)])
        np.testing.assert_allclose(shown, positions(moving, 1)[20], atol=0.1)
        assert tab.errors == []


@pytest.mark.slow
def test_trails_end_at_the_clients_and_grow_to_whole_paths_by_the_keyboard(browser, page):
    points = "paths => paths.map(p => p.getAttribute('d').slice(1).split('L').map(xy => xy.split(' ').map(Number)))"
    with Tab(browser, page) as tab:
        tab.look_at_round(30)
        trails = tab.page.locator("#map .trail").evaluate_all(points)
        nodes = tab.page.locator("#map .node.client").evaluate_all(
            "nodes => nodes.map(n => n.getAttribute('transform').match(/[\\d.]+/g).map(Number))"
        )
        assert [trail[-1] for trail in trails] == [pytest.approx(node, abs=0.11) for node in nodes]
        assert {len(trail) for trail in trails} == {22}  # the last 20 rounds, this one, and the place itself
        button = tab.page.get_by_role("button", name="whole paths")
        assert button.get_attribute("aria-pressed") == "false"
        button.focus()
        tab.page.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "true"
        assert {len(trail) for trail in tab.page.locator("#map .trail").evaluate_all(points)} == {31}
        assert tab.page.evaluate("document.activeElement.textContent") == "whole paths"


@pytest.mark.slow
def test_absent_clients_are_hollow_and_counted(browser, moving, page, tmp_path):
    present = np.asarray(pq.read_table(moving / "client_rounds.parquet")["present"]).reshape(2, 30, 10)[0]
    at = int(np.argmin(present.sum(axis=1)))
    with Tab(browser, page) as tab:
        tab.look_at_round(at + 1)
        kinds = tab.page.locator("#map .node.client").evaluate_all(
            "nodes => nodes.map(n => n.classList.contains('absent'))"
        )
        assert kinds == (~present[at]).tolist()
        away = int((~present[at]).sum())
        assert f"Absent: {away} client" in tab.page.locator("#map").get_attribute("aria-label")
        assert f"{away} absent" in tab.page.locator("#slider").get_attribute("aria-valuetext")
        assert [row["present"] == "true" for row in map_rows(tab, tmp_path)] == present[at].tolist()
        assert "absent" in tab.page.locator("#rounds .legend").first.inner_text()
        fill = tab.page.locator("#map .node.client.absent circle").first.evaluate("n => getComputedStyle(n).fill")
        assert fill == tab.page.locator(".card").first.evaluate("n => getComputedStyle(n).backgroundColor")


@pytest.mark.slow
def test_energy_is_in_the_overview_the_round_and_its_figure(browser, moving, page):
    summary = json.loads((moving / "summary.json").read_text())
    rows = pq.read_table(moving / "assignments.parquet").to_pylist()
    with Tab(browser, page) as tab:
        (tile,) = [text for text in tab.page.locator(".tile").all_inner_texts() if "Energy" in text]
        shown = float(re.search(r"([\d.,]+) J", tile)[1].replace(",", ""))
        assert shown == pytest.approx(summary["energy_j"]["mean"], rel=0.01, abs=5e-4)
        tab.look_at_round(2)
        head = tab.page.locator(".slots thead th").all_inner_texts()
        rows_of = "rows => rows.map(r => [...r.cells].map(c => c.innerText))"
        cells = tab.page.locator(".slots tbody tr").evaluate_all(rows_of)
        expected = {row["client"]: row["energy_j"] for row in rows if (row["replica"], row["round"]) == (0, 1)}
        for row in cells:
            energy = float(row[head.index("energy")].removesuffix(" J"))
            assert energy == pytest.approx(expected[int(row[0])], abs=6e-4)
        figure = tab.page.locator("#energy figure")
        assert "battery: 0.020 J" in figure.locator(".plot").text_content()
        assert "All clients together" in figure.locator(".note").inner_text()
        assert tab.page.locator("#service figure", has_text="Presence").count() == 1
        assert tab.errors == []


@pytest.mark.slow
def test_a_phone_shows_the_moving_map_without_scrolling_sideways(browser, page):
    nameless = "[...document.querySelectorAll('button')].filter(n => !n.innerText.trim()).length"
    with Tab(browser, page) as tab:
        for width in tab.screens([390]):
            tab.look_at_round(12)
            assert tab.scroll_width() == width
            assert tab.page.locator("#map .trail").count() == 10
            assert tab.page.evaluate(nameless) == 0
