"""A run in a Python session or a notebook: seeds by number, a few lines, pandas."""

import importlib.util
import sys

import numpy as np
import pytest

from fedlane import Run, simulate
from fedlane.validate import InputError
from support.parts import missing
from support.small_runs import UNSAMPLED


@pytest.fixture(scope="module")
def run():
    return simulate(UNSAMPLED, rounds=6, seeds=3, learning=False)


def test_a_number_of_seeds_means_the_first_ones(run):
    assert run.summary["seeds"] == [0, 1, 2]
    assert run.rounds.equals(simulate(UNSAMPLED, rounds=6, seeds=[0, 1, 2], learning=False).rounds)
    assert simulate(UNSAMPLED, rounds=1, seeds=np.int64(2), learning=False).summary["seeds"] == [0, 1]


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        (0, "seeds must be at least 1, got 0"),
        (-2, "seeds must be at least 1, got -2"),
        (True, "seeds must be a number of seeds or a list of seeds, got True"),
        (2.0, "seeds must be a number of seeds or a list of seeds, got 2.0"),
        ("3", "seeds must be a number of seeds or a list of seeds, got '3'"),
        ([], "seeds must be at least one number"),
    ],
)
def test_wrong_seeds_are_refused(seeds, message):
    with pytest.raises(InputError, match=message):
        simulate("quickstart", rounds=1, seeds=seeds, learning=False)


def test_a_run_shows_itself_in_a_few_lines(run):
    lines = repr(run).splitlines()
    assert lines[0] == "Run: quickstart, lane, 6 rounds, 3 seeds (0, 1, 2)"
    assert 4 <= len(lines) <= 8
    assert max(map(len, lines)) < 100
    assert lines[1].startswith("  simulated time: ")
    assert "95% interval" in lines[1]
    assert lines[-1].startswith("  epsilon (rigorous): up to ")
    assert lines[-1].endswith(" at delta 1e-05")


def test_a_notebook_shows_a_table_without_markup_from_names(run):
    html = run._repr_html_()
    assert html.startswith("<table><caption>quickstart, lane, 6 rounds")
    assert html.count("<tr>") == len(repr(run).splitlines()) - 1
    named = Run(run.scenario, run.tables, {**run.summary, "scenario": "<script>x</script>", "rounds": 4})
    assert "<script>" not in named._repr_html_()
    assert "&lt;script&gt;" in named._repr_html_()
    assert "4 of 6 rounds" in repr(named)


def test_many_seeds_are_abbreviated(run):
    many = Run(run.scenario, run.tables, {**run.summary, "seeds": list(range(10, 30))})
    assert "20 seeds (10, 11, ..., 29)" in repr(many)


def test_tables_become_pandas_frames_with_seeds():
    if importlib.util.find_spec("pandas") is None:
        missing("pandas is not installed")
    run = simulate(UNSAMPLED, rounds=6, seeds=[5, 9], learning=False)
    rounds = run.to_pandas()
    assert list(rounds.columns) == run.rounds.column_names
    assert rounds.groupby("seed")["clock_s"].max().index.tolist() == [5, 9]
    assert rounds["accuracy"].isna().all()
    for name, table in run.tables.items():
        frame = run.to_pandas(name)
        assert len(frame) == len(table)
        assert set(frame["seed"]) == {5, 9}
        assert ((frame["seed"] == 9) == (frame["replica"] == 1)).all()
    with pytest.raises(InputError, match=r"unknown table 'client' \(did you mean 'clients'\?\)"):
        run.to_pandas("client")


def test_without_pandas_the_install_command_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"Run\.to_pandas needs pandas: pip install pandas"):
        run.to_pandas()
