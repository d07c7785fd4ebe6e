"""A delta that is not below 1/|D| is remarked on, with a value to choose instead."""

import pytest

from fedlane import Scenario, simulate
from fedlane.privacy import delta_remark
from fedlane.validate import ScenarioWarning
from support.terminal import fedlane

SMALL = ("--no-learning", "--rounds", "3", "--set", "privacy.max_uploads=3", "--set", "learning.batch_size=6000")
"""All 6,000 records of a client are in every sample, so that the noise has a closed form."""
LINE = "should be below 1/|D|, which is 0.00017 for a client with 6,000 records, got 0.001; choose for example 1e-05"


@pytest.mark.parametrize(
    ("delta", "sizes", "suggested"),
    [
        (1e-3, [6000, 500], "1e-05"),
        ([1e-5, 1e-3], [6000, 1000], "0.0001"),
        (1.0 / 600, [[600, 600], [600, 600]], "0.0001"),
        (1e-5, [6000], None),
        ([1e-3, 1e-5], [999, 6000], None),
    ],
)
def test_the_remark_names_the_client_that_is_protected_least(delta, sizes, suggested):
    line = delta_remark(delta, sizes)
    assert line is None if suggested is None else line.endswith(f"choose for example {suggested}")


@pytest.mark.slow
def test_a_run_with_epsilon_alone_says_that_its_delta_is_too_large_once(tmp_path):
    (tmp_path / "mine.toml").write_text('[privacy]\nepsilon = 2.0\n[data]\ndataset = "fashion-mnist"\n')
    result = fedlane("compare", "mine.toml", "--policy", "lane", "--policy", "random", *SMALL, cwd=tmp_path, code=0)
    assert [line for line in result.stderr.splitlines() if "1/|D|" in line] == [f"Warning: privacy.delta {LINE}."]
    quiet = fedlane("run", "mine.toml", *SMALL, "--quiet", cwd=tmp_path, code=0)
    assert "1/|D|" not in quiet.stderr
    small = fedlane("run", "mine.toml", *SMALL, "--set", "privacy.delta=1e-5", cwd=tmp_path, code=0)
    assert "1/|D|" not in small.stderr


def test_simulate_warns():
    scenario = Scenario.load("quickstart").with_values(
        {"privacy.delta": 0.01, "privacy.epsilon": 2.0, "rounds": 3, "learning.batch_size": 800}
    )
    with pytest.warns(ScenarioWarning, match=r"privacy\.delta should be below 1/\|D\|"):
        simulate(scenario, "random", learning=False)


def test_the_privacy_commands_warn_where_the_size_is_known(tmp_path):
    uploads = ("--size", "6000", "--batch", "6000", "--uploads", "2")
    given = fedlane("privacy", "calibrate", "--epsilon", "8", "--delta", "1e-3", *uploads, cwd=tmp_path, code=0)
    assert given.stderr == f"Warning: --delta {LINE}.\n"
    spent = fedlane("privacy", "account", "--noise", "1", "--delta", "1e-3", *uploads, cwd=tmp_path, code=0)
    assert spent.stderr == f"Warning: --delta {LINE}.\n"
    fine = fedlane("privacy", "account", "--noise", "1", "--delta", "1e-5", *uploads, cwd=tmp_path, code=0)
    assert fine.stderr == ""
    settings = ("--set", "privacy.delta=0.01", "--set", "privacy.epsilon=2.0", "--set", "learning.batch_size=800")
    of_scenario = fedlane("privacy", "calibrate", "quickstart", *settings, cwd=tmp_path, code=0)
    assert "Warning: privacy.delta should be below 1/|D|" in of_scenario.stderr
