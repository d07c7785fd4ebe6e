"""The data embedded in a report page: equal to the tables, small enough, and clear errors for damaged folders."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedlane.report.packing import packed_bits, packed_doubles, packed_floats, packed_indices, packed_levels
from fedlane.report.page import build_page, write_page
from fedlane.report.page_data import page_data, run_data
from fedlane.report.run_arrays import run_arrays
from fedlane.report.run_files import read_run, run_folders, signature
from fedlane.validate import InputError
from support.browsing import save_run
from support.packed import unpacked
from support.terminal import fedlane

pytestmark = pytest.mark.xdist_group("report-data")


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A run folder with 60 rounds of ten seeds."""
    folder = tmp_path_factory.mktemp("short") / "run"
    save_run(folder, "paper-fmnist", policy="random", rounds=60, seeds=range(10), learning=False)
    return folder


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A run folder with 500 rounds of ten seeds."""
    folder = tmp_path_factory.mktemp("large") / "run"
    save_run(folder, "paper-fmnist", rounds=500, seeds=range(10), learning=False)
    return folder


def test_packed_numbers_keep_nan_and_infinity():
    values = np.array([[0.0, 1e-6, 0.7495, 4.999], [5.001, 3e7, np.inf, np.nan]])
    np.testing.assert_allclose(unpacked(packed_floats(values)), values, rtol=1e-7)
    np.testing.assert_array_equal(unpacked(packed_doubles(values)), values)


def test_packed_indices_bits_and_levels():
    for largest in (5, 254, 255, 60_000):
        indices = np.array([[0, largest], [-1, 3]])
        packed = packed_indices(indices)
        none = 255 if packed["kind"] == "u1" else 65535
        np.testing.assert_array_equal(unpacked(packed), np.where(indices < 0, none, indices))
    bits = np.random.default_rng(0).random((3, 7)) < 0.5
    np.testing.assert_array_equal(unpacked(packed_bits(bits)), bits)
    levels = np.array([0.0, 17.25, np.nan])
    np.testing.assert_allclose(unpacked(packed_levels(levels)), levels, atol=1e-3)
    np.testing.assert_allclose(unpacked(packed_floats(levels)), levels)


def test_details_and_means_equal_those_of_the_tables(short):
    run = page_data([short])["runs"][0]
    rows = pq.read_table(short / "assignments.parquet").to_pydict()
    key = {(r, t, c): k for k, (r, t, c) in enumerate(zip(rows["replica"], rows["round"], rows["client"], strict=True))}
    detail = {name: unpacked(run["detail"][name]) for name in ("client", "channel", "upload_s", "punctual")}
    assert (run["detail"]["seeds"], run["detail"]["every"], run["detail"]["queue_every"]) == (10, 1, 1)
    for replica, round in ((0, 0), (3, 25), (9, 59)):
        for slot, client in enumerate(detail["client"][replica, round]):
            row = key[replica, round, int(client)]
            assert detail["channel"][replica, round, slot] == rows["channel"][row]
            assert detail["punctual"][replica, round, slot] == rows["punctual"][row]
            assert detail["upload_s"][replica, round, slot] == pytest.approx(rows["upload_s"][row], rel=1e-3)
    compute = np.array(rows["compute_s"])
    expected = [compute[np.array(rows["client"]) == client].mean() for client in range(10)]
    np.testing.assert_allclose(unpacked(run["parts"]["client"]["compute_s"]), expected, rtol=1e-5)
    clock = np.array(pq.read_table(short / "rounds.parquet")["clock_s"]).reshape(10, 60)
    np.testing.assert_allclose(unpacked(run["curves"]["clock"]["mean"])[-1], clock[:, -1].mean(), rtol=1e-5)
    assert unpacked(run["curves"]["clock"]["round"])[-1] == 60


def test_the_largest_epsilon_is_the_maximum_over_seeds(short):
    run = page_data([short])["runs"][0]
    epsilon = np.array(pq.read_table(short / "clients.parquet")["epsilon"]).reshape(10, -1)
    np.testing.assert_allclose(unpacked(run["per_client"]["epsilon"]["high"]), epsilon.max(axis=0), rtol=1e-6)
    assert run["privacy"]["mechanism"] == "paper"


@pytest.mark.slow
def test_the_page_of_500_rounds_and_ten_seeds_is_small(large, tmp_path):
    assert len(build_page(page_data([large]))) < 1_150_000
    copies = [tmp_path / f"copy{k}" for k in range(24)]
    for copy in copies:
        copy.symlink_to(large)
    data = page_data(copies)
    assert len(build_page(data)) < 5_000_000
    assert data["runs"][0]["detail"]["seeds"] < 10


@pytest.mark.slow
@pytest.mark.parametrize("budget", [30_000, 60_000, 150_000, 400_000, 1_000_000])
def test_detail_fits_its_budget(large, budget):
    run = run_data(read_run(large), "run", budget)
    assert len(json.dumps(run)) <= budget
    seeds = run["detail"]["seeds"]
    assert (seeds < 10) == (budget < 1_000_000)
    assert unpacked(run["detail"]["client"]).shape == (seeds, -(-500 // run["detail"]["every"]), 4)


def test_tables_that_end_at_different_rounds_are_cut_to_the_shorter(short, tmp_path):
    folder = tmp_path / "torn"
    shutil.copytree(short, folder)
    table = pq.read_table(folder / "rounds.parquet")
    pq.write_table(table.filter(np.array(table["round"]) < 36), folder / "rounds.parquet")
    arrays = run_arrays(read_run(folder))
    assert arrays.shape == (10, 36, 10, 4)
    assert not np.isnan(arrays.queue).any()


def test_a_folder_that_is_rewritten_is_read_again(short, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(short, folder)
    (folder / "status.json").write_text('{"round": 1')  # an incomplete file
    before = signature(folder)
    waits = []

    def repair(seconds):
        waits.append(seconds)
        shutil.copy(short / "status.json", folder / "status.json")

    monkeypatch.setattr("fedlane.report.run_files.time.sleep", repair)
    assert read_run(folder).status["state"] == "finished"
    assert len(waits) == 1
    assert signature(folder) != before


def test_a_compare_folder_is_expanded_to_its_runs(short, tmp_path):
    shutil.copytree(short, tmp_path / "compare" / "a")
    shutil.copytree(short, tmp_path / "compare" / "b")
    folder = tmp_path / "compare"
    assert run_folders([folder, folder / "a"]) == [folder / "a", folder / "b"]


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda folder: shutil.rmtree(folder), "does not exist"),
        (lambda folder: (folder / "status.json").unlink(), "status.json is missing"),
        (lambda folder: (folder / "clients.parquet").write_bytes(b"PAR1nonsense"), "clients.parquet is damaged"),
        (lambda folder: (folder / "summary.json").write_text("[1]"), "summary.json was not written by FedLane"),
        (lambda folder: (folder / "scenario.toml").write_bytes(b"\xff = 1"), "cannot be read"),
    ],
)
def test_a_damaged_folder_is_a_clear_error(short, tmp_path, damage, line):
    folder = tmp_path / "run"
    shutil.copytree(short, folder)
    damage(folder)
    with pytest.raises(InputError, match=line):
        page_data(run_folders([folder]))


def test_invalid_values_in_json_files_are_ignored(short, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(short, folder)
    for name, key, value in (("summary.json", "seeds", 7), ("status.json", "rounds", 10**400)):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, key: value}))
    run = page_data([folder])["runs"][0]
    assert run["seeds"] == [str(seed) for seed in range(10)]
    assert run["planned"] == 60


def test_the_command_reports_errors_in_one_line(short, tmp_path):
    empty = fedlane("report", tmp_path, cwd=tmp_path)
    assert (empty.returncode, len(empty.stderr.splitlines())) == (2, 1)
    assert "is not a run folder: status.json is missing" in empty.stderr
    nowhere = fedlane("report", short, "--out", tmp_path / "no" / "page.html", cwd=tmp_path)
    assert (nowhere.returncode, len(nowhere.stderr.splitlines())) == (2, 1)
    assert "cannot be written" in nowhere.stderr


def test_a_page_is_written_atomically(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(AttributeError):
        write_page(None, path)
    assert path.read_text() == "old"
    write_page("new \udcff", path)  # a file name need not be valid text
    assert path.read_text() == "new ?"
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
