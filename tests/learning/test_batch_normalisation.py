"""Users' modules with batch normalisation and dropout, trained without privacy: against plain PyTorch loops."""

import numpy as np
import pytest
import torch
from torch import nn

from fedlane import Scenario, Simulation
from fedlane.learning.counter_rng import bits
from fedlane.learning.evaluate import evaluate
from fedlane.learning.models import Batch
from fedlane.learning.module_checks import TEST_BATCH
from fedlane.learning.sampling import draw_samples
from fedlane.simulation.results import RunFolder
from support.tensors import assert_close
from support.user_modules import RATE, STEPS, Centred, Forest, checked, federation, one_hot, records, with_layer

CLIENT = np.array([[[0, 1, 2], [2, -1, 0]], [[1, 0, 2], [2, 1, 0]]])
PUNCTUAL = np.array([[[True, True, True], [True, False, True]], [[True, False, True], [False, True, True]]])
"""The client on each channel, and whether its upload counts: (round, replica, channel)."""


def trained_by_pytorch(learner, start, round, replica, client):
    """The state of `Forest` after one client's plain training loop, on the simulation's batches and dropout masks."""
    module = Forest().train()
    module.load_state_dict(start)
    counter = torch.tensor([(round * 3 + client) * STEPS])
    row, chosen = torch.tensor([replica]), torch.tensor([client])
    indices, mask = draw_samples(learner.data, learner.sampling, learner.batch_key[row], row, chosen, counter, STEPS)
    for step in range(STEPS):
        batch = indices[0, step][mask[0, step]]
        images = learner.data.images[batch].permute(0, 3, 1, 2) / 255
        torch.manual_seed(int(bits(learner.layer_key[row], counter + step)))
        loss = nn.functional.cross_entropy(module(images), learner.data.targets[batch].argmax(1))
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter -= RATE * gradient
    return module.state_dict()


def averaged_by_pytorch(learner, start, round, replica):
    """The mean of the punctual clients' states, weighted by their numbers of records."""
    clients = CLIENT[round, replica][PUNCTUAL[round, replica]]
    sizes = torch.tensor([100.0, 200.0, 300.0], dtype=torch.float64)[clients]
    states = [trained_by_pytorch(learner, start, round, replica, int(client)) for client in clients]
    return {
        name: sum(size * state[name].double() for size, state in zip(sizes, states, strict=True)) / sizes.sum()
        for name in start
    }


@pytest.fixture(scope="module")
def two_rounds():
    """Two rounds of two replicas, with padded batches and late clients, and the states that plain PyTorch gets."""
    learner = federation(Forest, (3, 9))
    expected = [learner.model.tensors(weights) for weights in learner.weights.clone()]
    for t in range(2):
        expected = [averaged_by_pytorch(learner, expected[r], t, r) for r in range(2)]
        learner.play(t, CLIENT[t], PUNCTUAL[t])
    return learner, expected


def test_parameters_and_running_statistics_are_those_of_pytorch(two_rounds):
    learner, expected = two_rounds
    for weights, state in zip(learner.weights, expected, strict=True):
        for name, tensor in learner.model.tensors(weights).items():
            assert_close(tensor.double(), state[name], rtol=1e-3, atol=1e-4)


def test_batches_are_counted_once_for_every_step(two_rounds):
    learner, _ = two_rounds
    for weights in learner.weights:
        assert int(learner.model.tensors(weights)["head.2.num_batches_tracked"]) == 2 * STEPS


def test_the_loss_on_the_test_set_is_that_of_the_module_in_evaluation_mode(two_rounds):
    learner, _ = two_rounds
    images, losses = learner.test_images.permute(0, 3, 1, 2) / 255, []
    for weights in learner.weights:
        module = Forest().eval()
        module.load_state_dict(learner.model.tensors(weights))
        with torch.no_grad():
            losses.append(float(nn.functional.cross_entropy(module(images), learner.test_labels)))
    assert learner.evaluate().loss.tolist() == pytest.approx(losses, rel=1e-4)


def four_rounds(*seeds):
    """The learner after four rounds in which every replica plays the same clients."""
    learner = federation(Forest, seeds)
    client, punctual = np.array([[0, 2, 1]] * len(seeds)), np.array([[True, True, False]] * len(seeds))
    for t in range(4):
        learner.play(t, client, punctual)
    return learner


def test_a_replica_trains_alone_as_among_others():
    """Dropout masks are drawn for each replica by itself."""
    alone, together = four_rounds(7), four_rounds(3, 7, 9)
    assert torch.equal(alone.weights[0], together.weights[1])
    assert alone.evaluate().loss[0] == together.evaluate().loss[1]


def test_dropout_follows_the_seed_and_not_pytorch_s_global_generator():
    first, state = four_rounds(7), torch.random.get_rng_state()
    assert torch.equal(first.weights, four_rounds(7).weights)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_places_without_a_record_do_not_enter_batch_statistics():
    """A batch of five records, and the same batch padded with three images of nines."""
    model = checked(lambda: nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10)))
    (x, labels), seeds = records(5), torch.zeros(1, dtype=torch.int64)
    targets, mask = one_hot(labels), (torch.arange(8) < 5)[None]
    padded_x, padded_targets = torch.cat([x, torch.full((3, 8, 8, 1), 9.0)]), torch.cat([targets, targets[:3]])
    alone, padded = model.initial(0)[None], model.initial(0)[None]
    model.descend(alone, Batch(x[None], targets[None], seeds=seeds), None, torch.full((1, 5), 0.1))
    model.descend(padded, Batch(padded_x[None], padded_targets[None], mask=mask, seeds=seeds), None, 0.1 * mask)
    assert torch.equal(alone, padded)
    named = model.tensors(padded[0])
    assert float(named["0.running_mean"]) == pytest.approx(0.1 * float(x.mean()), rel=1e-5)
    assert int(named["0.num_batches_tracked"]) == 1


def test_batch_normalisation_without_running_statistics_is_tested_in_equal_batches():
    """Its scores depend on the test batch, which must not follow from memory or the number of replicas."""
    model = checked(with_layer(lambda: nn.BatchNorm2d(4, track_running_stats=False)))
    assert model.test_batch == TEST_BATCH
    x, labels = records(2 * TEST_BATCH + 1)
    weights = torch.stack([model.initial(seed) for seed in range(3)])
    _, loss = evaluate(model, weights, x, labels, memory_bytes=1e9)
    _, loss_in_little_memory = evaluate(model, weights, x, labels, memory_bytes=1.0)
    _, loss_of_one_replica = evaluate(model, weights[1:2], x, labels, memory_bytes=1e9)
    assert torch.equal(loss, loss_in_little_memory)
    assert loss[1] == loss_of_one_replica[0]


class HalfFrozen(nn.Module):
    """Batch normalisation that its maker switched to evaluation mode."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm2d(1), nn.Linear(64, 10)
        self.norm.eval()

    def forward(self, x):
        return self.out(self.norm(x).flatten(1))


@pytest.mark.parametrize("average", [2.9999998, 3.0000002])
def test_an_average_of_counters_is_rounded_to_the_nearest(average):
    """Counts of 3 whose weighted average in single precision is next to 3."""
    model = checked(HalfFrozen)
    weights = model.initial(0)
    weights[-1] = average
    counter = model.tensors(weights)["norm.num_batches_tracked"]
    assert (counter.dtype, int(counter)) == (torch.int64, 3)


def test_testing_leaves_each_layer_in_its_mode():
    model = checked(HalfFrozen)
    model.logits(model.initial(0)[None], records(3)[0][None])
    assert model.module.training
    assert not model.module.norm.training


def test_training_leaves_frozen_statistics_as_they_are():
    learner = federation(HalfFrozen, (0,))
    learner.play(0, np.array([[0, 1, 2]]), np.ones((1, 3), bool))
    named = learner.model.tensors(learner.weights[0])
    assert (float(named["norm.running_mean"]), int(named["norm.num_batches_tracked"])) == (0.0, 0)


@pytest.mark.slow  # the check of the module calls torch.func, which imports a compiler
def test_modules_that_mix_records_by_themselves_train_on_whole_batches():
    model, (x, labels) = checked(Centred), records(4)
    assert model.whole_batch
    weights, targets, module = model.initial(0)[None], one_hot(labels), Centred()
    module.load_state_dict(model.tensors(weights[0].clone()))
    batch = Batch(x[None], targets[None], seeds=torch.zeros(1, dtype=torch.int64))
    model.descend(weights, batch, None, torch.ones(1, 4))
    nn.functional.cross_entropy(module(x.permute(0, 3, 1, 2)), targets, reduction="sum").backward()
    assert_close(weights[0, :640].view(10, 64), -module.out.weight.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_resumed_run_keeps_running_statistics(tmp_path):
    values = {"learning.model": "support.user_modules:LargeForest", "privacy.mechanism": "none", "rounds": 4,
              "learning.learning_rate": 0.1}  # fmt: skip
    scenario = Scenario.load("quickstart").with_values(values)
    whole, part = (Simulation(scenario, "lane", [2, 5], learning=True) for _ in range(2))
    whole.play()
    part.step()
    part.step()
    RunFolder.create(tmp_path / "run").write(part.result(), checkpoint=part.checkpoint())
    resumed = Simulation.resume(tmp_path / "run")
    resumed.play()
    expected, result = whole.result().model, resumed.result().model
    assert expected["replica0.features.1.num_batches_tracked"].dtype == np.int64
    assert expected["replica0.features.1.num_batches_tracked"] == 4 * scenario.learning.local_iterations
    assert all(np.array_equal(expected[name], result[name]) for name in expected)
