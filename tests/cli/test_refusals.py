"""Bad input of every command: one line that names the mistake, exit code 2, and no file."""

import pytest

from support.terminal import fedlane, fedlane_process

SIZES = ("--size", "6000", "--batch", "64", "--uploads", "250")
CALIBRATE = ("privacy", "calibrate", "--epsilon", "8", "--delta", "1e-5", *SIZES)
COMPARE = ("compare", "quickstart")
REFUSALS = [
    # Words: each mistake gets one suggestion.
    (("rnu",), "No such command 'rnu'. Did you mean 'run'?"),
    (("frobnicate",), "No such command 'frobnicate'"),
    (("privacy", "calibrat"), "Did you mean 'calibrate'?"),
    (("list", "cats"), "Invalid value for"),
    (("run", "--nonsense"), "No such option"),
    (("run", "--polcy", "lane"), "Did you mean '--policy'?"),
    (("run", "paper-fmnst"), "unknown scenario 'paper-fmnst' (did you mean 'paper-fmnist'?)"),
    (("show", "quikstart"), "unknown scenario 'quikstart' (did you mean 'quickstart'?)"),
    (("run", "--policy", "lne"), "unknown policy 'lne' (did you mean 'lane'?)"),
    (("run", "--policy", "lane:T0=1"), "policy lane has no parameter 'T0'"),
    (("run", "--policy", "mamab-om:explration=1"), "(did you mean 'exploration'?)"),
    (("run", "--policy", ":"), "cannot be imported"),
    (("run", "--track", "mlfow"), "(did you mean 'mlflow'?)"),
    (("reproduce", "fig-vv"), "unknown figure 'fig-vv' (did you mean 'fig-v'?)"),
    (("reproduce", "--task", "cifar"), "unknown task 'cifar' (did you mean 'cifar10'?)"),
    # Scenario values.
    (("run", "--set", "netwrk.clients=3"), "(did you mean 'network'?)"),
    (("run", "--set", "network.chanels=3"), "unknown key 'network.chanels' (did you mean 'channels'?)"),
    (("run", "--set", "polices.lane.V=3"), "(did you mean 'policies'?)"),
    (("run", "--set", "policies.lnae.V=3"), "(did you mean 'lane'?)"),
    (("run", "--set", "data.dataset=fashon-mnist"), "(did you mean 'fashion-mnist'?)"),
    (("run", "--set", "data.partition=dirichlt"), "(did you mean 'dirichlet'?)"),
    (("run", "--set", "privacy.mechanism=rigourous"), "(did you mean 'rigorous'?)"),
    (("run", "--set", "privacy.epsilon=nonunifrm"), "(did you mean 'nonuniform'?)"),
    (("run", "--set", "learning.model=mpl"), "unknown model 'mpl' (did you mean 'mlp'?)"),
    (("run", "--set", "learning.model=nope", "--no-learning"), "unknown model 'nope'"),
    (("run", "--set", "learning.model=nowhere:Net"), "learning.model 'nowhere:Net' cannot be created"),
    (("run", "--set", "network.bandwidth_up_hz=nan"), "network.bandwidth_up_hz must be a finite number, got nan"),
    (("run", "--set", "network.bandwidth_up_hz=-3"), "network.bandwidth_up_hz must be greater than 0, got -3"),
    (("run", "--set", "network.channels=0"), "network.channels must be at least 1, got 0"),
    (("run", "--set", "network.power_up_dbm=-5000"), "network.power_up_dbm must be at least -1000, got -5000"),
    (("run", "--set", "privacy.histogram_noise=1e300"), "privacy.histogram_noise must be at most 1e+06"),
    (("run", "--set", "privacy.epsilon=1e300"), "privacy.epsilon must be at most 1e+12"),
    ((*COMPARE, "--policy", "lane", "--set", "privacy.delta=2"), "privacy.delta must be less than 1"),
    # Options.
    (("run", "--rounds", "0"), "rounds must be at least 1, got 0"),
    (("run", "--rounds", "many"), "Invalid value for '--rounds': 'many' is not a valid int"),
    (("run", "--rounds", "9" * 30), "rounds must be at most 2.14748e+09"),
    (("run", "--seeds", "0"), "--seeds must be at least 1, got 0"),
    (("run", "--seed", "-1"), "seed must be at least 0, got -1"),
    (("run", "--seed", str(2**63)), "seed must be less than 2^63"),
    (("run", "--seed", "1", "--seeds", "2"), "--seed and --seeds cannot be combined"),
    (("run", "--device", "cuda"), "device cuda is not available here"),
    (("run", "--checkpoint-every", "0"), "--checkpoint-every must be at least 1, got 0"),
    (("run", "--save-schedule", "nowhere/s.npz"), "nowhere/s.npz cannot be written"),
    (("run", "--resume", "nowhere"), "nowhere cannot be resumed: checkpoint.npz is missing"),
    (("run", "quickstart", "--resume", "x"), "--resume cannot be combined with"),
    (("run", "--resume", "x", "--policy", "random"), "--resume cannot be combined with"),
    (COMPARE, "Missing option '--policy'"),
    ((*COMPARE, "--policy", "lane", "--policy", "lane"), "names the same policy twice"),
    ((*COMPARE, "--policy", "random", "--policy", "rndom"), "did you mean 'random'?"),
    (("show", "."), "is not a run folder: scenario.toml is missing"),
    (("reproduce", "--seeds", "0"), "--seeds must be at least 1, got 0"),
    (("reproduce", "--quick", "--export", "x"), "--quick cannot be combined with --export or --import"),
    (("reproduce", "fig-delay", "--import", "."), "contains no curves-*.npz"),
    # Privacy.
    (("privacy", "calibrate", "--epsilon", "8"), "--delta is missing"),
    (("privacy", "calibrate", "quickstart", "--epsilon", "8"), "a scenario cannot be combined with --epsilon"),
    (("privacy", "calibrate", "--set", "rounds=3"), "--set needs a scenario to change"),
    (("privacy", "calibrate", "--epsilon", "8", "--delta", "1e-20", *SIZES), "delta must be from 1e-12 to 0.5"),
    ((*CALIBRATE, "--histogram-noise", "nan"), "histogram_noise must be a number of at least 0, got nan"),
    ((*CALIBRATE, "--histogram-noise", "-5"), "histogram_noise must be a number of at least 0, got -5"),
    ((*CALIBRATE, "--iterations", "0"), "--iterations must be at least 1, got 0"),
    ((*CALIBRATE, "--iterations", "1000000"), "steps must be at most 200,000"),
    (("privacy", "account", "nowhere"), "ledger nowhere does not exist"),
    (("privacy", "account", "x", "--noise", "1"), "a ledger cannot be combined with options"),
    (("privacy", "account", "--mechanism", "paper", "--epsilon", "-1"), "--epsilon must be greater than 0 and at"),
    (("privacy", "audit", "--trials", "7"), "trials must be at least 400, got 7"),
    (("privacy", "audit", "--device", "cuda"), "device cuda is not available here"),
    (("privacy", "audit", "--batch", "99"), "batch must be from 1 to 16 (the number of records), got 99"),
    pytest.param(
        ("privacy", "audit", "--out", "nowhere/a.png"), "nowhere/a.png cannot be written", marks=pytest.mark.slow
    ),
    pytest.param(
        ("privacy", "audit", "--out", "a.txt"), "picture a.txt must end in .png, .pdf or .svg", marks=pytest.mark.slow
    ),
    (("privacy", "audit", "--seed", "-1"), "--seed must be at least 0, got -1"),
    (("privacy", "audit", "--epsilon", "inf"), "epsilon must be greater than 0"),
    (("privacy", "audit", "nowhere"), "run folder nowhere does not exist"),
    (("privacy", "audit", "."), ". is not a run folder: scenario.toml is missing"),
    (("privacy", "audit", ".", "--batch", "5"), "a run cannot be combined with --batch"),
]


def check_refusal(result, message, folder):
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("fedlane: ")
    assert message in line
    assert line.lower().count("did you mean") <= 1
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"), REFUSALS, ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else ""
)
def test_bad_input_is_one_line_and_exit_2(arguments, message, tmp_path):
    check_refusal(fedlane(*arguments, cwd=tmp_path), message, tmp_path)


@pytest.mark.slow
def test_bad_input_in_a_process(tmp_path):
    """What the installed command prints and returns is what the other tests see in this process."""
    arguments, message = ("run", "--policy", "lne"), "unknown policy 'lne' (did you mean 'lane'?)"
    check_refusal(fedlane_process(*arguments, cwd=tmp_path), message, tmp_path)


def test_a_non_empty_output_folder_is_refused(tmp_path):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "precious").write_text("x")
    result = fedlane("run", "--rounds", "2", "--quiet", "--out", "o", cwd=tmp_path, code=2)
    assert result.stderr == "fedlane: output folder o is not empty\n"
    assert [p.name for p in (tmp_path / "o").iterdir()] == ["precious"]


def test_an_output_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    result = fedlane("run", "--rounds", "2", "--quiet", "--out", "file/o", cwd=tmp_path, code=2)
    assert "output folder file/o cannot be written: Not a directory" in result.stderr
