"""City maps: what a file holds, where positions lie, and files that are not maps."""

import io
import zipfile

import numpy as np
import pytest

from fedlane import Scenario, simulate
from fedlane.city_map import CityMap, shipped_maps
from fedlane.simulation.setup import prepare
from fedlane.validate import InputError
from support.small_city import small_city

CITY = Scenario.load("city-munich").with_values({"privacy.mechanism": "none", "rounds": 3})


def written(path, **changes):
    """Write the small map with other arrays, or without those that are None, and return its name."""
    with np.load(io.BytesIO(small_city().to_bytes())) as stored:
        arrays = {**stored, **changes}
    np.savez_compressed(path, **{key: value for key, value in arrays.items() if value is not None})
    return str(path)


def test_the_shipped_map_has_the_arrays_of_the_contract():
    assert shipped_maps() == ["munich"]
    munich = CityMap.load("munich")
    assert munich.gain_db.shape == (4, *munich.building.shape)
    assert munich.station_xyz_m.shape == (4, 3)
    assert munich.cell_m == 5.0
    assert munich.carrier_hz == 3.5e9
    from importlib import resources

    folder = resources.files("fedlane").joinpath("data", "maps")
    assert len(folder.joinpath("munich.npz").read_bytes()) <= 2_000_000
    notice = folder.joinpath("NOTICE.md").read_text(encoding="utf-8")
    for words in ("Open Database License", "ODbL", "OpenStreetMap", "fedlane city munich --stations 4"):
        assert words in notice


def test_a_map_survives_its_file(tmp_path):
    city = small_city(carrier_hz=2e9)
    city.save(tmp_path / "small.npz")
    again = CityMap.load(str(tmp_path / "small.npz"))
    for name in ("building", "origin_m", "station_xyz_m", "cell_m", "carrier_hz"):
        np.testing.assert_array_equal(getattr(again, name), getattr(city, name))
    np.testing.assert_allclose(again.gain_db, city.gain_db, atol=1e-5)
    small_city(cell_m=20.0).save(tmp_path / "small.npz")  # a rewritten file is read again
    assert CityMap.load(str(tmp_path / "small.npz")).cell_m == 20.0


def test_positions_and_cells():
    city = small_city()
    row, column = city.cell(np.array([[-20.0, 100.0], [-10.1, 100.0], [-10.0, 159.9], [59.9, 110.0]]))
    np.testing.assert_array_equal(row, [0, 0, 5, 1])
    np.testing.assert_array_equal(column, [0, 0, 1, 7])
    np.testing.assert_allclose(city.centre_m(row, column)[0], [-15.0, 105.0])
    for outside in ([-20.1, 120.0], [60.0, 120.0], [0.0, 99.9], [0.0, 160.0]):
        with pytest.raises(InputError, match=r"position \(.*\) m is outside the city map small"):
            city.cell(np.array([[0.0, 120.0], outside]))


def test_the_streets_are_the_largest_connected_area():
    city = small_city()
    assert (city.streets & city.building).sum() == 0
    courtyard = city.streets[5, :3]
    assert not courtyard.any()
    assert city.streets.sum() == (~city.building).sum() - 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"building": None}, "it has no array building"),
        ({"gain_db": np.zeros((2, 5, 8))}, "gain_db must be stations x rows x columns"),
        ({"gain_db": np.zeros((6, 8))}, "gain_db must be stations x rows x columns"),
        ({"gain_db": np.full((2, 6, 8), np.nan)}, "gain_db must be at most 0 everywhere"),
        ({"gain_db": np.ones((2, 6, 8))}, "gain_db must be at most 0 everywhere"),
        ({"gain_db": np.full((2, 6, 8), "loud")}, "gain_db must be at most .* numbers, got <U4"),
        ({"building": np.full((6, 8), 2)}, "building must be booleans, 0 or 1"),
        ({"building": np.ones((6, 8), bool)}, "every cell is a building"),
        ({"origin_m": np.zeros(3)}, "origin_m must be two numbers"),
        ({"origin_m": np.array([0.0, np.inf])}, "station_xyz_m and origin_m must be coordinates"),
        ({"cell_m": np.zeros(2)}, "cell_m must be one number"),
        ({"cell_m": 0.0}, "cell_m must be from 0.01 to 100000, got 0"),
        ({"station_xyz_m": np.zeros((3, 3))}, r"station_xyz_m must be \(2, 3\)"),
        ({"carrier_hz": np.array(-1.0)}, "carrier_hz must be from 1e6 to 1e13, got -1"),
        ({"gain_db": np.zeros((1, 1100, 1000)), "building": np.zeros((1100, 1000), bool)}, "at most 1,048,576"),
    ],
)
def test_wrong_arrays_are_one_line(changes, message, tmp_path):
    source = written(tmp_path / "wrong.npz", **changes)
    with pytest.raises(InputError, match=f"cannot use the city map .*wrong.npz: .*{message}") as error:
        prepare(CITY.with_values({"network.map": source}), [0])
    assert "\n" not in str(error.value)


def test_files_that_are_not_maps_are_one_line(tmp_path):
    with pytest.raises(InputError, match=r"unknown city map 'munch' \(did you mean 'munich'\?\)"):
        CityMap.load("munch")
    with pytest.raises(InputError, match=r"city map absent\.npz does not exist, here or in the folder FEDLANE_DATA"):
        CityMap.load("absent.npz")
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "pickle.npz", gain_db=np.array([{}], object))
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("gain_db.npy", bytes(10**8))
    for name in ("text.npz", "pickle.npz", "bomb.npz"):
        with pytest.raises(InputError, match=f"cannot read the city map .*{name}: ") as error:
            CityMap.load(str(tmp_path / name))
        assert "\n" not in str(error.value)


def test_maps_are_found_in_fedlane_data(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLANE_DATA", str(tmp_path))
    (tmp_path / "maps").mkdir()
    small_city().save(tmp_path / "maps" / "ours.npz")
    assert CityMap.load("ours.npz").stations == 2


def test_a_map_that_does_not_fit_its_scenario_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"network\.channels must be at least 4, one for each station of the city map"):
        prepare(CITY.with_values({"network.channels": 3}), [0])
    with pytest.raises(InputError, match=r"network\.carrier_hz must be 3\.5e\+09, the carrier of the city map munich"):
        prepare(CITY.with_values({"network.carrier_hz": 28e9}), [0])
    building = np.ones((6, 8), bool)
    building[2, 2] = False
    source = written(tmp_path / "cell.npz", building=building)
    with pytest.raises(InputError, match="its streets are a single cell"):
        prepare(CITY.with_values({"network.map": source}), [0])


def test_any_carrier_fits_a_map_that_states_none(tmp_path):
    source = written(tmp_path / "small.npz")
    run = simulate(CITY.with_values({"network.map": source, "network.carrier_hz": 28e9}), "random", learning=False)
    assert run.summary["rounds"] == 3
