"""Maps from Sionna RT: the shipped one against a fresh computation, seeds, stations, and the library of LLVM."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedlane.city_map import CityMap
from fedlane.network import llvm_library
from fedlane.network.llvm_library import VARIABLE, llvm_version, newest_fit, use_llvm
from fedlane.network.ray_tracing import PASS_SAMPLES, TracingSettings, _Ground, _spread, _stations
from fedlane.validate import InputError
from support.parts import missing

SAMPLES = 1_000_000


@pytest.fixture(scope="module")
def tracing():
    """Where maps can be computed."""
    if importlib.util.find_spec("sionna") is None:
        missing("sionna-rt is not installed (extra city)")
    if newest_fit(llvm_library._installed()) is None:
        missing("LLVM 19 or newer is not here (Debian: libllvm19)")


def cities(folder, *commands):
    """Run `fedlane city` with each list of words, all in one process of their own, because LLVM cannot be unloaded."""
    words = [[str(word) for word in ("city", *command)] for command in commands]
    program = [sys.executable, "-m", "support.commands", json.dumps(words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return [SimpleNamespace(**result) for result in json.loads(done.stdout)]


def traced(folder, results):
    """The maps that commands with ``--out`` 0.npz, 1.npz, ... wrote, and what they reported."""
    for result in results:
        assert result.code == 0, result.stderr
    return [(CityMap.load(str(folder / f"{k}.npz")), json.loads(result.stdout)) for k, result in enumerate(results)]


@pytest.mark.long
def test_the_shipped_map_is_a_fresh_one_within_its_monte_carlo_error(tracing, tmp_path):
    """Two fresh maps of n rays differ by sqrt(2) of a map's error; the shipped one, of 16 n rays, by less from both."""
    shipped = CityMap.load("munich")
    at = [word for place in shipped.station_xyz_m for word in ("--at", ",".join(f"{value:g}" for value in place))]
    options = ("munich", *at, "--samples", SAMPLES, "--json", "--out")
    results = cities(tmp_path, *((*options, f"{k}.npz", "--seed", k + 1) for k in range(2)))
    fresh = []
    for found, report in traced(tmp_path, results):
        for name in ("building", "origin_m", "station_xyz_m", "cell_m", "carrier_hz"):
            np.testing.assert_array_equal(getattr(found, name), getattr(shipped, name))
        assert "OpenStreetMap" in report["notice"]
        fresh.append(found.gain_db)
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


@pytest.fixture(scope="module")
def canyon(tracing, tmp_path_factory):
    """Three small maps of one scene, with the seeds 5, 5 and 6, and what was reported about each."""
    folder = tmp_path_factory.mktemp("canyon")
    options = ("simple_street_canyon", "--stations", 2, "--height", 10, "--samples", 20_000, "--json", "--out")
    return traced(folder, cities(folder, *((*options, f"{k}.npz", "--seed", seed) for k, seed in enumerate((5, 5, 6)))))


@pytest.mark.slow
def test_a_seed_gives_the_same_map_and_another_seed_another(canyon):
    first, again, other = (found for found, _ in canyon)
    np.testing.assert_allclose(again.gain_db, first.gain_db, atol=0.011)  # threads add powers in any order
    np.testing.assert_array_equal(again.station_xyz_m, first.station_xyz_m)
    assert not np.allclose(other.gain_db, first.gain_db, atol=0.1)


@pytest.mark.slow
def test_a_map_has_the_stations_that_were_asked_for_and_no_gain_inside_buildings(canyon):
    found, report = canyon[0]
    assert found.stations == 2
    assert report["stations"] == found.station_xyz_m.tolist()
    assert report["notice"] is None
    assert 0.5 < report["covered_share"] <= 1.0
    assert (found.gain_db[:, found.building] == -np.inf).all()


REFUSED = {
    "unknown scene 'munch' (did you mean 'munich'?)": ("munch",),
    "scene absent.xml does not exist": ("absent.xml",),
    "cannot read the scene broken.xml: ": ("broken.xml",),
    "cannot map the scene san_francisco: hardly anything lies at the level": ("san_francisco",),
    "the map must have at least 2 x 2": ("simple_street_canyon", "--cell", 100),
    "station (5000, 0) m is outside the map": ("simple_street_canyon", "--at", "0,0,10", "--at", "5000,0,10"),
}
"""The line on which `fedlane city` refuses a scene, and its words."""


@pytest.fixture(scope="module")
def refused(tracing, tmp_path_factory):
    """The results of `REFUSED`, and the folder in which the commands ran."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "broken.xml").write_text("<scene")
    results = cities(folder, *((*words, "--out", "map.npz") for words in REFUSED.values()))
    return dict(zip(REFUSED, results, strict=True)), folder


@pytest.mark.slow
@pytest.mark.parametrize("message", REFUSED)
def test_scenes_that_cannot_be_mapped_are_one_line(refused, message):
    results, folder = refused
    assert results[message].code == 2
    assert results[message].stderr.startswith(f"fedlane: {message}")
    assert results[message].stderr.count("\n") == 1
    assert not (folder / "map.npz").exists()


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
