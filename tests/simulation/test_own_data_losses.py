"""Policies that require losses on data sets of one's own: classes, float targets and sequences."""

import numpy as np
import pytest
import torch

from fedlane import Run, Scenario, Simulation, simulate
from fedlane.learning import own_data
from fedlane.learning.dataset_records import Objective
from fedlane.learning.local import ClientData
from fedlane.learning.loss_reports import record_losses
from fedlane.learning.models import make_model
from fedlane.learning.module_checks import checked_module
from fedlane.learning.strict import RecordGradients
from fedlane.records import LossQuery
from fedlane.simulation.replaying import prepare_replay
from fedlane.validate import InputError
from support.loss_policy import LargestLoss

POLICY = "support.loss_policy:LargestLoss"
CLIENTS, SAMPLES = 4, 60
SETTINGS = {
    "rounds": 6,
    "network.clients": CLIENTS,
    "network.channels": 2,
    "data.dataset": "my.npz",
    "data.partition": "natural",
    "learning.model": "softmax",
    "learning.batch_size": SAMPLES,
    "learning.evaluate_every": 3,
}


def arrays(target, shift=0.0):
    """Vectors of four clients with classes, or with numbers whose size grows with the client's index."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(CLIENTS * SAMPLES, 3)).astype(np.float32) + shift
    ids = np.arange(len(x)) % CLIENTS
    y = (x[:, 0] > 0).astype(np.int64) if target == "classes" else (1.0 + ids) * x[:, 0]
    return {"x_train": x, "y_train": y, "x_test": x[:40], "y_test": y[:40], "client_train": ids}


def scenario(mechanism, **changes):
    return Scenario.load("quickstart").with_values({**SETTINGS, "privacy.mechanism": mechanism, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("target", ["classes", "values"])
def test_private_losses_of_own_data_stay_in_the_budget_and_the_run_replays(here, target):
    np.savez("my.npz", **arrays(target))
    settings = {"learning.batch_size": 8, "privacy.loss_noise": 30.0}
    simulate(scenario("rigorous", **settings), POLICY, seeds=[2]).save(here / "run")
    run = Run.load(here / "run")
    assert run.summary["privacy"]["losses"]["protected"]
    assert 0 < run.summary["privacy"]["epsilon"]["largest"] <= 8.0
    assert ("final_rmse" in run.summary) == (target == "values")
    again = prepare_replay(run, "cpu")
    again.play()
    assert again.result().assignments.equals(run.assignments)
    np.savez("my.npz", **arrays(target, shift=1.0))
    own_data._load.cache_clear()
    with pytest.raises(InputError, match=r"my\.npz"):
        prepare_replay(run, "cpu")


def test_squared_errors_are_reported_and_steer_the_schedule(here):
    """A sample of all records under a model that stays: the report is the client's mean squared error."""
    data = arrays("values")
    np.savez("my.npz", **data)
    simulation = Simulation(scenario("none", **{"learning.learning_rate": 1e-12}), LargestLoss(), [0], learning=True)
    weights = simulation.federation.weights[0].numpy().copy()
    simulation.play()
    matrix, bias = weights[:3], weights[3]
    errors = (data["x_train"] @ matrix + bias - data["y_train"]) ** 2
    by_client = [errors[data["client_train"] == i] for i in range(CLIENTS)]
    latest = simulation.federation.losses.latest
    reported = ~np.isnan(latest.mean[0])
    assert reported.sum() >= 2
    expected = np.array([[part.mean(), np.sqrt(np.mean(part**2))] for part in by_client])
    np.testing.assert_allclose(latest.mean[0][reported], expected[reported, 0], rtol=1e-4)
    np.testing.assert_allclose(latest.rms[0][reported], expected[reported, 1], rtol=1e-4)
    largest = set(np.argsort(np.where(reported, latest.mean[0], np.inf))[-2:].tolist())
    assert set(simulation.trace.client[0, -1].tolist()) == largest


def numbers():
    """A model of three numbers, its inputs and targets (1, 5, ...)."""
    model = make_model("mlp", (1, 4, 4), 3, objective=Objective("values"))
    return model, torch.rand(1, 5, 4, 4, 1), 3.0 * torch.randn(1, 5, 3)


def sequences():
    """A user's model that scores every position, its inputs and targets (1, 5, ...)."""
    model = checked_module(
        lambda: torch.nn.Sequential(torch.nn.Embedding(7, 8), torch.nn.Linear(8, 7)),
        (6,),
        7,
        per_record=True,
        tokens=7,
        objective=Objective("positions", 6),
    )
    tokens = torch.randint(0, 7, (1, 5, 6))
    return model, tokens, (tokens + 1) % 7


@pytest.mark.slow
@pytest.mark.parametrize("make", [numbers, sequences])
def test_losses_of_every_kind_equal_a_slow_loop_and_are_clipped(make):
    torch.manual_seed(0)
    model, x, targets = make()
    weights = 4.0 * model.initial(0)[None]
    exact = []
    for record in range(5):
        scores, expected = model.logits(weights, x[:, record : record + 1])[0, 0], targets[0, record]
        if make is numbers:
            exact.append(float((scores - expected).square().mean()))
        else:
            exact.append(float(np.mean([-scores[k].log_softmax(0)[c].item() for k, c in enumerate(expected)])))
    clip = float(np.median(exact))
    clipped = record_losses(model, weights, x, targets, clip)[0].detach().numpy()
    np.testing.assert_allclose(clipped, np.minimum(exact, clip), rtol=1e-5)
    assert (record_losses(model, weights * np.nan, x, targets, clip) == clip).all()

    empty = torch.empty(0)
    alone = RecordGradients(model, ClientData(x[0], targets[0], empty, empty, empty, empty))
    alone.start(weights)
    query = LossQuery(clip, 4.0, np.zeros(1))
    with torch.no_grad():
        sums = torch.stack([alone.contribution_to_losses(record, query) for record in range(5)])
    np.testing.assert_allclose(sums[:, 0], clipped, rtol=1e-5)
    np.testing.assert_allclose(sums[:, 1], clipped**2 / clip, rtol=1e-5)
    assert sums.norm(dim=1).max() <= np.sqrt(2) * clip * (1 + 1e-6)
