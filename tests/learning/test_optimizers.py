"""Local and server optimisers, aggregation and rate schedules: against Flower, slow loops and worked examples."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedlane import Scenario, Simulation
from fedlane.learning import schedule as schedules
from fedlane.learning.federation import FederationBatch
from fedlane.learning.local import train_locally
from fedlane.learning.models import make_model
from fedlane.learning.module_checks import checked_module
from fedlane.learning.optimization import LocalOptimizer, Optimization
from fedlane.learning.partition import Partition, label_counts
from fedlane.learning.sampling import draw_samples
from fedlane.learning.server_step import ServerStep
from fedlane.records import MechanismSpec
from fedlane.validate import InputError
from support import slow
from support.tensors import assert_close

CLIENTS, RATE = 6, 0.1
CLIENT = np.array([[[0, 4, 2], [5, -1, 1]], [[1, 3, 4], [2, 0, 5]], [[4, 0, -1], [5, 1, 2]]])
PUNCTUAL = np.array(
    [
        [[True, True, False], [True, False, True]],
        [[True, True, True], [False, False, False]],
        [[True, True, False], [True, True, True]],
    ]
)
"""Three rounds of two replicas; nobody is punctual in the second round of the second."""


def federation(data, optimization, seeds=(3, 9), model="softmax", **mechanism):
    counts = np.stack(
        [label_counts(Partition("dominant", 0.8, 0.4), data.info.class_totals, CLIENTS, seed) for seed in seeds]
    )
    values = {"batch_size": np.full(CLIENTS, 4), "local_iterations": 3, "clip_norm": 1.0, **mechanism}
    spec = MechanismSpec.simple(counts.sum(axis=2), **values)
    made = make_model(model, data.info.input_shape, 10, per_record=spec.clip_norm is not None)
    return FederationBatch(made, data, counts, seeds, spec, RATE, optimization=optimization)


def played(learner, rounds=range(3)):
    for t in rounds:
        learner.play(t, CLIENT[t], PUNCTUAL[t])
    return learner.weights


def flower_models(strategy, start, averages):
    """The models of a Flower strategy that receives these averages as the model of a single client."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

    class Grid:
        def get_node_ids(self):
            return [1]

    models, current = [], start
    for number, average in enumerate(averages, 1):
        record = ArrayRecord({"w": Array(current)})
        (message,) = strategy.configure_train(number, record, ConfigRecord(), Grid())
        content = RecordDict(
            {"arrays": ArrayRecord({"w": Array(current + average)}), "m": MetricRecord({"num-examples": 1})}
        )
        arrays, _ = strategy.aggregate_train(number, [Message(content, reply_to=message)])
        current = arrays["w"].numpy()
        models.append(current)
    return models


def strategy_of(optimizer):
    from flwr.serverapp.strategy import FedAdam, FedAvgM, FedYogi

    nodes = {"min_train_nodes": 1, "min_available_nodes": 1}
    adaptive = {"beta_1": 0.8, "beta_2": 0.95, "tau": 1e-2, "eta": 0.05}
    return {
        "sgd": lambda: FedAvgM(server_learning_rate=0.7, server_momentum=0.0, **nodes),
        "momentum": lambda: FedAvgM(server_learning_rate=0.7, server_momentum=0.8, **nodes),
        "adam": lambda: FedAdam(**adaptive, **nodes),
        "yogi": lambda: FedYogi(**adaptive, **nodes),
    }[optimizer]()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "yogi"])
def test_server_steps_agree_with_flower_s_strategies(optimizer, monkeypatch):
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for name in ("run_id", "task_id", "node_id"):
        monkeypatch.setattr(identity, f"_{name}", 1)
    monkeypatch.setattr(gc, "collect", lambda: None)  # Flower collects garbage after every record
    rng = np.random.default_rng(1)
    start, updates = rng.standard_normal(40).astype(np.float32), 0.1 * rng.standard_normal((5, 40)).astype(np.float32)
    rate = 0.7 if optimizer in ("sgd", "momentum") else 0.05
    settings = Optimization(optimizer, rate, server_momentum=0.8, server_decay=0.95, server_adaptivity=1e-2)
    weights = torch.from_numpy(start.copy())[None]
    server = ServerStep(settings, weights, 40, CLIENTS)
    for t, expected in enumerate(flower_models(strategy_of(optimizer), start, updates)):
        previous = weights.clone()
        weights += torch.from_numpy(updates[t])
        server.apply_(weights, previous, torch.tensor([[True]]), torch.tensor(t), slice(None))
        assert_close(weights[0], torch.from_numpy(expected).float(), rtol=1e-5, atol=1e-6)
    assert np.abs(weights[0].numpy() - start).max() > 0.05


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "yogi"])
def test_server_steps_of_a_federation_agree_with_a_slow_loop(data, optimizer):
    """Each round's averages come from plain averaging; a replica without uploads keeps its model and its memory."""
    settings = Optimization(optimizer, 0.5, server_momentum=0.6, server_decay=0.9, server_adaptivity=0.01)
    learner, plain = federation(data, settings), federation(data, Optimization())
    expected = learner.weights.clone().double()
    first, second = torch.zeros_like(expected), torch.zeros_like(expected)
    for t in range(3):
        plain.restore(expected.float().numpy())
        plain.play(t, CLIENT[t], PUNCTUAL[t])
        for r in range(2):
            update = plain.weights[r].double() - expected[r]
            if not PUNCTUAL[t, r].any():
                assert update.abs().max() < 1e-6
                continue
            if optimizer == "momentum":
                first[r] = 0.6 * first[r] + update
                expected[r] += 0.5 * first[r]
                continue
            first[r] = 0.6 * first[r] + 0.4 * update
            change = update**2 if optimizer == "yogi" else update**2 - second[r]
            second[r] += 0.1 * change * (torch.sign(update**2 - second[r]) if optimizer == "yogi" else 1)
            rate = 0.5 * (1 if optimizer == "yogi" else np.sqrt(1 - 0.9 ** (t + 2)) / (1 - 0.6 ** (t + 2)))
            expected[r] += rate * first[r] / (second[r].sqrt() + 0.01)
        learner.play(t, CLIENT[t], PUNCTUAL[t])
    assert_close(learner.weights.double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("momentum", "proximal"), [(0.7, 0.0), (0.0, 2.0), (0.7, 2.0)])
@pytest.mark.parametrize("clip_norm", [None, 0.3])
@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_local_steps_agree_with_torch_sgd_on_flower_s_proximal_loss(data, momentum, proximal, clip_norm, model):
    """PyTorch's SGD with momentum, on clipped gradients plus that of FedProx's loss as in Flower's documentation."""
    learner = federation(data, Optimization(momentum=momentum, proximal=proximal), model=model, clip_norm=clip_norm)
    images, labels = torch.from_numpy(np.array(data.train.images)).float() / 255, data.train.labels
    replica, client = torch.tensor([1]), torch.tensor([4])
    counter = client * 3
    indices, _ = draw_samples(learner.data, learner.sampling, learner.batch_key[replica], replica, client, counter, 3)
    start = learner.weights[1].clone()
    parameter = torch.nn.Parameter(start.clone())
    sgd = torch.optim.SGD([parameter], lr=RATE, momentum=momentum)
    for batch in indices[0]:
        sgd.zero_grad()
        (proximal / 2 * (parameter - start).norm(2) ** 2 if proximal else 0 * parameter.sum()).backward()
        gradients = [slow.gradient(learner.model.layers, parameter.detach(), images[s], int(labels[s])) for s in batch]
        parameter.grad += sum(slow.clipped(gradient, clip_norm) for gradient in gradients) / 4
        parameter.grad.nan_to_num_()  # of the norm at the global model itself
        sgd.step()
    trained = learner.trained(torch.tensor(0), replica, client)[0]
    assert_close(trained, parameter.detach(), rtol=1e-3, atol=1e-5)
    plain = federation(data, Optimization(), model=model, clip_norm=clip_norm)
    assert (trained - plain.trained(torch.tensor(0), replica, client)[0]).abs().max() > 1e-4


def test_noisy_steps_with_momentum_are_a_function_of_the_noisy_moves(data):
    """The mechanism `rigorous`: v <- m v + noisy move, from the moves of plain noisy steps at the same weights."""
    plain, learner = (
        federation(data, o, step_noise=0.8, sampling="poisson") for o in (Optimization(), Optimization(momentum=0.5))
    )
    replica, client = torch.tensor([0, 1]), torch.tensor([2, 3])
    rows = []
    original = train_locally

    def recorded(model, weights, data, batch, *rest):
        rows.append(batch)
        original(model, weights, data, batch, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedlane.learning.federation.train_locally", recorded)
        trained = learner.trained(torch.tensor(0), replica, client)
    (batch,) = rows
    weights, velocity = plain.weights.clone(), 0.0
    for step in range(3):
        one = replace(
            batch,
            indices=batch.indices[:, step : step + 1],
            mask=batch.mask[:, step : step + 1],
            add_noise=replace(batch.add_noise, counter=batch.add_noise.counter + step),
        )
        after = weights.clone()
        train_locally(plain.model, after, plain.data, one, RATE, 1.0)
        velocity = 0.5 * velocity + (after - weights)
        weights = weights + velocity
    assert_close(trained, weights, rtol=1e-3, atol=1e-5)


class BatchNormNet(torch.nn.Sequential):
    """A network with running statistics, which trains on whole batches."""

    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.BatchNorm1d(784), torch.nn.Linear(784, 10))


def test_running_statistics_are_averaged_and_have_no_velocity(data):
    """A model with batch normalisation: momentum 0 changes nothing, and no optimiser touches the statistics."""
    client, punctual = np.array([[0, 1]]), np.array([[True, True]])
    counts = np.full((1, 2, 10), 40)
    spec = MechanismSpec.simple(counts.sum(axis=2), batch_size=8, local_iterations=1)
    weights = {}
    for optimization in (Optimization(), Optimization(momentum=0.5, proximal=1.0), Optimization("adam", 0.5)):
        model = checked_module(BatchNormNet, data.info.input_shape, 10, per_record=False)
        learner = FederationBatch(model, data, counts, [0], spec, RATE, optimization=optimization)
        learner.play(0, client, punctual)
        weights[optimization.server_optimizer, optimization.momentum] = learner.weights[0]
    plain, momentum, adam = weights.values()
    assert_close(momentum, plain, rtol=1e-6, atol=1e-7)  # a single step has no velocity to repeat
    assert torch.equal(adam[model.trained :], plain[model.trained :])
    assert (adam - plain)[: model.trained].abs().max() > 0.1


def test_unbiased_weights_of_a_worked_case():
    """Sizes 100 and 300: client 1 is punctual in every round, client 0 only in the third: its data count threefold."""
    server = ServerStep(Optimization(aggregation="unbiased"), torch.zeros(1, 1), 1, 2)
    sizes, both = np.array([[100, 300]]), np.array([[0, 1]])
    for t, punctual in enumerate([[False, True], [False, True], [True, True]]):
        weights = server.upload_weights(both, np.array([punctual]), sizes)
        np.testing.assert_allclose(weights[0, 1], 300 / (t + 1))
    share = weights[0] / weights[0].sum()
    np.testing.assert_allclose(share, [100 / (1 / 3) / (100 / (1 / 3) + 300 / 1), 0.5])  # shares 1/3 and 1 of 3 rounds
    fair = ServerStep(Optimization(), torch.zeros(1, 1), 1, 2)
    assert fair.upload_weights(both, np.array([[True, True]]), sizes) is sizes


ALL = Optimization(
    "adam", 0.02, momentum=0.5, proximal=0.5, aggregation="unbiased", learning_rate_schedule="cosine", rounds=3
)


@pytest.mark.parametrize(
    "mechanism",
    [{"clip_norm": None}, {"upload_noise": 0.5}, {"step_noise": 0.8, "sampling": "poisson"}],
    ids=["none", "paper", "rigorous"],
)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "yogi"])
def test_replicas_are_independent_and_resume_to_the_bit(data, mechanism, optimizer):
    settings = replace(ALL, server_optimizer=optimizer)
    together = played(federation(data, settings, **mechanism))
    alone = federation(data, settings, seeds=(9,), **mechanism)
    for t in range(3):
        alone.play(t, CLIENT[t, 1:], PUNCTUAL[t, 1:])
    assert_close(alone.weights[0], together[1], rtol=1e-3, atol=2e-4)
    first = federation(data, settings, **mechanism)
    played(first, range(1))
    saved = {name: array.copy() for name, array in first.to_arrays().items()}
    resumed = federation(data, settings, **mechanism)
    resumed.restore(saved["weights"], saved)
    assert torch.equal(played(resumed, range(1, 3)), together)
    assert not torch.equal(together, played(federation(data, Optimization(), **mechanism)))


def test_memory_that_does_not_fit_is_refused(data):
    learner = federation(data, ALL)
    saved = learner.to_arrays()
    with pytest.raises(KeyError):
        learner.restore(saved["weights"])
    for name, value in (("server.square", -1.0), ("server.punctual_rounds", -1)):
        with pytest.raises(InputError, match=name):
            learner.restore(saved["weights"], {**saved, name: np.full_like(saved[name], value)})


def test_the_noise_of_an_upload_scales_with_the_rate_of_the_round_and_never_hides_more_than_without_proximal(data):
    """The lower bound on the leakage of `paper` assumes that a step's gradient enters the upload at least once."""
    settings = Optimization(proximal=2.0, learning_rate_schedule="inverse_sqrt")
    learner, plain = (federation(data, o, upload_noise=1.0) for o in (settings, Optimization()))
    before = plain._upload_deviation
    learner._set_rate(3)
    rate = RATE / 2
    np.testing.assert_allclose(learner._upload_deviation, before / 2 * (1 - rate * 2.0) ** 2)
    assert LocalOptimizer(momentum=0.9).first_step_weight(RATE, 50) == 1
    both = LocalOptimizer(momentum=0.5, proximal=0.5).first_step_weight(RATE, 4)
    weights, velocity = [1.0], 1.0
    for _ in range(3):
        velocity = 0.5 * velocity - 0.05 * weights[-1]
        weights.append(weights[-1] + velocity)
    assert both == min(weights)
    with pytest.raises(InputError, match="too large together"):
        federation(data, Optimization(momentum=0.99, proximal=9.9), upload_noise=1.0, local_iterations=9)._set_rate(0)


def test_rates_of_the_schedules():
    inverse = Optimization(learning_rate_schedule="inverse_sqrt")
    cosine = Optimization(learning_rate_schedule="cosine", rounds=4)
    assert [inverse.rate_factor(t) for t in (0, 3, 8)] == [1, 0.5, pytest.approx(1 / 3)]
    np.testing.assert_allclose([cosine.rate_factor(t) for t in (0, 2, 4, 9)], [1, 0.5, 0, 0], atol=1e-12)
    assert Optimization().rate_factor(7) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"server_optimizer": "adamw"}, "unknown learning.server_optimizer 'adamw'"),
        ({"momentum": 1.0}, "learning.momentum must be at least 0 and less than 1"),
        ({"server_decay": float("nan")}, "learning.server_decay must be"),
        ({"server_learning_rate": 0.0}, "learning.server_learning_rate must be greater than 0"),
        ({"proximal": -1.0}, "learning.proximal must be at least 0"),
        ({"proximal": float("inf")}, "learning.proximal must be at most"),
        ({"rounds": 0}, "rounds must be at least 1"),
    ],
)
def test_settings_out_of_range(change, message):
    with pytest.raises(InputError, match=message):
        Optimization(**change)


@pytest.mark.slow
def test_a_schedule_carries_the_optimisers_and_old_files_open(data, tmp_path):
    values = {
        "rounds": 3,
        "learning.server_optimizer": "yogi",
        "learning.momentum": 0.5,
        "learning.aggregation": "unbiased",
        "learning.learning_rate_schedule": "cosine",
    }
    simulation = Simulation(Scenario.load("quickstart").with_values(values), "lane", seeds=[0, 1], learning=True)
    simulation.play()
    saved = simulation.schedule()
    saved.save(tmp_path / "schedule.npz")
    loaded = schedules.Schedule.load(tmp_path / "schedule.npz")
    assert loaded.task.optimization == Optimization(
        "yogi", 0.01, momentum=0.5, aggregation="unbiased", learning_rate_schedule="cosine", rounds=3
    )
    curves = schedules.learn(loaded)
    np.testing.assert_array_equal(curves.weights, simulation.federation.weights.numpy())
    arrays = {k: v for k, v in loaded.task.to_arrays().items() if not k.startswith("optimization.")}
    assert schedules.LearningTask.from_arrays(arrays).optimization == Optimization()
    arrays["optimization.momentum"] = np.array(0.5)
    with pytest.raises(KeyError):
        schedules.LearningTask.from_arrays(arrays)


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_the_bit_and_refuses_a_checkpoint_without_the_server_s_memory(tmp_path):
    scenario = Scenario.load("quickstart").with_values(
        {"rounds": 4, "learning": {"server_optimizer": "adam", "momentum": 0.5, "aggregation": "unbiased"}}
    )
    whole, half = (Simulation(scenario, "lane", seeds=[0, 1], learning=True) for _ in range(2))
    whole.play()
    half.play(until=2)
    half.result().save(tmp_path / "r")
    saved = half.checkpoint()
    (tmp_path / "r" / "checkpoint.npz").write_bytes(saved.to_bytes())
    resumed = Simulation.resume(tmp_path / "r")
    resumed.play()
    assert torch.equal(resumed.federation.weights, whole.federation.weights)
    arrays = {name: array for name, array in saved.arrays.items() if name != "server.square"}
    (tmp_path / "r" / "checkpoint.npz").write_bytes(replace(saved, arrays=arrays).to_bytes())
    with pytest.raises(InputError, match=r"server\.square"):
        Simulation.resume(tmp_path / "r")


def test_a_proximal_term_beyond_the_global_model_is_one_line():
    with pytest.raises(InputError, match=r"proximal times learning\.learning_rate must be at most 1, got 6"):
        Scenario.load("quickstart").with_values({"learning.proximal": 20.0, "learning.learning_rate": 0.3})
    with pytest.raises(InputError, match=r"learning\.server_optimizer"):
        Scenario.load("quickstart").with_values({"learning.server_optimizer": "adamw"})
