"""`data.samples_per_client` in whole runs, and the experiment on clients with various data."""

import numpy as np
import pytest
from typer.testing import CliRunner

from fedlane import Scenario, simulate
from fedlane.cli import app
from fedlane.experiments.experiment_settings import SETTINGS
from fedlane.experiments.panels import Drawer
from fedlane.experiments.reproduce import ReproductionPlan, compute_schedules, select_figures
from fedlane.experiments.store import Experiment, ResultStore, batches
from fedlane.simulation.setup import prepare
from fedlane.validate import InputError


def test_the_presets_of_the_paper_divide_the_whole_set():
    for name in ("paper-fmnist", "paper-fmnist-literal", "paper-cifar10", "paper-cifar10-literal"):
        assert Scenario.load(name).data.samples_per_client == "all"
    assert Scenario().data.samples_per_client == "all"


def test_sizes_reach_the_problem_and_training():
    scenario = Scenario.load("quickstart").with_values(
        {"data.samples_per_client": 60, "data.imbalance": 0.5, "privacy.mechanism": "none", "rounds": 4}
    )
    setup = prepare(scenario, [0, 1])
    assert setup.problem.sizes.sum(axis=1).tolist() == [600, 600]
    assert setup.problem.sizes.min() < 50 < 70 < setup.problem.sizes.max()
    run = simulate(scenario, "random", seeds=[0, 1])
    assert np.isfinite(run.rounds["accuracy"].to_numpy()[[3, 7]]).all()
    assert Scenario.from_values(run.scenario.model_dump()).data.samples_per_client == 60


def test_too_many_samples_are_one_line_and_exit_2(tmp_path):
    """The entry point prints an `InputError` as one line and exits with status 2."""
    options = ["--no-learning", "--out", str(tmp_path / "r")]
    error = CliRunner().invoke(app, ["run", "quickstart", "--set", "data.samples_per_client=801", *options]).exception
    assert isinstance(error, InputError)
    assert str(error).startswith("data.samples_per_client must be at most 800, because 10 clients share 8000 training")
    for value in ("0", '"some"', "1.5"):
        error = CliRunner().invoke(app, ["run", "quickstart", "--set", f"data.samples_per_client={value}", *options])
        assert isinstance(error.exception, InputError)
        assert "data.samples_per_client" in str(error.exception)
        assert "\n" not in str(error.exception)


def test_a_setting_with_fewer_samples_keeps_the_training_time():
    for task in ("fashion-mnist", "cifar10"):
        base, few = (Experiment(task, "lane", setting).scenario() for setting in ("base", "samples-800"))
        work = [prepare(scenario, [0]).network.compute.cycles for scenario in (base, few)]
        np.testing.assert_allclose(work[0], work[1], rtol=2e-4)  # cifar10 has 5,000 samples each
        assert few.data.samples_per_client == 800


def test_quotas_of_800_samples_follow_epsilon_under_sqrt_d_only():
    """Reading 17: 0.057 between the first and the last client with the noise times sqrt(d), nothing as printed."""

    def spread(setting):
        quotas = prepare(Experiment("fashion-mnist", "lane", setting).scenario(), [0]).problem.quotas[0]
        assert np.all(np.diff(quotas) >= -1e-12)
        return quotas[-1] - quotas[0]

    assert spread("samples-800-nonuniform-sqrt_d") == pytest.approx(0.0568, abs=5e-4)
    assert spread("samples-800-nonuniform") < 5e-4
    assert spread("nonuniform") < 1e-4


@pytest.mark.parametrize("setting", ["various", "various-sqrt_d"])
def test_clients_with_various_data_have_visibly_different_quotas(setting):
    setup = prepare(Experiment("fashion-mnist", "lane", setting).scenario(), range(20))
    quotas = np.sort(setup.problem.quotas, axis=1).mean(axis=0)
    assert quotas[0] < 0.30
    assert quotas[-1] > 0.52
    assert setup.problem.sizes.min() < 250
    assert setup.problem.sizes.max() > 1300


def test_only_runs_with_equal_numbers_of_samples_are_trained_together():
    wanted = [(Experiment("fashion-mnist", "random", setting), 0) for setting in ("base", "samples-800", "epsilon-0.8")]
    groups = batches(wanted, 10)
    assert [[experiment.setting for experiment, _ in group] for group in groups] == [
        ["base", "epsilon-0.8"],
        ["samples-800"],
    ]


def test_the_figure_orders_clients_by_quota(tmp_path):
    store, plan = ResultStore(tmp_path, rounds=30), ReproductionPlan(select_figures(["fig-data"]), 3, 1)
    assert {experiment.setting for experiment in plan.scheduled()} >= {"various", "various-sqrt_d"}
    assert {experiment.setting for experiment in plan.scheduled()} <= set(SETTINGS)
    wanted = [experiment for experiment in plan.scheduled() if experiment.setting == "various"]
    narrow = ReproductionPlan({"fig-data": type(plan.figures["fig-data"])(tuple(wanted))}, 3, 1)
    compute_schedules(narrow, store, lambda name: None)
    panel = Drawer(plan, store).selection_panel("fashion-mnist", "various", "various data", by_quota=True)
    quota = panel.marks["quota"]
    assert np.all(np.diff(quota) > 0)
    results = [store.result(Experiment("fashion-mnist", "mamab-om:V=1", "various"), seed) for seed in range(3)]
    np.testing.assert_allclose(quota, np.mean([np.sort(result.quota) for result in results], axis=0))
    first = results[0]
    expected = first.share("assigned")[np.argsort(first.quota, kind="stable")]
    np.testing.assert_allclose(panel.lines["OM V=1"].values[0], expected)
