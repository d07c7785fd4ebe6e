"""Epsilon is never shown without its delta, and formula (6) only for the mechanism `paper`."""

import io
import json

import pytest
from rich.console import Console

from fedlane import Scenario, simulate
from fedlane.report.page_data import run_data
from fedlane.report.run_files import read_run
from fedlane.report.terminal import notes, summary_table
from fedlane.trackers.values import headline
from support.terminal import fedlane

pytestmark = pytest.mark.slow


def scenario(mechanism, **changes):
    return Scenario.load("quickstart").with_values({"rounds": 6, "privacy.mechanism": mechanism, **changes})


@pytest.fixture(scope="module")
def runs():
    """A run of each mechanism that has a budget."""
    return {name: simulate(scenario(name), "lane", learning=False) for name in ("paper", "rigorous")}


def text_of(table):
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("mechanism", ["paper", "rigorous"])
def test_the_terminal_states_delta(mechanism, runs):
    summary = runs[mechanism].summary
    lines = [*text_of(summary_table(summary)).splitlines(), *notes(summary)]
    shown = [line for line in lines if "epsilon" in line]
    assert shown
    assert all("at delta 1e-05" in line for line in shown)


def test_clients_with_several_deltas():
    deltas = [1e-6] * 5 + [1e-5] * 5
    run = simulate(scenario("paper", **{"privacy.delta": deltas}), "lane", learning=False)
    assert "at delta 1e-06 to 1e-05" in text_of(summary_table(run.summary))


def test_formula_6_is_null_unless_the_mechanism_is_paper(runs):
    for table in ("clients", "client_rounds"):
        assert runs["rigorous"].tables[table]["epsilon_paper"].null_count == len(runs["rigorous"].tables[table])
        assert runs["paper"].tables[table]["epsilon_paper"].null_count == 0
    assert "epsilon_paper" not in runs["rigorous"].summary["privacy"]
    assert runs["paper"].summary["privacy"]["epsilon_paper"] > 0


def test_the_page_has_delta_and_formula_6_only_for_paper(runs, tmp_path):
    for mechanism, run in runs.items():
        run.save(tmp_path / mechanism)
        data = run_data(read_run(tmp_path / mechanism), mechanism, 10**6)
        assert data["privacy"]["delta"] == 1e-5
        assert (data["per_client"]["epsilon_paper"] is not None) == (mechanism == "paper")


def test_the_page_ignores_formula_6_of_older_folders(runs, tmp_path):
    """They have it for every mechanism."""
    import pyarrow.parquet as pq

    runs["rigorous"].save(tmp_path / "old")
    file = tmp_path / "old" / "clients.parquet"
    table = pq.read_table(file)
    at = table.column_names.index("epsilon_paper")
    pq.write_table(table.set_column(at, "epsilon_paper", table["epsilon"]), file)
    assert run_data(read_run(tmp_path / "old"), "old", 10**6)["per_client"]["epsilon_paper"] is None


def test_trackers_get_delta_with_epsilon(runs):
    assert headline(runs["rigorous"].summary)["delta"] == 1e-5


def test_privacy_account_shows_delta_and_formula_6_only_for_paper(runs, tmp_path):
    for mechanism, run in runs.items():
        run.save(tmp_path / mechanism)
        shown = fedlane("privacy", "account", mechanism, cwd=tmp_path, code=0).stdout
        assert "delta 1e-05" in shown
        assert ("formula (6)" in shown) == (mechanism == "paper")
        rows = json.loads(fedlane("privacy", "account", mechanism, "--json", cwd=tmp_path, code=0).stdout)
        assert {row["epsilon_paper"] is None for row in rows} == {mechanism != "paper"}
    options = ("--epsilon", "0.8", "--delta", "1e-3", "--size", "6000", "--batch", "10", "--uploads", "5")
    shown = fedlane("privacy", "account", "--mechanism", "paper", *options, cwd=tmp_path, code=0).stdout
    assert "delta 0.001" in shown
