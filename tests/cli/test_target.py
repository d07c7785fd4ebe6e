"""The target accuracy: saved with the run, used by every command that shows it, and refused where it has no meaning."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedlane import Run, Scenario, simulate
from fedlane.cli import app
from fedlane.targets import target_measure, time_to_accuracy
from fedlane.validate import InputError


def fedlane(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that reaches 30% accuracy early and was given that as its target."""
    folder = tmp_path_factory.mktemp("target") / "run"
    options = ("--rounds", 20, "--target", 0.3, "--set", "learning.evaluate_every=2", "--quiet")
    assert fedlane("run", *options, "--out", folder).exit_code == 0
    return folder


def test_the_target_is_saved_with_the_run(folder):
    run = Run.load(folder)
    assert run.scenario.learning.target_accuracy == 0.3
    assert "target_accuracy = 0.3" in (folder / "scenario.toml").read_text()
    saved = json.loads((folder / "summary.json").read_text())["time_to_accuracy"]
    assert saved == target_measure(run.time_to_accuracy(0.3), 0.3)
    assert saved["reached"] == 1


def test_show_prints_the_saved_target(folder):
    shown = fedlane("show", folder)
    saved = json.loads((folder / "summary.json").read_text())["time_to_accuracy"]
    row = next(line for line in shown.stdout.splitlines() if "time to accuracy 0.3" in line)
    assert f"{saved['mean']:,.0f} s" in row


@pytest.mark.slow
def test_the_saved_scenario_has_the_target_again(folder, tmp_path):
    result = fedlane("run", folder / "scenario.toml", "--json", "--out", tmp_path / "again")
    assert json.loads(result.stdout)["time_to_accuracy"]["target"] == 0.3


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "1.5"), "--target must be greater than 0 and at most 1, got 1.5"),
        (("--target", "0"), "--target must be greater than 0 and at most 1, got 0"),
        (("--target", "nan"), "--target must be greater than 0 and at most 1, got nan"),
        (("--set", "learning.target_accuracy=70"), "learning.target_accuracy must be at most 1, got 70"),
        (("--target", "0.5", "--no-learning"), "--target cannot be combined with --no-learning"),
        (("--set", "learning.target_accuracy=0.5", "--no-learning"), "learning.target_accuracy cannot be combined"),
    ],
)
def test_a_target_without_a_meaning_is_refused(command, options, message, tmp_path):
    policy = ("--policy", "lane") if command == "compare" else ()
    result = fedlane(command, "quickstart", *policy, "--rounds", 2, *options, "--out", tmp_path / "o")
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith(message)
    assert not (tmp_path / "o").exists()


def test_a_scenario_file_with_a_target_may_be_scheduled_without_learning(folder, tmp_path):
    options = ("--no-learning", "--rounds", 3, "--json", "--out", tmp_path / "schedule")
    summary = json.loads(fedlane("run", folder / "scenario.toml", *options).stdout)
    assert "time_to_accuracy" not in summary


@pytest.mark.slow
def test_compare_shows_one_target_for_all_rows_and_says_where_a_run_had_another(folder, tmp_path):
    options = ("--rounds", 8, "--target", 0.2, "--set", "learning.evaluate_every=2", "--with", folder)
    result = fedlane("compare", "quickstart", "--policy", "random", *options, "--out", tmp_path / "o")
    assert result.exit_code == 0, result.output
    assert "time to accuracy 0.2" in result.output
    assert "saved with the target accuracy 0.3" in " ".join(result.output.split())
    assert json.loads((tmp_path / "o" / "random" / "summary.json").read_text())["time_to_accuracy"]["target"] == 0.2


def test_a_resumed_run_keeps_its_target(folder):
    result = fedlane("run", "--resume", folder, "--target", 0.5)
    assert "--resume cannot be combined" in str(result.exception)


def test_the_time_is_that_of_the_mean_of_three_evaluations():
    accuracy = np.array([[0.1, np.nan, 0.9, 0.2, 0.6, 0.7], [0.1, 0.1, 0.1, 0.1, np.nan, np.nan]])
    clock_s = np.cumsum(np.ones((2, 6)), axis=1)
    np.testing.assert_array_equal(time_to_accuracy(accuracy, clock_s, 0.39), [3.0, np.nan])
    np.testing.assert_array_equal(time_to_accuracy(accuracy, clock_s, 0.5), [4.0, np.nan])
    assert target_measure(np.array([3.0, np.nan]), 0.4) == {
        "target": 0.4,
        "reached": 1,
        "mean": 3.0,
        "low": None,
        "high": None,
    }


def test_python_runs_have_a_target_too():
    scenario = Scenario.load("quickstart").with_values(
        {"learning.target_accuracy": 0.99, "learning.evaluate_every": 1, "rounds": 3}
    )
    summary = simulate(scenario, "random").summary
    assert summary["time_to_accuracy"] == {"target": 0.99, "reached": 0, "mean": None, "low": None, "high": None}
