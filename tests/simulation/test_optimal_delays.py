"""The optimum as a yardstick: which networks have one, and how runs compare with it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedlane import simulate
from fedlane.simulation import optimal_delays as module
from fedlane.simulation.optimal_delays import optimal_delays
from fedlane.simulation.setup import prepare
from fedlane.theory import optimum
from support.small_runs import PAPER
from support.terminal import fedlane


def test_it_serves_seven_eighths_of_the_quotas():
    setup = prepare(PAPER, [3, 5])
    round_s = optimal_delays(setup)
    truth = setup.network.distributions(128)
    for r in range(2):
        exact = optimum(truth.cdf[r], truth.success[r], 0.875 * setup.problem.quotas[r], setup.problem.deadline_s)
        assert round_s[r] == pytest.approx(exact.mean_delay_s, rel=1e-9)


def test_solutions_are_cached_by_their_inputs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = optimal_delays(prepare(PAPER, [3]))
    monkeypatch.setattr(module, "optimum", lambda *arguments: pytest.fail("computed again"))
    assert optimal_delays(prepare(PAPER, [3])) == first
    with pytest.raises(pytest.fail.Exception, match="computed again"):
        optimal_delays(prepare(PAPER.with_values({"network.deadline_s": 4.9}), [3]))


def test_quotas_that_cannot_be_served_have_no_optimum():
    late = PAPER.with_values({"network.deadline_s": 1.0})
    assert np.isnan(optimal_delays(prepare(late, [0]))).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"network.clients": 40},
        {"network.rates_mbps": [[1.0] * 4] * 10, "compute.seconds": 0.1},
    ],
)
def test_other_networks_have_no_yardstick(changes):
    assert optimal_delays(prepare(PAPER.with_values(changes), [0])) is None


def test_budgets_that_end_before_the_run_have_no_yardstick():
    """Once a client's budget is spent, the program's matchings are no longer those that a policy can choose from."""
    setup = prepare(PAPER, [0])
    short = replace(setup.mechanism, max_uploads=np.full_like(setup.mechanism.max_uploads, 100))
    assert optimal_delays(replace(setup, mechanism=short)) is None


@pytest.mark.slow
def test_genie_ends_near_the_optimum_and_random_far_from_it():
    """A run of 500 rounds may end a little below the optimum."""
    seeds = [0, 1, 2, 3, 4]
    optimal = optimal_delays(prepare(PAPER, seeds))
    for policy, low, high in (("genie", 0.95, 1.06), ("random", 1.5, 5.0)):
        delay_s = simulate(PAPER, policy, seeds=seeds, learning=False).rounds["delay_s"].to_numpy().reshape(5, 500)
        ratio = delay_s.mean(axis=1) / optimal
        assert low < ratio.mean() < high


@pytest.mark.slow
def test_compare_shows_delays_relative_to_the_optimum(tmp_path):
    options = ("--policy", "random", "--policy", "genie", "--rounds", "30", "--seeds", "2", "--no-learning")
    shown = fedlane("compare", "paper-fmnist", *options, "--out", "o", cwd=tmp_path, code=0).stdout
    saved = json.loads((tmp_path / "o" / "comparison.json").read_text())
    assert saved["optimum"]["quota_slack"] == 0.125
    optimal = np.array([saved["optimum"]["round_s"][seed] for seed in ("0", "1")])
    np.testing.assert_allclose(optimal, optimal_delays(prepare(PAPER, [0, 1])), rtol=1e-9)
    for run in saved["runs"]:
        ratio = run["delay_over_optimum"]
        assert ratio["mean"] == pytest.approx((np.array(run["seed_values"]["mean_round_s"]) / optimal).mean())
        assert ratio["seeds"] == 2
        assert f"{ratio['mean']:.2f}" in next(
            line for line in shown.splitlines() if line.startswith(f" {run['policy']} ")
        )
    assert "times" in shown
    assert "serves 0.875 of the quotas; a run may end a little below" in " ".join(shown.split())
    assert "delay_over_optimum" in (tmp_path / "o" / "comparison.csv").read_text()


@pytest.mark.slow
def test_a_comparison_of_another_network_has_no_such_column(tmp_path):
    options = ("--policy", "random", "--rounds", "5", "--no-learning", "--set", "network.clients=40")
    shown = fedlane("compare", "paper-fmnist", *options, "--out", "o", cwd=tmp_path, code=0).stdout
    saved = json.loads((tmp_path / "o" / "comparison.json").read_text())
    assert saved["optimum"] is None
    assert saved["runs"][0]["delay_over_optimum"] is None
    assert "optimum" not in shown
