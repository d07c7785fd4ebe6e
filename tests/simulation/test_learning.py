"""Learning in runs: the paper's ranking of policies on Fashion-MNIST in a shorter run, noise and evaluation."""

import numpy as np
import pytest

from fedlane import Run, Scenario, simulate
from fedlane.simulation.setup import prepare
from support.small_runs import UNPROTECTED


@pytest.fixture(scope="module")
def runs(fashion_mnist):
    """The paper's Fashion-MNIST task under three policies: three seeds, 200 rounds."""
    scenario = Scenario.load("paper-fmnist")
    return {p: simulate(scenario, p, rounds=200, seeds=range(3)) for p in ("lane", "mamab-om:V=100", "random")}


@pytest.mark.slow
@pytest.mark.xdist_group("full-fashion-mnist")
class TestFashionMnist:
    def test_lane_and_om_reach_an_accuracy_sooner_than_random(self, runs):
        seconds = {name: run.time_to_accuracy(0.60) for name, run in runs.items()}
        assert not any(np.isnan(values).any() for values in seconds.values())
        random = seconds["random"].mean()
        assert seconds["lane"].mean() <= 0.45 * random
        assert seconds["mamab-om:V=100"].mean() <= 0.9 * random  # half of its rounds are random exploration

    def test_accuracy_after_equal_rounds_is_no_worse_than_that_of_random(self, runs):
        last = {name: run.summary["final_accuracy"]["mean"] for name, run in runs.items()}
        assert last["lane"] >= last["random"]
        assert last["lane"] > 0.70

    def test_learning_does_not_change_quotas_and_schedule(self, runs):
        plain = simulate("paper-fmnist", "lane", rounds=200, seeds=range(3), learning=False)
        assert runs["lane"].clients.equals(plain.clients)
        assert runs["lane"].assignments.equals(plain.assignments)


def test_evaluation_every_k_rounds_and_after_the_last(tmp_path):
    scenario = UNPROTECTED.with_values({"learning.evaluate_every": 4})
    run = simulate(scenario, "random", rounds=10, seeds=[0, 1])
    accuracy = run.rounds["accuracy"].to_numpy().reshape(2, 10)
    assert np.flatnonzero(~np.isnan(accuracy[0])).tolist() == [3, 7, 9]
    assert run.rounds["accuracy"].null_count == 14
    np.testing.assert_allclose(run.summary["final_accuracy"]["mean"], accuracy[:, -1].mean())
    run.save(tmp_path / "r")
    again = Run.load(tmp_path / "r")
    assert sorted(again.model) == sorted(
        f"replica{r}.layer{k}.{p}" for r in (0, 1) for k in (0, 1) for p in ("weight", "bias")
    )
    np.testing.assert_array_equal(again.model["replica1.layer1.bias"], run.model["replica1.layer1.bias"])


@pytest.mark.slow
def test_quickstart_reaches_its_accuracy_and_learns_better_without_privacy():
    run = simulate("quickstart", "lane")
    assert max(run.clients["epsilon"].to_pylist()) <= 8.0
    private = run.summary["final_accuracy"]["mean"]
    plain = {"privacy.mechanism": "none", "learning.learning_rate": 0.1}
    free = simulate(Scenario.load("quickstart").with_values(plain), "lane")
    assert private > 0.71
    assert free.summary["final_accuracy"]["mean"] > private + 0.02


def test_time_to_accuracy_is_smoothed_over_three_evaluations():
    import pyarrow as pa

    accuracy = [np.nan, 0.1, 0.9, np.nan, 0.1, 0.5, 0.6, 0.7, 0.1]
    rounds = pa.table(
        {"replica": [0] * 9, "clock_s": np.arange(9.0), "accuracy": pa.array(np.array(accuracy), from_pandas=True)}
    )
    run = Run(Scenario(), {"rounds": rounds}, {})
    # The mean of 0.1, 0.9, 0.1 is too low; that of 0.9, 0.1, 0.5 suffices, at the time of the middle evaluation.
    assert run.time_to_accuracy(0.49).tolist() == [4.0]
    assert run.time_to_accuracy(0.59).tolist() == [6.0]
    assert np.isnan(run.time_to_accuracy(0.61)).all()


def test_sigma_of_the_paper_calculated_by_hand():
    """4 x 0.1 x 1 x sqrt(5 ln 1000) / (6000 x 25)."""
    spec = prepare(Scenario.load("paper-fmnist"), [0]).mechanism
    sigma = spec.upload_deviation(0.1)
    assert sigma[0, 0] == pytest.approx(1.5672e-5, rel=1e-4)
