"""`fedlane run` as a user meets it: what it prints and writes, what stays after a full disk, a kill and Ctrl-C."""

import json
import resource
import runpy
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from fedlane.learning import replay
from support.forked import Forked
from support.terminal import fedlane, fedlane_forked, fedlane_killed, fedlane_process
from support.waiting import wait_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "patient_policy.py"
SHORT = ("run", "--rounds", "2", "--no-learning")


def run_folders(root):
    return sorted(p.parent for p in root.rglob("summary.json"))


def test_a_run_writes_a_folder_and_prints_a_table(tmp_path):
    result = fedlane(*SHORT, cwd=tmp_path, code=0)
    assert "cumulative delay" in result.stdout
    assert "seed 0" in result.stdout
    (folder,) = run_folders(tmp_path)
    assert folder.parent == tmp_path / "runs"
    assert folder.name.startswith("quickstart-lane-20")
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 2


@pytest.mark.slow
def test_the_installed_command_is_silent_if_asked_to_be(tmp_path):
    result = fedlane_process(*SHORT, "--policy", "random", "--quiet", "--out", "o", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert run_folders(tmp_path) == [tmp_path / "o"]


@pytest.mark.slow
def test_a_run_learns_by_default(tmp_path):
    result = fedlane("run", "--rounds", "20", "--target", "0.3", "--json", "--out", "o", cwd=tmp_path)
    summary = json.loads(result.stdout)
    assert summary["final_accuracy"]["mean"] > 0.3
    assert (tmp_path / "o" / "model.safetensors").exists()
    assert not (tmp_path / "o" / "checkpoint.npz").exists()
    assert summary["time_to_accuracy"]["target"] == 0.3


def test_json_is_json_and_nothing_else(tmp_path):
    words = (*SHORT, "--seeds", "3", "--policy", "random", "--json", "--out", "o")
    result = fedlane(*words, cwd=tmp_path, code=0)
    summary = json.loads(result.stdout)
    assert summary["seeds"] == [0, 1, 2]
    assert summary["cumulative_delay_s"]["low"] < summary["cumulative_delay_s"]["mean"]
    assert summary["folder"] == "o"
    assert result.stderr == ""


def test_brackets_in_names_are_not_markup(tmp_path):
    result = fedlane(*SHORT, "--set", 'name="[/b]x"', "--out", "[red]o[", cwd=tmp_path, code=0)
    assert "[/b]x · lane" in result.stdout
    assert "Saved to [red]o[" in result.stdout


def test_names_with_slashes_stay_inside_the_runs_folder(tmp_path):
    fedlane(*SHORT, "--quiet", "--set", 'name="../../x y"', cwd=tmp_path, code=0)
    (folder,) = run_folders(tmp_path)
    assert folder.parent == tmp_path / "runs"


def test_names_may_contain_non_ascii_characters(tmp_path):
    (tmp_path / "\U0001f600 \u00e9.toml").write_text("rounds = 2")
    fedlane("run", "\U0001f600 \u00e9.toml", "--no-learning", "--quiet", "--out", "o:\u00e9", cwd=tmp_path, code=0)
    assert fedlane("show", "o:\u00e9", cwd=tmp_path).returncode == 0


def test_set_overrides_the_scenario_and_inline_parameters_override_set(tmp_path):
    words = ("run", "paper-fmnist-literal", "--rounds", "1", "--no-learning", "--json", "--policy")
    setting = ("--set", "policies.mamab-om.exploration=0.5")
    for number, (options, exploration) in enumerate(
        [(("mamab-om",), 1.0), (("mamab-om", *setting), 0.5), (("mamab-om:exploration=0.2", *setting), 0.2)]
    ):
        shown = fedlane(*words, *options, "--out", f"o{number}", cwd=tmp_path, code=0).stdout
        assert json.loads(shown)["parameters"]["exploration"] == exploration


@pytest.mark.slow
def test_a_full_disk_is_reported_in_one_line_and_leaves_no_files(tmp_path):
    """A limit on file size makes the write fail as on a full disk."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    options = ("--rounds", "100", "--policy", "random", "--no-learning", "--quiet", "--out", "o")
    with fedlane_forked("run", *options, cwd=tmp_path, before=limit) as command:
        result = command.wait()
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert "output folder o cannot be written: " in line
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_ctrl_c_saves_the_rounds_played_so_far(tmp_path):
    options = ("--rounds", "200000", "--policy", "random", "--no-learning", "--out", "o")
    with fedlane_forked("run", *options, cwd=tmp_path) as command:
        wait_for((tmp_path / "o" / "status.json").exists, every_s=0.02)
        command.interrupt()
        result = command.wait()
    assert result.returncode == 130
    assert "rounds are saved; continue with fedlane run --resume o" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert json.loads((tmp_path / "o" / "status.json").read_text())["state"] == "interrupted"
    assert fedlane("show", "o", cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_same_results(tmp_path):
    whole = fedlane("run", "--rounds", "12", "--json", "--out", "whole", cwd=tmp_path)
    options = ("--rounds", "12", "--quiet", "--checkpoint-every", "5", "--out", "cut")
    assert fedlane_killed(8, "run", *options, cwd=tmp_path).returncode == -signal.SIGKILL
    status = json.loads((tmp_path / "cut" / "status.json").read_text())
    assert (status["state"], status["round"]) == ("running", 5)
    resumed = fedlane("run", "--resume", "cut", "--json", cwd=tmp_path, code=0)
    first, second = json.loads(whole.stdout), json.loads(resumed.stdout)
    for key in ("elapsed_s", "folder"):
        del first[key], second[key]
    assert first == second
    assert fedlane("run", "--resume", "cut", cwd=tmp_path).stderr == (
        "fedlane: cut cannot be resumed: checkpoint.npz is missing (the run is finished)\n"
    )


@pytest.mark.slow
def test_the_example_policy_runs_from_the_command_line(tmp_path):
    (tmp_path / "patient_policy.py").write_text(EXAMPLE.read_text())
    options = ("--policy", "patient_policy:Patient:optimism_s=1", "--rounds", "20", "--no-learning", "--json")
    with fedlane_forked("run", "paper-fmnist", *options, cwd=tmp_path) as command:
        result = command.wait()
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["parameters"] == {"optimism_s": 1.0}


@pytest.mark.slow
def test_the_example_policy_as_a_program(tmp_path):
    with Forked(lambda: runpy.run_path(str(EXAMPLE), run_name="__main__"), cwd=tmp_path) as program:
        result = program.wait()
    assert result.returncode == 0, result.stderr
    times = {line.split()[0]: float(line.split()[1]) for line in result.stdout.splitlines()}
    assert times["lane"] < times["patient"] < times["random"]


@pytest.mark.slow
def test_a_saved_schedule_can_be_learned_from_in_another_process(tmp_path):
    common = ("run", "--rounds", "6", "--seeds", "2")
    fedlane(*common, "--no-learning", "--quiet", "--save-schedule", "s.npz", "--out", "a", cwd=tmp_path)
    here = json.loads(fedlane(*common, "--json", "--out", "b", cwd=tmp_path).stdout)

    def learn():
        sys.argv = ["replay", "s.npz", "--out", "c.npz"]
        replay.main()

    with Forked(learn, cwd=tmp_path) as program:
        result = program.wait()
    assert result.returncode == 0, result.stderr
    with np.load(tmp_path / "c.npz") as curves:
        assert curves["accuracy"][:, -1].mean() == here["final_accuracy"]["mean"]
