"""Maps from Sionna RT: the shipped one against a fresh computation, seeds, stations, and the library of LLVM."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedlane.city_map import CityMap
from fedlane.network import llvm_library
from fedlane.network.llvm_library import VARIABLE, llvm_version, newest_fit, use_llvm
from fedlane.network.ray_tracing import PASS_SAMPLES, TracingSettings, _Ground, _spread, _stations
from fedlane.validate import InputError
from support.parts import missing

MAIN = "from fedlane.cli import main; main()"
SAMPLES = 1_000_000


@pytest.fixture(scope="module")
def tracing():
    """Where maps can be computed."""
    if importlib.util.find_spec("sionna") is None:
        missing("sionna-rt is not installed (extra city)")
    if newest_fit(llvm_library._installed()) is None:
        missing("LLVM 19 or newer is not here (Debian: libllvm19)")


def city(folder, *arguments):
    """Run `fedlane city` in a process of its own, because LLVM cannot be unloaded, and return the map and the JSON."""
    words = [sys.executable, "-c", MAIN, "city", *map(str, arguments), "--out", "map.npz", "--overwrite", "--json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return CityMap.load(str(folder / "map.npz")), json.loads(done.stdout)


@pytest.mark.slow
def test_the_shipped_map_is_a_fresh_one_within_its_monte_carlo_error(tracing, tmp_path):
    """Two fresh maps of n rays differ by sqrt(2) of a map's error; the shipped one, of 16 n rays, by less from both."""
    shipped = CityMap.load("munich")
    fresh = []
    for seed in (1, 2):
        at = [word for place in shipped.station_xyz_m for word in ("--at", ",".join(f"{value:g}" for value in place))]
        traced, report = city(tmp_path, "munich", *at, "--samples", SAMPLES, "--seed", seed)
        for name in ("building", "origin_m", "station_xyz_m", "cell_m", "carrier_hz"):
            np.testing.assert_array_equal(getattr(traced, name), getattr(shipped, name))
        assert "OpenStreetMap" in report["notice"]
        fresh.append(traced.gain_db)
    # Where many rays arrive, the error in dB is small and symmetric.
    strong = shipped.gain_db > -90
    first, second, stored = (gain_db[strong] for gain_db in (*fresh, shipped.gain_db))
    assert len(stored) > 3000
    error = np.sqrt(np.mean((first - second) ** 2) / 2)  # of one fresh map
    expected = error * np.sqrt(1 / 2 + SAMPLES / 16e6)  # of the mean of two, and of the shipped map
    away = (first + second) / 2 - stored
    assert np.sqrt(np.mean(away**2)) == pytest.approx(expected, rel=0.25)
    assert abs(away.mean()) < 0.1
    # The bounds notice a map that is wrong by a cell, by a station, or by a tenth of the carrier.
    gain_db = shipped.gain_db
    for wrong in (np.roll(gain_db, 1, axis=2), gain_db[[1, 0, 2, 3]], gain_db - 20 * np.log10(1.1)):
        reached = np.isfinite(wrong[strong])
        deviation = ((first + second) / 2)[reached] - wrong[strong][reached]
        assert np.sqrt(np.mean(deviation**2)) > 1.25 * expected
    # Where few rays arrive, a cell's error is large, but powers are unbiased: their sum agrees.
    weak = (shipped.gain_db > -110) & ~strong
    first, second, stored = (10 ** (gain_db[weak] / 10) for gain_db in (*fresh, shipped.gain_db))
    standard_error = np.sqrt(np.sum((first - second) ** 2) / 4 * (1 + 2 * SAMPLES / 16e6))
    assert standard_error < 0.05 * stored.sum()
    assert abs(np.sum((first + second) / 2 - stored)) < 4 * standard_error


@pytest.mark.slow
def test_a_seed_gives_the_same_map_and_another_seed_another(tracing, tmp_path):
    options = ("simple_street_canyon", "--stations", 2, "--height", 10, "--samples", 20_000)
    first, report = city(tmp_path, *options, "--seed", 5)
    again, other = (city(tmp_path, *options, "--seed", seed)[0] for seed in (5, 6))
    np.testing.assert_allclose(again.gain_db, first.gain_db, atol=0.011)  # threads add powers in any order
    np.testing.assert_array_equal(again.station_xyz_m, first.station_xyz_m)
    assert not np.array_equal(other.gain_db, first.gain_db)
    assert report["stations"] == first.station_xyz_m.tolist()
    assert first.stations == 2
    assert report["notice"] is None
    assert 0.5 < report["covered_share"] <= 1.0
    assert (first.gain_db[:, first.building] == -np.inf).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("munch",), "unknown scene 'munch' (did you mean 'munich'?)"),
        (("absent.xml",), "scene absent.xml does not exist"),
        (("broken.xml",), "cannot read the scene broken.xml: "),
        (("san_francisco",), "cannot map the scene san_francisco: hardly anything lies at the level"),
        (("simple_street_canyon", "--cell", 100), "the map must have at least 2 x 2"),
        (("simple_street_canyon", "--at", "0,0,10", "--at", "5000,0,10"), "station (5000, 0) m is outside the map"),
    ],
)
def test_scenes_that_cannot_be_mapped_are_one_line(tracing, arguments, message, tmp_path):
    (tmp_path / "broken.xml").write_text("<scene")
    words = [sys.executable, "-c", MAIN, "city", *map(str, arguments), "--out", "map.npz"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"fedlane: {message}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "map.npz").exists()


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("libLLVM.so.19.1", 19),
        ("libLLVM-15.so.1", 15),
        ("libLLVM-19.so", 19),
        ("libLLVM-14.0.6.so.1", 14),
        ("libLLVM.20.dylib", 20),
        ("libLLVM.so", None),
        ("libLLVMCore.a", None),
        ("libclang.so.19", None),
    ],
)
def test_a_library_s_name_states_its_version(name, version):
    assert llvm_version(Path("/nowhere") / name) == version


def test_the_oldest_library_that_is_new_enough_is_used(monkeypatch, tmp_path):
    libraries = [tmp_path / name for name in ("libLLVM-15.so.1", "libLLVM.so.21.1", "libLLVM.so.19.1")]
    for library in libraries:
        library.touch()
    assert newest_fit(libraries) == libraries[2]
    assert newest_fit(libraries[:1]) is None
    monkeypatch.setattr(llvm_library, "_installed", lambda: libraries)
    monkeypatch.setenv(VARIABLE, "")
    use_llvm()
    assert llvm_library.os.environ[VARIABLE] == str(libraries[2])


def test_without_a_library_one_line_names_the_package(monkeypatch, tmp_path):
    monkeypatch.setattr(llvm_library, "_installed", list)
    monkeypatch.setattr(llvm_library.ctypes.util, "find_library", lambda name: None)
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(InputError, match=r"needs LLVM 19 or newer \(on Debian the package libllvm19\)"):
        use_llvm()
    (tmp_path / "libLLVM-15.so").touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "libLLVM-15.so"))
    with pytest.raises(InputError, match="which is LLVM 15: LLVM 19 or newer is needed"):
        use_llvm()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "libLLVM.so.20"))
    with pytest.raises(InputError, match="which does not exist: LLVM 19 or newer is needed"):
        use_llvm()


def test_stations_divide_the_streets_evenly():
    points = np.stack(np.meshgrid(np.arange(20.0), np.arange(20.0)), axis=-1).reshape(-1, 2)
    centres = _spread(points, 4, seed=0)
    distance = np.linalg.norm(points[:, None] - centres, axis=-1)
    assert np.bincount(distance.argmin(axis=1)).min() > 60  # a quarter of 400 points is 100
    np.testing.assert_array_equal(_spread(points, 4, seed=0), centres)
    with pytest.raises(InputError, match="--stations must be at most 400"):
        _spread(points, 401, seed=0)


def test_a_station_stands_above_its_roof():
    height_m = np.zeros((10, 10, 16))
    height_m[4:6, 4:6] = 80.0
    ground = _Ground(np.zeros(2), height_m)
    places = _stations(ground, TracingSettings(stations=1, height_m=20.0, cell_m=5.0))
    np.testing.assert_allclose(places, [[25.0, 25.0, 83.0]], atol=3.0)
    low = TracingSettings(stations=1, station_xyz_m=((22.0, 22.0, 30.0),), cell_m=5.0)
    with pytest.raises(InputError, match=r"station 0 must be higher than 80\.0 m"):
        _stations(ground, low)


def test_rays_are_traced_in_passes():
    assert TracingSettings(samples=PASS_SAMPLES).passes == 1
    assert TracingSettings(samples=PASS_SAMPLES + 1).passes == 2
