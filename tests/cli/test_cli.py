"""The command line as a user meets it: exit codes, files, one clear line on bad input.

Most tests call the entry point in this process; those about processes, signals and files of the installation start one.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from support.terminal import COMMAND, fedlane, fedlane_killed, fedlane_process
from support.waiting import wait_for


def run_folders(root):
    return sorted(p.parent for p in root.rglob("summary.json"))


def test_run_writes_a_folder_and_a_table(tmp_path):
    result = fedlane_process("run", "--rounds", "20", "--no-learning", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "cumulative delay" in result.stdout
    assert "seed 0" in result.stdout
    (folder,) = run_folders(tmp_path)
    assert folder.parent.name == "runs"
    assert folder.name.startswith("quickstart-lane-20")
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 20


def test_a_run_learns_by_default(tmp_path):
    result = fedlane("run", "--rounds", "20", "--target", "0.3", "--json", "--out", "o", cwd=tmp_path)
    summary = json.loads(result.stdout)
    assert summary["final_accuracy"]["mean"] > 0.3
    assert (tmp_path / "o" / "model.safetensors").exists()
    assert not (tmp_path / "o" / "checkpoint.npz").exists()
    assert summary["time_to_accuracy"]["target"] == 0.3


def test_json_is_json_and_nothing_else(tmp_path):
    result = fedlane(
        "run", "paper-fmnist", "--seeds", "3", "--rounds", "10", "--no-learning", "--json", "--out", "o", cwd=tmp_path
    )
    summary = json.loads(result.stdout)
    assert summary["seeds"] == [0, 1, 2]
    assert summary["cumulative_delay_s"]["low"] < summary["cumulative_delay_s"]["mean"]
    assert summary["folder"] == "o"
    assert result.stderr == ""


def test_quiet_is_silent(tmp_path):
    result = fedlane_process("run", "--rounds", "5", "--quiet", "--no-learning", "--out", "o", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_brackets_in_names_are_not_markup(tmp_path):
    options = ("--rounds", "2", "--no-learning", "--set", 'name="[/b]x"')
    result = fedlane("run", *options, "--out", "[red]o[", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "[/b]x · lane" in result.stdout
    assert "Saved to [red]o[" in result.stdout


def test_compare_saves_a_folder_per_policy(tmp_path):
    names = ("lane", "mamab-om:V=10,T0=5", "random")
    options = [part for name in names for part in ("--policy", name)]
    result = fedlane(
        "compare",
        "paper-fmnist",
        *options,
        "--seeds",
        "2",
        "--rounds",
        "20",
        "--no-learning",
        "--out",
        "o",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert [f.name for f in run_folders(tmp_path)] == ["lane", "mamab-om-V-10-T0-5", "random"]
    for name in names:
        assert name.split(":")[0] in result.stdout
    shown = fedlane("show", "o/lane", cwd=tmp_path)
    assert "lane" in shown.stdout
    assert json.loads(fedlane("show", "o/lane", "--json", cwd=tmp_path).stdout)["policy"] == "lane"


def test_set_overrides_the_scenario_and_inline_parameters_override_set(tmp_path):
    common = ("run", "paper-fmnist-literal", "--rounds", "3", "--no-learning", "--json", "--policy")
    first = fedlane(*common, "mamab-om", "--out", "a", cwd=tmp_path)
    assert json.loads(first.stdout)["parameters"]["exploration"] == 1.0
    second = fedlane(*common, "mamab-om", "--set", "policies.mamab-om.exploration=0.5", "--out", "b", cwd=tmp_path)
    assert json.loads(second.stdout)["parameters"]["exploration"] == 0.5
    third = fedlane(
        *common, "mamab-om:exploration=0.2", "--set", "policies.mamab-om.exploration=0.5", "--out", "c", cwd=tmp_path
    )
    assert json.loads(third.stdout)["parameters"]["exploration"] == 0.2


def test_a_scenario_file_and_show_round_trip(tmp_path):
    shown = fedlane("show", "paper-cifar10", "--set", "network.clients=12", cwd=tmp_path)
    (tmp_path / "mine.toml").write_text(shown.stdout)
    again = fedlane("show", "mine.toml", cwd=tmp_path)
    assert again.stdout == shown.stdout
    assert json.loads(fedlane("show", "mine.toml", "--json", cwd=tmp_path).stdout)["network"]["clients"] == 12


@pytest.mark.parametrize(
    ("kind", "word"), [("policies", "mamab-gmba"), ("scenarios", "paper-cifar10-literal"), ("datasets", "cifar10")]
)
def test_list(kind, word, tmp_path):
    assert word in fedlane("list", kind, cwd=tmp_path).stdout
    assert word in [
        next(iter(row.values())) for row in json.loads(fedlane("list", kind, "--json", cwd=tmp_path).stdout)
    ]


@pytest.mark.parametrize("command", [(), ("run",), ("compare",), ("show",), ("list",), ("bench",)])
def test_help_fits_80_columns(command, tmp_path):
    result = fedlane(*command, "--help", cwd=tmp_path)
    assert result.returncode == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


SIZES = ("--size", "6000", "--batch", "64", "--uploads", "250")
CALIBRATE = ("privacy", "calibrate", "--epsilon", "8", "--delta", "1e-5", *SIZES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "paper-fmnst"), "unknown scenario 'paper-fmnst' (did you mean 'paper-fmnist'?)"),
        (("run", "--policy", "lne"), "unknown policy 'lne' (did you mean 'lane'?)"),
        (("run", "--policy", "lane:T0=1"), "policy lane has no parameter 'T0'"),
        (("run", "--set", "network.bandwidth_up_hz=nan"), "network.bandwidth_up_hz must be a finite number, got nan"),
        (("run", "--set", "network.bandwidth_up_hz=-3"), "network.bandwidth_up_hz must be greater than 0, got -3"),
        (("run", "--set", "network.channels=0"), "network.channels must be at least 1, got 0"),
        (("run", "--set", "network.deadline_s=0"), "network.deadline_s must be greater than 0, got 0"),
        (("run", "--set", "network.chanels=3"), "unknown key 'network.chanels' (did you mean 'channels'?)"),
        (("run", "--rounds", "0"), "rounds must be at least 1, got 0"),
        (("run", "--rounds", "many"), "Invalid value for '--rounds': 'many' is not a valid int"),
        (("run", "--seeds", "0"), "--seeds must be at least 1, got 0"),
        (("run", "--seed", "-1"), "seed must be at least 0, got -1"),
        (("run", "--seed", "1", "--seeds", "2"), "--seed and --seeds cannot be combined"),
        (("run", "--nonsense"), "No such option"),
        (("compare", "quickstart"), "Missing option '--policy'"),
        (("compare", "quickstart", "--policy", "lane", "--policy", "lane"), "names the same policy twice"),
        (("compare", "quickstart", "--policy", "random", "--policy", "rndom"), "did you mean 'random'?"),
        (("show", "nothing"), "unknown scenario 'nothing'"),
        (("run", "--resume", "nowhere"), "nowhere cannot be resumed: checkpoint.npz is missing"),
        (("run", "quickstart", "--resume", "x"), "--resume cannot be combined with"),
        (("run", "--set", "learning.model=mpl"), "unknown model 'mpl' (did you mean 'mlp'?)"),
        (("run", "--set", "learning.model=nowhere:Net"), "learning.model 'nowhere:Net' cannot be created"),
        (
            ("run", "--set", "privacy.mechanism=rigorous", "--set", "privacy.epsilon=999"),
            "less than privacy.least_noise 0.5",
        ),
        (("run", "--device", "cuda"), "device cuda is not available here"),
        (("run", "--checkpoint-every", "0"), "--checkpoint-every must be at least 1, got 0"),
        (("run", "--resume", "x", "--policy", "random"), "--resume cannot be combined with"),
        (("run", "--seed", str(2**63)), "seed must be less than 2^63"),
        (("run", "--rounds", "9" * 30), "rounds must be at most 2.14748e+09"),
        (("run", "--set", "network.power_up_dbm=-5000"), "network.power_up_dbm must be at least -1000, got -5000"),
        (("run", "--set", "learning.model=nope", "--no-learning"), "unknown model 'nope'"),
        (("run", "--policy", ":"), "cannot be imported"),
        (("run", "--save-schedule", "nowhere/s.npz"), "nowhere/s.npz cannot be written"),
        (
            ("compare", "quickstart", "--policy", "lane", "--set", "privacy.delta=2"),
            "privacy.delta must be less than 1",
        ),
        (("reproduce", "fig-vv"), "unknown figure 'fig-vv' (did you mean 'fig-v'?)"),
        (("reproduce", "--task", "cifar"), "unknown task 'cifar' (did you mean 'cifar10'?)"),
        (("reproduce", "--seeds", "0"), "--seeds must be at least 1, got 0"),
        (("reproduce", "--quick", "--export", "x"), "--quick cannot be combined with --export or --import"),
        (("reproduce", "fig-delay", "--import", "."), "contains no curves-*.npz"),
        (("privacy", "calibrate", "--epsilon", "8"), "--delta is missing"),
        (("privacy", "calibrate", "quickstart", "--epsilon", "8"), "a scenario cannot be combined with --epsilon"),
        (("privacy", "calibrate", "--set", "rounds=3"), "--set needs a scenario to change"),
        (("privacy", "account", "nowhere"), "ledger nowhere does not exist"),
        (
            ("privacy", "account", "--mechanism", "paper", "--epsilon", "-1"),
            "--epsilon must be greater than 0 and at",
        ),
        (("privacy", "account", "x", "--noise", "1"), "a ledger cannot be combined with options"),
        (("privacy", "audit", "--trials", "7"), "trials must be at least 400, got 7"),
        (("privacy", "audit", "--device", "cuda"), "device cuda is not available here"),
        (("privacy", "audit", "--batch", "99"), "batch must be from 1 to 16 (the number of records), got 99"),
        (("privacy", "audit", "--out", "nowhere/a.png"), "nowhere/a.png cannot be written"),
        (("privacy", "audit", "--out", "a.txt"), "picture a.txt must end in .png, .pdf or .svg"),
        (("privacy", "audit", "--seed", "-1"), "--seed must be at least 0, got -1"),
        (("privacy", "audit", "--epsilon", "inf"), "epsilon must be greater than 0"),
        (("privacy", "audit", "nowhere"), "run folder nowhere does not exist"),
        (("privacy", "audit", "."), ". is not a run folder: scenario.toml is missing"),
        (("privacy", "audit", ".", "--batch", "5"), "a run cannot be combined with --batch"),
        ((*CALIBRATE, "--histogram-noise", "nan"), "histogram_noise must be a number of at least 0, got nan"),
        ((*CALIBRATE, "--histogram-noise", "-5"), "histogram_noise must be a number of at least 0, got -5"),
        ((*CALIBRATE, "--iterations", "0"), "--iterations must be at least 1, got 0"),
        ((*CALIBRATE, "--iterations", "1000000"), "steps must be at most 200,000"),
        (("privacy", "calibrate", "--epsilon", "8", "--delta", "1e-20", *SIZES), "delta must be from 1e-12 to 0.5"),
        (("run", "--set", "privacy.histogram_noise=1e300"), "privacy.histogram_noise must be at most 1e+06"),
        (("run", "--set", "privacy.epsilon=1e300"), "privacy.epsilon must be at most 1e+12"),
        (("list", "cats"), "Invalid value for"),
        (("show", "."), "is not a run folder: scenario.toml is missing"),
        (("frobnicate",), "No such command 'frobnicate'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments, message, tmp_path):
    check_refusal(fedlane(*arguments, cwd=tmp_path), message, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "paper-fmnst"), "unknown scenario 'paper-fmnst' (did you mean 'paper-fmnist'?)"),
        (("run", "--rounds", "many"), "Invalid value for '--rounds': 'many' is not a valid int"),
        (("privacy", "account", "nowhere"), "ledger nowhere does not exist"),
    ],
)
def test_bad_input_in_a_process(arguments, message, tmp_path):
    """What is printed and returned by the installed command is what the other tests see in this process."""
    check_refusal(fedlane_process(*arguments, cwd=tmp_path), message, tmp_path)


def check_refusal(result, message, folder):
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("fedlane: ")
    assert message in line
    assert list(folder.iterdir()) == []


def test_a_non_empty_output_folder_is_refused(tmp_path):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "precious").write_text("x")
    result = fedlane("run", "--rounds", "2", "--quiet", "--out", "o", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "fedlane: output folder o is not empty\n"
    assert [p.name for p in (tmp_path / "o").iterdir()] == ["precious"]


def test_an_output_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    result = fedlane("run", "--rounds", "2", "--quiet", "--out", "file/o", cwd=tmp_path)
    assert result.returncode == 2
    assert "output folder file/o cannot be written: Not a directory" in result.stderr


@pytest.mark.slow
def test_a_full_disk_is_reported_in_one_line_and_leaves_no_files(tmp_path):
    """A limit on file size makes the write fail as on a full disk."""
    import resource

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    options = ("--rounds", "100", "--no-learning", "--quiet", "--out", "o")
    result = fedlane_process("run", *options, cwd=tmp_path, preexec_fn=limit, env={"NUMBA_CACHE_DIR": ""})
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert "output folder o cannot be written: " in line
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_ctrl_c_saves_the_rounds_played_so_far(tmp_path):
    process = subprocess.Popen(
        [COMMAND, "run", "--rounds", "200000", "--no-learning", "--out", "o"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for((tmp_path / "o" / "status.json").exists)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "rounds are saved; continue with fedlane run --resume o" in " ".join(errors.split())
    assert "Traceback" not in errors
    status = json.loads((tmp_path / "o" / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert fedlane("show", "o", cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_the_example_policy_runs_from_the_command_line(tmp_path):
    source = Path(__file__).parents[2] / "examples" / "patient_policy.py"
    (tmp_path / "patient_policy.py").write_text(source.read_text())
    result = fedlane_process(
        "run",
        "paper-fmnist",
        "--policy",
        "patient_policy:Patient:optimism_s=1",
        "--rounds",
        "20",
        "--no-learning",
        "--json",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["parameters"] == {"optimism_s": 1.0}


@pytest.mark.slow
def test_the_example_policy_as_a_program():
    source = Path(__file__).parents[2] / "examples" / "patient_policy.py"
    result = subprocess.run([sys.executable, str(source)], capture_output=True, text=True, check=True)
    times = {line.split()[0]: float(line.split()[1]) for line in result.stdout.splitlines()}
    assert times["lane"] < times["patient"] < times["random"]


@pytest.mark.slow
def test_compare_with_learning_draws_accuracy(tmp_path):
    options = ("--policy", "lane", "--policy", "random", "--rounds", "40", "--seeds", "2", "--target", "0.4")
    result = fedlane("compare", "quickstart", *options, "--out", "o", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert "accuracy" in result.stdout
    assert (tmp_path / "o" / "accuracy.png").stat().st_size > 10_000


@pytest.mark.slow
def test_an_interrupted_run_is_resumed_to_the_same_results(tmp_path):
    whole = fedlane("run", "--rounds", "60", "--json", "--out", "whole", cwd=tmp_path)
    options = ("--rounds", "60", "--quiet", "--checkpoint-every", "5", "--out", "cut")
    assert fedlane_killed(33, "run", *options, cwd=tmp_path).returncode == -signal.SIGKILL
    assert json.loads((tmp_path / "cut" / "status.json").read_text())["state"] == "running"
    resumed = fedlane("run", "--resume", "cut", "--json", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    first, second = json.loads(whole.stdout), json.loads(resumed.stdout)
    for key in ("elapsed_s", "folder"):
        del first[key], second[key]
    assert first == second
    assert fedlane("run", "--resume", "cut", cwd=tmp_path).stderr == (
        "fedlane: cut cannot be resumed: checkpoint.npz is missing (the run is finished)\n"
    )


@pytest.mark.slow
def test_a_saved_schedule_can_be_learned_from_in_another_process(tmp_path):
    common = ("run", "--rounds", "20", "--seeds", "2")
    fedlane(*common, "--no-learning", "--quiet", "--save-schedule", "s.npz", "--out", "a", cwd=tmp_path)
    here = json.loads(fedlane(*common, "--json", "--out", "b", cwd=tmp_path).stdout)
    result = subprocess.run(
        [sys.executable, "-m", "fedlane.learning.replay", "s.npz", "--out", "c.npz"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    import numpy as np

    with np.load(tmp_path / "c.npz") as curves:
        assert curves["accuracy"][:, -1].mean() == here["final_accuracy"]["mean"]


def test_show_draws_the_partition(tmp_path):
    assert fedlane("show", "quickstart", "--picture", "p.png", cwd=tmp_path).returncode == 0
    assert (tmp_path / "p.png").stat().st_size > 5_000
    result = fedlane("show", "quickstart", "--picture", "p.nonsense", cwd=tmp_path)
    assert result.returncode == 2
    assert "picture p.nonsense cannot be written" in result.stderr


def test_names_with_slashes_stay_inside_the_runs_folder(tmp_path):
    options = ("--rounds", "2", "--no-learning", "--quiet")
    assert fedlane("run", "quickstart", *options, "--set", 'name="../../x y"', cwd=tmp_path).returncode == 0
    (folder,) = run_folders(tmp_path)
    assert folder.parent == tmp_path / "runs"


def test_names_may_contain_non_ascii_characters(tmp_path):
    (tmp_path / "\U0001f600 \u00e9.toml").write_text("rounds = 2")
    result = fedlane("run", "\U0001f600 \u00e9.toml", "--no-learning", "--quiet", "--out", "o:\u00e9", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert fedlane("show", "o:\u00e9", cwd=tmp_path).returncode == 0


def done(folder, *arguments, code=0):
    """Run a command and check its exit code."""
    return fedlane(*arguments, cwd=folder, code=code)


def test_privacy_calibrate_and_account_print_the_known_figures(tmp_path):
    options = ("--delta", "1e-5", "--size", "6000", "--batch", "64", "--uploads", "250", "--json")
    found = json.loads(done(tmp_path, "privacy", "calibrate", "--epsilon", "8", *options).stdout)
    assert found["noise_multiplier"] == pytest.approx(0.614, abs=1e-3)
    (row,) = json.loads(done(tmp_path, "privacy", "account", "--noise", "0.6143", *options).stdout)
    assert row["epsilon"] == pytest.approx(8.0, abs=1e-3)
    options = ("--epsilon", "0.8", "--delta", "1e-3", "--size", "6000", "--batch", "10", "--uploads", "250")
    rows = json.loads(done(tmp_path, "privacy", "account", "--mechanism", "paper", *options, "--json").stdout)
    formula, composed, one, many = (row["epsilon"] for row in rows)
    assert formula == pytest.approx(12.06, abs=0.01)
    assert composed == pytest.approx(27.9, abs=0.05)
    assert 227 <= one <= many
    table = done(tmp_path, "privacy", "account", "--mechanism", "paper", *options).stdout
    assert "12.059" in table
    assert "27.919" in table
    assert "guarantee" not in table


def test_privacy_account_of_a_run_and_of_a_client(tmp_path):
    from fedlane.privacy import Terms
    from fedlane.privacy.ledger import ClientLedger

    small = ("--set", "learning.batch_size=16", "--set", "privacy.epsilon=6", "--set", "privacy.delta=1e-5")
    done(tmp_path, "run", "--no-learning", "--rounds", "6", "--set", "privacy.mechanism=rigorous", *small, "--out", "o")
    rows = json.loads(done(tmp_path, "privacy", "account", "o", "--json").stdout)
    assert len(rows) == 10
    assert sum(row["uploads"] for row in rows) == 24
    assert all(0 < row["epsilon"] < 6 for row in rows)
    assert done(tmp_path, "privacy", "account", "o/ledger.jsonl", "--json").stdout == json.dumps(rows) + "\n"
    assert "dataset fashion-mnist-mini" in done(tmp_path, "privacy", "account", "o").stdout.replace("\n", " ")
    with ClientLedger.create(tmp_path / "book", "client 7") as book:
        book.open_account("letters", Terms("rigorous", 0.02, 5, 0.9, 0.0, 8.0, 1e-5, 300, 0.0))
        book.reserve("letters", 0, server_count=0)
    (row,) = json.loads(done(tmp_path, "privacy", "account", "book", "--json").stdout)
    assert (row["client"], row["dataset"], row["uploads"], row["of"]) == ("client 7", "letters", 1, 300)
    (tmp_path / "book").write_bytes(b"x" + (tmp_path / "book").read_bytes()[1:])
    broken = done(tmp_path, "privacy", "account", "book", code=2)
    assert "is damaged at line 0" in broken.stderr


def test_privacy_calibrate_a_scenario(tmp_path):
    rows = json.loads(
        done(
            *(tmp_path, "privacy", "calibrate", "quickstart", "--json"),
            *("--set", "privacy.epsilon=[6,6,6,6,6,9,9,9,9,9]", "--set", "privacy.delta=1e-5"),
            *("--set", "learning.batch_size=16"),
        ).stdout
    )
    assert [row["client"] for row in rows] == list(range(10))
    assert rows[0]["noise_multiplier"] > rows[9]["noise_multiplier"]


def test_privacy_audit_of_a_run_states_its_power(tmp_path):
    """Poisson samples: a weak attack; all records in every step: a strong one; without a mechanism: refused."""
    run = ("run", "--rounds", "4", "--no-learning", "--quiet", "--out")
    done(tmp_path, *run, "sampled")
    weak = " ".join(done(tmp_path, "privacy", "audit", "sampled", "--trials", "400").stdout.split())
    assert "The claim is not refuted. This says little: the attack would not have refuted half the noise" in weak
    assert "power: largest epsilon that these trials can show │ 2.867" in weak
    assert "none found. One record contributed at most 1.0000000 C on real clients (limit 1 C)" in weak
    done(tmp_path, *run, "whole", "--set", "learning.batch_size=800", "--set", "privacy.max_uploads=10")
    strong = done(tmp_path, "privacy", "audit", "whole", "--trials", "3000", "--out", "audit.png").stdout
    assert "The claim is not refuted. The attack would have refuted half the noise." in strong
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads(done(tmp_path, "privacy", "audit", "sampled", "--trials", "400", "--json").stdout)
    (kind,) = report["kinds"]
    assert (kind["refuted"], kind["refutes_half_noise"], kind["clients"]) == (False, False, 10)
    assert kind["epsilon_low"] <= kind["claim"] < kind["epsilon_accounted"] < kind["epsilon_agreed"] == 8.0
    assert report["clipping"]["real"] <= 1.0
    done(tmp_path, *run, "plain", "--set", "privacy.mechanism=none")
    refused = fedlane("privacy", "audit", "plain", cwd=tmp_path)
    message = "fedlane: run plain has the mechanism 'none', which makes no privacy claim\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", message)


def test_privacy_audit_of_a_run_does_not_load_its_model(tmp_path):
    """A model that is named by an import path is code, and a run folder may be somebody else's."""
    done(tmp_path, "run", "--rounds", "4", "--no-learning", "--quiet", "--out", "r")
    scenario = tmp_path / "r" / "scenario.toml"
    scenario.write_text(scenario.read_text().replace('model = "mlp"', 'model = "no_such_module:make"'))
    result = done(tmp_path, "privacy", "audit", "r", "--trials", "400")
    assert "The run's own model was not loaded" in result.stderr


@pytest.mark.slow
def test_privacy_audit_reports_and_draws(tmp_path):
    result = done(tmp_path, "privacy", "audit", "--trials", "2000", "--out", "audit.png")
    assert "The claim is not refuted." in result.stdout
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads(done(tmp_path, "privacy", "audit", "--mechanism", "paper", "--json").stdout)
    assert found["flagged"]
    assert found["epsilon_low"] > found["claim"] == 0.8
    assert "REFUTED" in done(tmp_path, "privacy", "audit", "--mechanism", "paper").stdout


@pytest.mark.slow
def test_reproduce_draws_figures_from_cells_that_are_kept(tmp_path):
    """Figures that need no learning; a second call computes nothing and draws the same numbers."""
    command = ("reproduce", "fig-queues", "fig-complexity", "--delay-seeds", "2", "--seeds", "1", "--out", "r")
    assert "Drew r/figures/fig-queues.png" in done(tmp_path, *command).stdout
    for suffix in ("png", "pdf", "parquet"):
        assert (tmp_path / "r" / "figures" / f"fig-queues.{suffix}").stat().st_size > 1000
    numbers = pq.read_table(tmp_path / "r" / "figures" / "fig-queues.parquet")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "r" / "schedule-500").rglob("*.npz")}
    assert len(kept) == 6
    done(tmp_path, *command)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert pq.read_table(tmp_path / "r" / "figures" / "fig-queues.parquet").equals(numbers)
    assert numbers.column_names == ["panel", "line", "x", "mean", "low", "high", "seeds"]
    assert set(numbers["line"].to_pylist()) == {"OM V=10, slack 0.125", "OM V=10, slack 0.125, success", "lane"}


@pytest.mark.slow
def test_reproduce_exports_what_is_to_be_learned(tmp_path):
    command = (
        "reproduce",
        "fig-private",
        "--task",
        "fashion-mnist",
        "--delay-seeds",
        "1",
        "--seeds",
        "1",
        "--out",
        "r",
    )
    assert "Wrote 2 pieces to pieces" in done(tmp_path, *command, "--export", "pieces").stdout
    assert sorted(path.name for path in (tmp_path / "pieces").glob("*.npz")) == ["piece-00.npz", "piece-01.npz"]
