"""`fedlane city`: bad options are one line before anything is computed, and the preset with a map from elsewhere."""

import sys

import pytest

from support.small_city import small_city
from support.terminal import fedlane


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "map.txt"), "--out must end in .npz, got map.txt"),
        (("--out", "there.npz"), "there.npz exists: choose another file, or replace it with --overwrite"),
        (("--out", "no/map.npz"), "folder no does not exist"),
        (("--out", "map.npz", "--at", "1,2"), "--at must be three numbers X,Y,Z in metres, got 1,2"),
        (("--out", "map.npz", "--at", "1,2,nan"), "--at must be three numbers X,Y,Z in metres, got 1,2,nan"),
        (("--out", "map.npz", "--stations", "2", "--at", "1,2,3"), "--stations must be 1, the number of --at, got 2"),
        (("--out", "map.npz", "--height", "nan"), "--height must be from 1 to 1000, got nan"),
        (("--out", "map.npz", "--cell", "0"), "--cell must be from 0.1 to 1000, got 0"),
        (("--out", "map.npz", "--carrier", "3.5"), "--carrier must be from 1e+08 to 1e+12, got 3.5"),
    ],
)
def test_bad_options_are_one_line(options, message, tmp_path):
    (tmp_path / "there.npz").touch()
    result = fedlane("city", "munich", *options, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == f"fedlane: {message}\n"


def test_the_extra_is_named_where_sionna_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = fedlane("city", "munich", "--out", "map.npz", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "fedlane: fedlane city needs the extra city: pip install 'fedlane[city]'\n"


@pytest.mark.slow
def test_a_run_on_a_map_of_one_s_own(tmp_path):
    small_city().save(tmp_path / "small.npz")
    options = ("--no-learning", "--rounds", 3, "--set", "privacy.mechanism=none", "--quiet", "--out", "o")
    fedlane("run", "city-munich", "--set", "network.map=small.npz", *options, cwd=tmp_path, code=0)
    assert 'map = "small.npz"' in (tmp_path / "o" / "scenario.toml").read_text()
    for source, message in (
        ("absent.npz", "city map absent.npz does not exist, here or in the folder FEDLANE_DATA"),
        ("o/scenario.toml", "cannot read the city map o/scenario.toml: File is not a zip file"),
    ):
        result = fedlane("run", "city-munich", "--set", f"network.map={source}", "--no-learning", cwd=tmp_path)
        assert result.returncode == 2
        assert result.stderr == f"fedlane: {message}\n"
