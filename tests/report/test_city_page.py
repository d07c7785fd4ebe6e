"""The city of a run: the table that a run folder keeps, and the map that a page draws from it."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlane import Run, simulate
from fedlane.city_map import CityMap
from fedlane.report.page import build_page
from fedlane.report.page_city import PAGE_CELLS
from fedlane.report.page_data import page_data
from fedlane.simulation import coverage
from fedlane.simulation.coverage import coverage_table
from fedlane.simulation.merging import merge_runs
from fedlane.validate import InputError
from support.browsing import Tab, save_run
from support.packed import unpacked

pytestmark = pytest.mark.xdist_group("browser")

MOVING = ["network.mobility='waypoint'", "network.area_m=100.0"]


def gradient_city(rows=10, columns=12):
    """Two stations; the column with index 3 is a building, and nothing arrives in the cell (0, 0)."""
    x, y = np.meshgrid(np.arange(columns), np.arange(rows))
    gain_db = np.stack([-60.0 - x, -90.0 + 2.0 * y])
    gain_db[:, 0, 0] = -np.inf
    building = np.zeros((rows, columns), bool)
    building[:, 3] = True
    stations = np.array([[0.0, 0.0, 10.0], [50.0, 90.0, 10.0]])
    return CityMap(np.minimum(gain_db, 0.0), building, np.array([-10.0, 5.0]), 10.0, stations)


@pytest.fixture(scope="module")
def in_city(tmp_path_factory):
    """A run whose folder has the table of a city."""
    folder = tmp_path_factory.mktemp("city") / "run"
    save_run(folder, policy="random", rounds=5, learning=False, settings=MOVING)
    pq.write_table(coverage_table(gradient_city()), folder / "coverage.parquet")
    return folder


def test_the_table_has_the_best_gain_of_every_cell():
    city, table = gradient_city(), coverage_table(gradient_city())
    rows = {(row["x_m"], row["y_m"]): row for row in table.to_pylist()}
    assert len(rows) == table.num_rows == 120
    assert rows[-5.0, 10.0] == {"x_m": -5.0, "y_m": 10.0, "building": False, "gain_db": None}
    cell = rows[-10.0 + 10.0 * 5.5, 5.0 + 10.0 * 9.5]
    assert cell["gain_db"] == max(-60.0 - 5, -90.0 + 18)
    assert [row["building"] for row in table.to_pylist()] == city.building.ravel().tolist()


def test_neighbouring_cells_of_a_large_map_are_joined(monkeypatch):
    monkeypatch.setattr(coverage, "COVERAGE_CELLS", 20)
    table = coverage_table(gradient_city())
    assert table.num_rows == 12  # blocks of 3 x 3 cells; the tenth row is left out
    assert sorted(set(table["x_m"].to_pylist())) == [5.0, 35.0, 65.0, 95.0]
    assert table["gain_db"].to_pylist()[0] == -60.0
    assert not any(table["building"].to_pylist())  # one of three columns


@pytest.mark.slow
def test_a_run_in_munich_keeps_its_city_and_merges_with_other_seeds(tmp_path):
    runs = {str(seed): simulate("city-munich", "random", rounds=3, seeds=[seed], learning=False) for seed in (1, 0)}
    munich, table = CityMap.load("munich"), runs["0"].tables["coverage"]
    assert table.num_rows == munich.building.size
    np.testing.assert_array_equal(np.asarray(table["building"]), munich.building.ravel())
    runs["0"].save(tmp_path / "run")
    loaded = Run.load(tmp_path / "run")
    assert loaded.tables["coverage"].equals(table)
    assert list(loaded.to_pandas("coverage").columns) == table.column_names
    merged = merge_runs(runs)
    assert merged.tables["coverage"].equals(table)
    assert set(merged.tables["positions"]["replica"].to_pylist()) == {0, 1}
    x_m, y_m = (table[name].to_numpy() for name in ("x_m", "y_m"))
    streets = {(x, y) for x, y, built in zip(x_m, y_m, table["building"].to_pylist(), strict=True) if not built}
    moved = merged.tables["positions"]
    row, column = munich.cell(np.stack([moved["x_m"].to_numpy(), moved["y_m"].to_numpy()], axis=-1).astype(float))
    assert {tuple(place) for place in munich.centre_m(row, column).tolist()} <= streets  # nobody walks in a house
    (city,) = page_data([tmp_path / "run"])["cities"]
    assert city["origin_m"] == pytest.approx(munich.origin_m.tolist())
    assert city["cell_m"] == munich.cell_m


@pytest.mark.slow
def test_runs_on_different_maps_are_not_merged():
    runs = {str(seed): simulate("city-munich", "random", rounds=2, seeds=[seed], learning=False) for seed in (0, 1)}
    other = coverage_table(gradient_city())
    runs["1"] = replace(runs["1"], tables={**runs["1"].tables, "coverage": other})
    with pytest.raises(InputError, match="did not take place on the same city map"):
        merge_runs(runs)


@pytest.mark.slow
def test_a_shipped_map_is_credited(tmp_path):
    folder = tmp_path / "munich"
    simulate("city-munich", "random", rounds=2, seeds=[0], learning=False).save(folder)
    (city,) = page_data([folder])["cities"]
    assert city["credit"] == "buildings © OpenStreetMap contributors, ODbL 1.0"


def test_a_page_embeds_each_city_once(in_city):
    data = page_data([in_city, in_city])
    assert [run["city"] for run in data["runs"]] == [0, 0]
    (city,) = data["cities"]
    assert city["origin_m"] == [-10.0, 5.0]
    assert city["cell_m"] == 10.0
    np.testing.assert_array_equal(unpacked(city["building"]), gradient_city().building)
    shade, best_db = unpacked(city["shade"]), gradient_city().gain_db.max(axis=0)
    assert shade[0, 0] == 255
    low_db, high_db = city["gain_db"]
    np.testing.assert_allclose(low_db + (high_db - low_db) * shade[0, 1:] / 254, best_db[0, 1:], atol=0.1)


def test_a_large_city_is_thinned_and_a_damaged_one_is_one_line(in_city, tmp_path):
    save_run(tmp_path / "run", rounds=2, learning=False, settings=MOVING)
    size = 600
    grid = np.arange(size, dtype=float)
    columns = {"x_m": np.tile(grid, size), "y_m": np.repeat(grid, size), "building": np.zeros(size**2, bool)}
    table = pa.table({**columns, "gain_db": np.linspace(-120.0, -60.0, size**2)})
    pq.write_table(table, tmp_path / "run" / "coverage.parquet")
    (city,) = page_data([tmp_path / "run"])["cities"]
    assert np.prod(city["shade"]["shape"]) <= PAGE_CELLS
    assert city["cell_m"] == 3.0
    pq.write_table(table.slice(0, 1000), tmp_path / "run" / "coverage.parquet")
    with pytest.raises(InputError, match="table coverage has 1,000 rows, which are not those of a grid of cells"):
        page_data([tmp_path / "run"])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_map_shows_buildings_and_coverage_in_both_themes(browser, in_city, scheme):
    path = in_city.parent / "page.html"
    path.write_text(build_page(page_data([in_city])))
    pixels = """async () => {
        const image = new Image();
        image.src = document.querySelector('#map image').getAttribute('href');
        await image.decode();
        const canvas = document.createElement('canvas');
        [canvas.width, canvas.height] = [image.width, image.height];
        const pen = canvas.getContext('2d');
        pen.drawImage(image, 0, 0);
        return [image.width, image.height, [...pen.getImageData(0, 0, image.width, image.height).data]];
    }"""
    with Tab(browser, path.as_uri(), color_scheme=scheme) as tab:
        assert tab.page.locator("#map image").count() == 1
        width, height, values = tab.page.evaluate(pixels)
        assert (width, height) == (12, 10)
        picture = np.array(values).reshape(10, 12, 4)[::-1]  # the first row is the lowest
        assert (picture[:, 3, 3] == 255).all()  # the building
        assert picture[0, 0, 3] == 0  # nothing arrives
        assert picture[0, 1, 3] > picture[0, 11, 3] > 0  # a larger gain is a stronger shade
        button = tab.page.get_by_role("button", name="coverage", exact=True)
        button.focus()
        tab.page.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "false"
        hidden = np.array(tab.page.evaluate(pixels)[2]).reshape(10, 12, 4)[::-1]
        assert hidden[0, 1, 3] == 0
        assert hidden[0, 3, 3] == 255
        note = tab.page.locator("#rounds .note").first.inner_text()
        assert "Buildings are grey" in note
        assert "OpenStreetMap" not in note  # not a shipped map
        before = tab.page.locator("#map image").get_attribute("href")
        tab.page.locator("#theme").click()
        assert tab.page.locator("#map image").get_attribute("href") != before
        assert tab.errors == []
