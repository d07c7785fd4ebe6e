"""The ablation of OM and lane: its numbers and labels."""

import numpy as np
import pytest

from fedlane.experiments.ablation import ABLATION, ablation_numbers, compute_ablation
from fedlane.experiments.labels import policy_label
from fedlane.experiments.long_runs import LONG_POLICIES
from fedlane.experiments.store import Experiment, ResultStore
from fedlane.intervals import interval
from fedlane.simulation.optimal_delays import optimal_delays
from fedlane.simulation.setup import prepare


@pytest.mark.slow
def test_the_numbers_are_means_and_paired_differences(tmp_path):
    store, seeds = ResultStore(tmp_path, rounds=20), range(27, 30)
    compute_ablation(store, seeds, lambda policy: None)
    rows = {(row["policy"], row["measure"]): row for row in ablation_numbers(store, seeds).to_pylist()}
    assert len(rows) == 4 * len(ABLATION)
    results = {
        policy: [store.result(Experiment("fashion-mnist", policy), seed) for seed in seeds]
        for policy in ("lane", "mamab-om:V=100")
    }
    setup = prepare(Experiment("fashion-mnist", "lane").scenario(20), seeds)
    optimal, due = optimal_delays(setup), 0.875 * setup.problem.quotas
    assert np.isnan(optimal).tolist() == [False, False, True]
    total_s, lane_s = (
        np.array([run.delay_s.sum() for run in results[policy]]) for policy in ("mamab-om:V=100", "lane")
    )
    row = rows["mamab-om:V=100", "delay_s"]
    assert (row["mean"], row["low"]) == pytest.approx([interval(total_s)[key] for key in ("mean", "low")], rel=1e-12)
    assert row["difference_high"] == pytest.approx(interval(total_s - lane_s)["high"], rel=1e-9)  # of a difference
    row = rows["mamab-om:V=100", "delay_over_optimum"]
    assert row["seeds"] == 2
    assert row["mean"] == pytest.approx((total_s / 20 / optimal)[:2].mean())
    lacking = [np.maximum(due[r] - run.share(), 0).mean() for r, run in enumerate(results["lane"])]
    assert rows["lane", "shortfall"]["mean"] == pytest.approx(np.mean(lacking))
    least = np.mean([run.share().min() for run in results["lane"]])
    assert rows["lane", "min_participation"]["mean"] == pytest.approx(least, rel=1e-12)


def test_labels_name_every_parameter():
    """Policies that differ in any parameter have different labels, which name the values that differ."""
    policies = (*ABLATION, *LONG_POLICIES, "mamab-om:V=10,quota_slack=0.25", "lane:quota_slack=0.25")
    assert len({policy_label(policy) for policy in policies}) == len(set(policies))
    assert policy_label("mamab-om:V=10,quota_slack=0.125,queue_weight=success") == "OM V=10, slack 0.125, success"
    assert policy_label("mamab-om:V=10,T0=1,exploration=0.03") == "OM V=10, T0=1, exploration=0.03"
    assert policy_label("lane:quota_slack=0") == "lane slack 0"
    assert policy_label("single-ucb:exploration=0.01") == "Single-UCB 0.01"
