"""A page never exceeds its stated size, whatever its runs hold, and says what was left out."""

import json
import shutil

import numpy as np
import pytest

from fedlane import Scenario, simulate
from fedlane.report.page import build_page
from fedlane.report.page_data import page_data
from fedlane.report.page_fit import PAGE_BYTES, shortened
from fedlane.validate import InputError
from support.browsing import save_run

pytestmark = pytest.mark.xdist_group("report-data")


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A run on a trace of 300 tables, which makes a scenario of half a megabyte, and of 6 MB with a comment."""
    rates = np.random.default_rng(0).uniform(1.0, 20.0, (300, 10, 10)).tolist()
    scenario = Scenario.from_values(
        {
            "rounds": 600,
            "network": {"clients": 10, "channels": 10, "payload_bits": 1e6, "rates_mbps": rates},
            "compute": {"seconds": 0.1},
            "privacy": {"mechanism": "none"},
        }
    )
    folder = tmp_path_factory.mktemp("traced") / "run"
    simulate(scenario, "round-robin", learning=False).save(folder)
    with (folder / "scenario.toml").open("a") as file:
        file.write("# " + "0.25, " * 1_000_000)
    assert (folder / "scenario.toml").stat().st_size > 6_000_000
    return folder


def test_a_long_trace_is_shortened(traced):
    data = page_data([traced])
    assert len(build_page(data).encode()) < PAGE_BYTES
    run = data["runs"][0]
    assert run["toml_shortened"]
    assert "more characters, digest" in run["toml"]
    assert "clients = 10" in run["toml"]


def test_a_run_on_given_rates_has_no_positions(traced):
    detail = page_data([traced])["runs"][0]["detail"]
    assert detail["client_xy_m"] is None
    assert detail["channel_xy_m"] is None


def test_long_traces_that_differ_still_differ(traced):
    text = (traced / "scenario.toml").read_text()
    line = next(line for line in text.splitlines() if line.startswith("rates_mbps"))
    other = text.replace(line, line[:-4] + "77" + line[-2:])
    assert shortened(text, 100_000) != shortened(other, 100_000)
    assert len(shortened(text, 100_000)) < 100_000 / 6


@pytest.mark.slow
def test_many_runs_of_a_long_trace_fit(traced, tmp_path):
    folders = [tmp_path / f"run{k}" for k in range(12)]
    for folder in folders:
        folder.symlink_to(traced)
    data = page_data(folders)
    assert len(build_page(data).encode()) < PAGE_BYTES
    assert len({run["name"] for run in data["runs"]}) == 12


@pytest.mark.slow
def test_very_many_clients_are_thinned_out(tmp_path):
    settings = ["network.clients=3000", "network.channels=4", "privacy.mechanism=none", "network.deadline_s=50.0"]
    save_run(tmp_path / "run0", "paper-fmnist", policy="random", rounds=3, seeds=[0], learning=False, settings=settings)
    folders = [tmp_path / f"run{k}" for k in range(8)]
    for folder in folders[1:]:
        folder.symlink_to(folders[0])
    data = page_data(folders)
    assert len(build_page(data).encode()) < PAGE_BYTES
    assert data["client_every"] > 1
    shown = data["runs"][0]["per_client"]["participation"]["mean"]["shape"]
    assert shown == [-(-3000 // data["client_every"])]


def test_what_cannot_fit_is_refused_in_one_line(traced, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(traced, folder)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "version": "x" * 5_000_000}))
    with pytest.raises(
        InputError, match=r"would take 5\.\d MB, more than the limit of 4\.5 MB: give fewer runs"
    ) as error:
        page_data([folder])
    assert "\n" not in str(error.value)


def test_the_page_itself_is_small():
    assert len(build_page({"runs": []}).encode()) < 200_000
