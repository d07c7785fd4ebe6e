"""`fedlane privacy`: known figures, a run's and a client's account, and audits that state their power."""

import json
import re

import pytest

from fedlane.privacy import Terms
from fedlane.privacy.ledger import ClientLedger
from support.terminal import fedlane

pytestmark = pytest.mark.slow


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
    (largest,) = re.findall(r"none found\. One record contributed at most (\S+) C on real clients \(limit 1 C\)", weak)
    assert 0.999 < float(largest) <= 1.0
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


def test_privacy_audit_reports_and_draws(tmp_path):
    result = done(tmp_path, "privacy", "audit", "--trials", "2000", "--out", "audit.png")
    assert "The claim is not refuted." in result.stdout
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_privacy_audit_refutes_the_paper_s_claim(tmp_path):
    found = json.loads(done(tmp_path, "privacy", "audit", "--mechanism", "paper", "--trials", "4000", "--json").stdout)
    assert found["flagged"]
    assert found["epsilon_low"] > found["claim"] == 0.8
    assert "REFUTED" in done(tmp_path, "privacy", "audit", "--mechanism", "paper", "--trials", "4000").stdout
