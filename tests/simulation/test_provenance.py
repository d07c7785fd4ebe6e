"""What a run folder records about its origin, and runs that are played again from it."""

import getpass
import json
import os
import re
import shutil
import signal
import socket
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlane import Run, Scenario, Simulation, simulate
from fedlane.cli.command_line import recorded_command
from fedlane.scenario.run_settings import RunSettings
from fedlane.simulation.provenance import RunOrigin, arithmetic, source_commit
from fedlane.simulation.replaying import OTHER_NOISE, Tolerances, compare_runs, tolerances
from fedlane.simulation.results import RunFolder
from fedlane.validate import InputError
from support.terminal import fedlane

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ("--rounds", "6", "--set", "network.clients=5", "--set", "privacy.max_uploads=6")


def table(folder, name):
    return pq.read_table(folder / f"{name}.parquet")


def sessions(folder):
    return json.loads((folder / "provenance.json").read_text())["sessions"]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The folder of a run of two seeds that learns."""
    root = tmp_path_factory.mktemp("learned")
    options = (*SMALL, "--seeds", "2", "--policy", "mamab-om:V=7", "--set", "learning.evaluate_every=2")
    fedlane("run", *options, "--quiet", "--out", "run", cwd=root, code=0)
    return root / "run"


@pytest.fixture
def copied(learned, tmp_path):
    return shutil.copytree(learned, tmp_path / "run")


def test_a_run_folder_s_scenario_plays_the_run_again(tmp_path):
    options = (*SMALL, "--seeds", "3", "--policy", "mamab-om:V=7", "--no-learning", "--quiet")
    fedlane("run", *options, "--out", "a", cwd=tmp_path, code=0)
    fedlane("run", "a/scenario.toml", "--quiet", "--out", "b", cwd=tmp_path, code=0)
    a, b = Run.load(tmp_path / "a"), Run.load(tmp_path / "b")
    assert a.settings == b.settings == RunSettings(policy="mamab-om:V=7", seeds=(0, 1, 2), learning=False)
    assert all(a.tables[name].equals(b.tables[name]) for name in a.tables)
    assert not b.model
    assert (tmp_path / "a" / "scenario.toml").read_text() == (tmp_path / "b" / "scenario.toml").read_text()


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (("--policy", "random"), {"policy": "random"}),
        (("--seed", "0"), {"seeds": (0,)}),
        (("--seeds", "2"), {"seeds": (0, 1)}),
        (("--learning",), {"learning": True}),
        (("--device", "cpu"), {"device": "cpu"}),
    ],
)
def test_options_beat_the_stored_settings(options, settings, tmp_path):
    stored = {"policy": "round-robin", "seeds": [4, 7], "learning": False, "device": "cpu"}
    text = 'rounds = 2\n[data]\ndataset = "fashion-mnist-mini"\n[privacy]\nmechanism = "none"\n[run]\n'
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in stored.items()]
    (tmp_path / "mine.toml").write_text(text + "".join(lines))
    fedlane("run", "mine.toml", *options, "--quiet", "--out", "o", cwd=tmp_path, code=0)
    expected = RunSettings.from_values({**stored, **settings})
    assert Run.load(tmp_path / "o").settings == expected


def test_a_stored_gpu_is_asked_for_and_can_be_replaced(copied):
    path = copied / "scenario.toml"
    path.write_text(path.read_text().replace('device = "cpu"', 'device = "cuda"'))
    refused = fedlane("run", path, "--quiet", "--out", "o", cwd=copied.parent)
    if refused.returncode:  # a machine without a GPU
        assert "device cuda is not available here" in refused.stderr
    fedlane("run", path, "--device", "cpu", "--quiet", "--out", "p", cwd=copied.parent, code=0)
    assert Run.load(copied.parent / "p").settings.device == "cpu"


def test_compare_takes_the_stored_seeds(copied):
    fedlane(
        *("compare", "run/scenario.toml", "--policy", "random", "--no-learning", "--quiet", "--out", "o"),
        cwd=copied.parent,
        code=0,
    )
    assert Run.load(copied.parent / "o" / "random").settings.seeds == (0, 1)


def test_a_scenario_is_loaded_without_its_run_table(copied):
    scenario = Scenario.load(copied / "scenario.toml")
    assert scenario.network.clients == 5
    assert "run" not in scenario.model_dump()
    assert fedlane("show", copied / "scenario.toml", cwd=copied, code=0).stdout == scenario.to_toml()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("polcy = 'lane'", "unknown key 'run.polcy' (did you mean 'policy'?)"),
        ("seeds = []", "run.seeds must have at least 1 values, got []"),
        ("seeds = [1, 1]", "run.seeds must be all different"),
        ("seeds = [-1]", "run.seeds must be at least 0, got -1"),
        ("device = 'tpu'", "run.device must be 'cpu' or 'cuda', got 'tpu'"),
        ("learning = 1", "run.learning"),
    ],
)
def test_a_wrong_run_table_is_one_line(lines, message, tmp_path):
    (tmp_path / "mine.toml").write_text(f"rounds = 2\n[run]\n{lines}\n")
    for command in (("run", "mine.toml"), ("show", "mine.toml")):
        result = fedlane(*command, cwd=tmp_path)
        assert result.returncode == 2
        assert message in result.stderr


def test_a_policy_from_a_file_is_played_again(tmp_path):
    """Its parameters are stored under the class's name, which no built-in policy has."""
    policy = "patient_policy:Patient:optimism_s=2"
    shutil.copy(EXAMPLES / "patient_policy.py", tmp_path)
    fedlane("run", *SMALL, "--no-learning", "--policy", policy, "--quiet", "--out", "a", cwd=tmp_path, code=0)
    fedlane("run", "a/scenario.toml", "--quiet", "--out", "b", cwd=tmp_path, code=0)
    assert table(tmp_path / "a", "assignments").equals(table(tmp_path / "b", "assignments"))
    assert Run.load(tmp_path / "b").summary["parameters"] == {"optimism_s": 2.0}
    fedlane("replay", "a", "--quiet", cwd=tmp_path, code=0)


def test_every_run_folder_records_its_origin(learned):
    (session,) = sessions(learned)
    assert session["command"].startswith(
        "fedlane run --rounds 6 --set network.clients=5 --set privacy.max_uploads=6 --seeds 2 --policy mamab-om:V=7"
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", session["started"])
    assert {"fedlane", "python", "numpy", "scipy", "numba", "torch", "pyarrow"} <= set(session["versions"])
    assert session["device"]["class"] == "cpu"
    assert session["device"]["name"] == session["host"]["processor"] != ""
    assert session["host"]["cores"] >= 1
    assert session["host"]["arithmetic"] == arithmetic()
    assert (session["commit"], session["modified"]) == source_commit()
    text = (learned / "provenance.json").read_text()
    for secret in (socket.gethostname(), os.environ.get("PATH", "PATH")):
        assert secret not in text


def test_a_checkout_s_commit_is_recorded():
    root = Path(__file__).parents[2]
    commit, modified = source_commit()
    if (root / ".git").exists():
        assert re.fullmatch("[0-9a-f]{40}", commit)
        assert isinstance(modified, bool)
    else:
        assert (commit, modified) == (None, None)


def test_a_run_from_python_records_no_command(tmp_path):
    simulate("quickstart", rounds=2, learning=False).save(tmp_path / "o")
    (session,) = sessions(tmp_path / "o")
    assert session["command"] is None
    assert session["device"] is None
    assert Run.load(tmp_path / "o").provenance["kind"] == "simulation"


def test_a_recorded_command_holds_no_secrets(monkeypatch):
    monkeypatch.setenv("HOME", "/home/alice")
    words = ["/usr/bin/fedlane", "run", "/home/alice/my runs/x.toml", "--out", "/home/alice/o", "--set", 'name="a b"']
    line = recorded_command([*words, "--track", "mlflow:https://bob:hunter2@host:5000/?token=abc&user=bob"])
    assert line == (
        "fedlane run ~/'my runs/x.toml' --out ~/o --set 'name=\"a b\"' "
        "--track 'mlflow:https://***@host:5000/?token=***&user=***'"
    )
    assert getpass.getuser() == "root" or getpass.getuser() not in line


def test_a_resumed_run_records_both_sessions_and_replays(tmp_path):
    scenario = Scenario.load("quickstart").with_values({"rounds": 6, "learning.evaluate_every": 2})
    simulation = Simulation(scenario, "lane", [3, 5], learning=True)
    simulation.play(until=4)
    RunFolder.create(tmp_path / "o").write(simulation.result(), checkpoint=simulation.checkpoint(), interrupted=True)
    simulation.ledger.attach_file(tmp_path / "o")
    fedlane("replay", "o", "--quiet", cwd=tmp_path, code=0)  # the first four rounds
    fedlane("run", "--resume", "o", "--quiet", cwd=tmp_path, code=0)
    first, second = sessions(tmp_path / "o")
    assert (first["command"], first["first_round"]) == (None, 0)
    assert (second["command"], second["first_round"]) == ("fedlane run --resume o --quiet", 4)
    assert Run.load(tmp_path / "o").settings == RunSettings(policy="lane", seeds=(3, 5))
    fedlane("replay", "o", "--quiet", cwd=tmp_path, code=0)


def test_replay_prints_what_was_compared(learned):
    result = fedlane("replay", learned.name, cwd=learned.parent, code=0)
    for word in ("assignments and delays", "none (bits)", "model weights", "run reproduces"):
        assert word in result.stdout
    values = json.loads(fedlane("replay", learned.name, "--json", cwd=learned.parent, code=0).stdout)
    assert values["reproduces"]
    (run,) = values["runs"]
    assert {check["name"]: check["allowed"] for check in run["checks"]} == {
        "assignments and delays": 0.0,
        "round times": 0.0,
        "queues, quotas, positions": 0.0,
        "charged uploads": 0.0,
        "epsilon": 1e-9,
        "accuracy": 0.005,
        "loss": 1e-3,
        "accuracy, last 3 evaluations": 0.005,
        "model weights": 0.005,
        "summary of the schedule": 1e-9,
        "summary's final accuracy": 0.005,
    }
    assert not [path for path in learned.parent.iterdir() if path != learned]


def changed(folder, name, column, row, add):
    """Add to one value of a table."""
    stored = table(folder, name)
    values = stored[column].to_pylist()
    values[row] += add
    field = stored.schema.field(column)
    changed_table = stored.set_column(stored.column_names.index(column), field, pa.array(values, field.type))
    pq.write_table(changed_table, folder / f"{name}.parquet")


@pytest.mark.parametrize(
    ("name", "column", "row", "add", "broken"),
    [
        ("assignments", "delay_s", 3, 1e-15, "assignments and delays"),
        ("assignments", "client", 0, 1, "assignments and delays"),
        ("rounds", "clock_s", 4, 1e-14, "round times"),
        ("rounds", "seed", 0, 9, "round times"),
        ("rounds", "accuracy", 5, 0.02, "accuracy"),
        ("client_rounds", "queue", 7, 0.5, "queues, quotas, positions"),
        ("client_rounds", "epsilon", 7, 1e-3, "epsilon"),
    ],
)
def test_replay_finds_a_changed_value(copied, name, column, row, add, broken):
    changed(copied, name, column, row, add)
    result = fedlane("replay", "run", "--json", cwd=copied.parent, code=1)
    (run,) = json.loads(result.stdout)["runs"]
    failed = [check["name"] for check in run["checks"] if not check["agrees"]]
    assert broken in failed
    assert set(failed) <= {broken, "accuracy, last 3 evaluations"}


def test_replay_finds_a_changed_summary_and_a_missing_row(copied):
    path = copied / "summary.json"
    summary = json.loads(path.read_text())
    summary["final_accuracy"]["mean"] += 0.1
    path.write_text(json.dumps(summary))
    stored = table(copied, "assignments")
    pq.write_table(stored.slice(1), copied / "assignments.parquet")
    result = fedlane("replay", "run", cwd=copied.parent, code=1)
    assert "does NOT reproduce" in result.stdout
    assert result.stdout.count("DIFFERS") == 2


def test_replay_of_a_comparison_plays_all_its_runs(tmp_path):
    options = ("--policy", "random", "--policy", "lane", *SMALL, "--no-learning", "--quiet", "--out", "o")
    fedlane("compare", "quickstart", *options, cwd=tmp_path, code=0)
    values = json.loads(fedlane("replay", "o", "--json", cwd=tmp_path, code=0).stdout)
    assert [run["folder"] for run in values["runs"]] == ["o/random", "o/lane"]  # in the order of the policies


def test_replay_refuses_a_real_federation_in_one_line(copied):
    path = copied / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "flower": {}}))
    result = fedlane("replay", "run", cwd=copied.parent, code=2)
    message = "fedlane: run cannot be replayed: it was recorded by a real federation (Flower), which cannot be played"
    assert result.stderr == f"{message} again\n"


def test_an_interrupted_replay_is_one_line(copied, monkeypatch):
    step = Simulation.step

    def interrupted(simulation):
        if simulation.round == 2:
            signal.raise_signal(signal.SIGINT)
        step(simulation)

    monkeypatch.setattr(Simulation, "step", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background ignores Ctrl-C
    try:
        result = fedlane("replay", "run", cwd=copied.parent, code=130)
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.stderr == "fedlane: interrupted: run was not replayed to its end; it is unchanged\n"


def test_replay_names_other_versions(copied):
    path = copied / "provenance.json"
    values = json.loads(path.read_text())
    values["sessions"][0]["versions"]["torch"] = "1.0"
    path.write_text(json.dumps(values))
    assert "recorded with torch 1.0, replayed with" in fedlane("replay", "run", cwd=copied.parent, code=0).stderr


def test_an_old_folder_without_provenance_is_replayed(copied):
    (copied / "provenance.json").unlink()
    path = copied / "scenario.toml"
    path.write_text(path.read_text().partition("[run]")[0])
    assert Run.load(copied).settings is None
    result = fedlane("replay", "run", cwd=copied.parent, code=0)
    assert "has no provenance.json" in result.stderr


@pytest.mark.parametrize("text", ["[" * 99_999, '"x"', '{"format": 1}', '{"format": 1, "sessions": [{"host": 3}]}'])
def test_a_damaged_provenance_is_one_line(copied, text):
    (copied / "provenance.json").write_text(text)
    for command in ("show", "replay"):
        result = fedlane(command, "run", cwd=copied.parent, code=2)
        assert "provenance.json is damaged" in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_limits_depend_on_device_and_processor(learned):
    run = Run.load(learned)
    assert tolerances(run, "cpu") == Tolerances()
    assert tolerances(run, "cuda") == OTHER_NOISE
    assert tolerances(run, "cuda").accuracy is None  # another generator of noise: curves cannot be compared
    run.provenance["sessions"][0]["host"]["arithmetic"] = "other"
    assert tolerances(run, "cpu").numbers == 1e-9
    other = Run(run.scenario, dict(run.tables), run.summary, run.model, run.ledger)
    delay = run.assignments["delay_s"].to_numpy() * (1 + 1e-12)
    position = run.assignments.column_names.index("delay_s")
    other.tables["assignments"] = run.assignments.set_column(position, "delay_s", [delay])
    assert compare_runs(run, other, tolerances(run, "cpu"))[0].agrees
    assert not compare_runs(run, other, Tolerances())[0].agrees


def test_a_federation_on_another_device_is_compared_by_its_last_evaluations(learned):
    run = Run.load(learned)
    accuracy = np.array(run.rounds["accuracy"].to_numpy())
    position = run.rounds.column_names.index("accuracy")
    shifted = run.rounds.set_column(position, "accuracy", [accuracy + 0.04])
    summary = {**run.summary, "final_accuracy": {"mean": run.summary["final_accuracy"]["mean"] + 0.04}}
    summary["final_accuracy"] |= {"low": None, "high": None}
    other = Run(run.scenario, {**run.tables, "rounds": shifted}, summary, {}, run.ledger)
    checks = {check.name: check.agrees for check in compare_runs(run, other, OTHER_NOISE)}
    assert all(checks.values())
    assert "model weights" not in checks
    assert not all(check.agrees for check in compare_runs(run, other, Tolerances()))


def test_the_device_s_class_is_recorded():
    session = RunOrigin(device="cpu", command="fedlane run").provenance("simulation")["sessions"][0]
    assert session["device"]["class"] == "cpu"
    with pytest.raises(InputError, match=r"run\.device must be"):
        Simulation(Scenario.load("quickstart"), "lane", [0], device="tpu")
