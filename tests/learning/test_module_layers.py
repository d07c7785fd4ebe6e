"""Users' modules with constants, batch normalisation and dropout, against plain PyTorch loops."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedlane import Run, Scenario, Simulation, simulate
from fedlane.learning.counter_rng import bits
from fedlane.learning.datasets import Dataset, DatasetInfo, Samples
from fedlane.learning.evaluate import evaluate
from fedlane.learning.federation import FederationBatch
from fedlane.learning.local import ClientData, train_locally
from fedlane.learning.models import Batch, ModuleModel
from fedlane.learning.module_checks import TEST_BATCH, checked_module
from fedlane.learning.sampling import draw_samples
from fedlane.learning.strict import train_strictly
from fedlane.learning.system_random import system_rows
from fedlane.records import MechanismSpec
from fedlane.simulation.results import RunFolder
from fedlane.validate import InputError
from support.terminal import fedlane

SHAPE = (1, 8, 8)
BATCHES = np.array([4, 7, 16])
RATE, STEPS = 0.3, 3


class Positions(nn.Module):
    """Rows of an image as tokens, with a positional encoding and a mask as constants, and a constant not saved."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Linear(8, 6), nn.Linear(6, 10)
        angles = torch.arange(8.0)[:, None] / 10.0 ** (torch.arange(6.0) / 3)
        self.register_buffer("encoding", torch.sin(angles))
        self.register_buffer("allowed", torch.arange(8) < 7)
        self.register_buffer("offset", torch.full((6,), 0.25), persistent=False)

    def forward(self, x):
        tokens = self.embed(x.flatten(1).view(len(x), 8, 8)) + self.encoding + self.offset
        return self.out((tokens.relu() * self.allowed[:, None]).mean(1))


class OnLargeImages:
    """For images of 28 x 28, which are reduced to 8 x 8."""

    def forward(self, x):
        return super().forward(nn.functional.avg_pool2d(x, 3)[:, :, :8, :8])


class LargePositions(OnLargeImages, Positions):
    """Positions on large images."""


class Forest(nn.Module):
    """Two kinds of batch normalisation, and dropout."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 36, 12), nn.BatchNorm1d(12, momentum=None), nn.ReLU())
        self.out = nn.Linear(12, 10)

    def forward(self, x):
        return self.out(self.head(self.features(x)))


class LargeForest(OnLargeImages, Forest):
    """The forest on large images."""


class HalfFrozen(nn.Module):
    """Batch normalisation that its maker switched to evaluation mode."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm2d(1), nn.Linear(64, 10)
        self.norm.eval()

    def forward(self, x):
        return self.out(self.norm(x).flatten(1))


class Counting(nn.Module):
    """A buffer that changes in forward; ``how`` it is written decides what notices it."""

    def __init__(self, how):
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("seen", torch.zeros(()))
        self.out, self.how, self.after = nn.Linear(64, 10), how, 0

    def forward(self, x):
        if self.how == "in place":
            self.inner.seen += 1
        elif self.how == "assigned" or (self.how == "late" and self.after == 1):
            self.inner.seen = self.inner.seen + 1
        elif self.how == "data":
            self.inner.seen.data += 1
        return self.out(x.flatten(1)) + self.inner.seen


class Centred(nn.Module):
    """Records mixed without any layer that shows it; the last layer starts at 0 and hides it."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(64, 10)
        nn.init.zeros_(self.out.weight)

    def forward(self, x):
        flat = x.flatten(1)
        return self.out(flat - flat.mean(0))


class Fourier(nn.Module):
    """A constant that is drawn at random."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(64, 5))
        self.out = nn.Linear(5, 10)

    def forward(self, x):
        return self.out(torch.sin(x.flatten(1) @ self.frequencies))


def with_layer(layer):
    return lambda: nn.Sequential(nn.Conv2d(1, 4, 3), layer(), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))


def records(size=60, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.random((size, 8, 8, 1), np.float32)), torch.from_numpy(rng.integers(10, size=size))


def client_data(x, labels):
    return ClientData(
        images=x,
        targets=nn.functional.one_hot(labels, 10).float(),
        squares=x.flatten(1).square().sum(1),
        order=torch.arange(len(x), dtype=torch.int32)[None],
        start=torch.zeros(1, 1, dtype=torch.int64),
        size=torch.tensor([[len(x)]]),
    )


def federation(make, seeds, batches=BATCHES, clip_norm=None):
    """Federations of three clients with 100, 200 and 300 images of 8 x 8."""
    rng = np.random.default_rng(1)
    samples = [Samples(rng.integers(0, 256, (n, 8, 8, 1), np.uint8), np.arange(n) % 10) for n in (600, 60)]
    info = DatasetInfo("dots", "Dots", SHAPE, 10, 60, 6, "own")
    counts = np.stack([np.outer([10, 20, 30], np.ones(10, np.int64))] * len(seeds))
    spec = MechanismSpec.simple(counts.sum(axis=2), batch_size=batches, local_iterations=STEPS, clip_norm=clip_norm)
    model = checked_module(make, SHAPE, 10, per_record=False)
    return FederationBatch(model, Dataset(info, *samples), counts, seeds, spec, RATE)


NORM = (
    r"layer '1' \(BatchNorm2d\) mixes the records of a batch, which per-record clipping does not allow: use GroupNorm"
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (with_layer(lambda: nn.BatchNorm2d(4)), NORM + r", or privacy.mechanism = \"none\""),
        (with_layer(lambda: nn.BatchNorm2d(4, track_running_stats=False)), NORM),
        (with_layer(lambda: nn.BatchNorm2d(4).eval()), NORM),
        (with_layer(lambda: nn.SyncBatchNorm(4)), r"layer '1' \(SyncBatchNorm\) mixes the records"),
        (with_layer(nn.LazyBatchNorm2d), r"layer '1' \(LazyBatchNorm2d\) mixes the records"),
        (
            with_layer(lambda: nn.InstanceNorm2d(4, track_running_stats=True)),
            r"\(InstanceNorm2d\) keeps .* set track_ru",
        ),
        (Forest, r"layer 'features.1' \(BatchNorm2d\) mixes"),
        (with_layer(lambda: nn.Dropout(0.001)), r"'1' \(Dropout\) draws random numbers.*privacy.mechanism = \"none\""),
        (with_layer(lambda: nn.AlphaDropout(0.1)), r"layer '1' \(AlphaDropout\) draws random numbers"),
        (with_layer(nn.RReLU), r"layer '1' \(RReLU\) draws random numbers"),
        (
            with_layer(lambda: nn.LazyConv2d(4, 1)),
            r"layer '1' \(LazyConv2d\) has no shape .* use Conv2d with its sizes",
        ),
        (Centred, "model Centred mixes the records of a batch: .* privacy.mechanism"),
    ],
)
def test_a_layer_that_mixes_records_is_refused_where_each_record_is_clipped(make, message):
    with pytest.raises(InputError, match=message):
        checked_module(make, SHAPE, 10, per_record=True)


@pytest.mark.parametrize(
    ("layer", "message"),
    [(lambda: nn.SyncBatchNorm(4), "use BatchNorm"), (nn.LazyBatchNorm2d, "use BatchNorm2d with its sizes")],
)
def test_layers_that_no_federation_can_train_are_refused_without_privacy_too(layer, message):
    with pytest.raises(InputError, match=message):
        checked_module(with_layer(layer), SHAPE, 10, per_record=False)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.GroupNorm(2, 4),
        lambda: nn.InstanceNorm2d(4),
        lambda: nn.Dropout(0.0),
        lambda: nn.Dropout(0.5).eval(),
        lambda: nn.LayerNorm((4, 6, 6)),
    ],
)
def test_layers_of_single_records_are_allowed(layer):
    model = checked_module(with_layer(layer), SHAPE, 10, per_record=True)
    assert model.size == model.trained
    assert not checked_module(with_layer(layer), SHAPE, 10, per_record=False).whole_batch  # trains as before


@pytest.mark.parametrize("how", ["in place", "assigned", "data"])
@pytest.mark.parametrize("per_record", [True, False])
def test_a_module_that_changes_a_buffer_is_refused(how, per_record):
    with pytest.raises(InputError, match=r"layer 'inner' \(Module\) changes its buffer 'seen' in forward"):
        checked_module(lambda: Counting(how), SHAPE, 10, per_record=per_record)


def test_a_late_change_of_a_buffer_is_refused_and_leaves_nothing():
    model = checked_module(lambda: Counting("late"), SHAPE, 10, per_record=True)
    x, labels = records(4)
    batch, weights = Batch(x[None], nn.functional.one_hot(labels, 10).float()[None]), model.initial(0)[None]
    before, expected = weights.clone(), weights.clone()
    model.descend(expected, batch, 1.0, torch.ones(1, 4))
    model.module.after = 1
    with pytest.raises(InputError, match="changes its buffer"):
        model.descend(weights, batch, 1.0, torch.ones(1, 4))
    assert torch.equal(weights, before)
    model.module.after = 0
    model.descend(weights, batch, 1.0, torch.ones(1, 4))
    assert torch.equal(weights, expected)


@pytest.mark.parametrize("clip_norm", [0.4, None])
def test_a_module_with_constants_takes_the_steps_of_autograd(clip_norm):
    model = checked_module(Positions, SHAPE, 10, per_record=True)
    x, labels = records(6)
    weights = model.initial(3)[None]
    moved = weights.clone()
    model.descend(moved, Batch(x[None], nn.functional.one_hot(labels, 10).float()[None]), clip_norm, torch.ones(1, 6))
    module = Positions()
    module.load_state_dict({**model.tensors(weights[0]), **model.constants()})
    expected = weights[0].clone()
    for image, label in zip(x, labels, strict=True):
        loss = nn.functional.cross_entropy(module(image.permute(2, 0, 1)[None]), label[None])
        gradient = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(module.parameters()))])
        expected -= gradient * (1.0 if clip_norm is None else min(1.0, clip_norm / float(gradient.norm())))
    torch.testing.assert_close(moved[0], expected, rtol=1e-4, atol=1e-6)


def test_a_real_client_trains_a_module_with_constants_as_simulations_do():
    model = checked_module(Positions, SHAPE, 10, per_record=True)
    data = client_data(*records(40))
    spec = MechanismSpec.simple(
        np.array([[40]]), batch_size=10, local_iterations=3, clip_norm=0.5, step_noise=1e-9, sampling="poisson"
    )
    rows = system_rows(spec, 40)
    first = model.initial(1)[None]
    strict, fast = first.clone(), first.clone()
    train_strictly(model, strict, data, rows, RATE, 0.5)
    with torch.no_grad():
        train_locally(model, fast, data, rows, RATE, 0.5)
    torch.testing.assert_close(strict, fast, rtol=1e-4, atol=1e-5)
    assert float((strict - first).abs().max()) > 1e-3
    model.check_constants()
    with pytest.raises(ValueError, match="gradients of single records"):
        train_strictly(ModuleModel(Forest, per_record=False), strict, data, rows, RATE, 0.5)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.parametrize("mechanism", ["rigorous", "none"])
def test_a_run_saves_constants_with_the_weights(here, tmp_path, mechanism):
    values = {"learning.model": "test_module_layers:LargePositions", "privacy.mechanism": mechanism, "rounds": 3}
    run = simulate(Scenario.load("quickstart").with_values(values), seeds=[0, 4])
    run.save(tmp_path / "run")
    saved = load_file(tmp_path / "run" / "model.safetensors")
    for replica in ("replica0.", "replica1."):
        module, fresh = LargePositions(), LargePositions()
        module.load_state_dict({k.removeprefix(replica): v for k, v in saved.items() if k.startswith(replica)})
        assert torch.equal(module.encoding, fresh.encoding)
        assert torch.equal(module.allowed, fresh.allowed)
    assert not any("offset" in name for name in saved)
    loaded = Run.load(tmp_path / "run").model
    assert loaded.keys() == run.model.keys()
    assert all(np.array_equal(loaded[name], run.model[name]) for name in loaded)


def test_a_constant_drawn_at_random_is_the_same_everywhere():
    torch.manual_seed(5)
    first = ModuleModel(Fourier)
    torch.manual_seed(6)
    state = torch.random.get_rng_state()
    second = ModuleModel(Fourier)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.constants()["frequencies"], second.constants()["frequencies"])
    assert not torch.equal(first.initial(0), first.initial(1))


def trained_by_pytorch(learner, module, round, replica, client):
    """One client's training as a plain PyTorch loop, on the batches and dropout masks of the simulation."""
    counter = torch.tensor([(round * 3 + client) * STEPS])
    row, chosen = torch.tensor([replica]), torch.tensor([client])
    indices, mask = draw_samples(learner.data, learner.sampling, learner.batch_key[row], row, chosen, counter, STEPS)
    optimiser = torch.optim.SGD(module.parameters(), RATE)
    for step in range(STEPS):
        batch = indices[0, step][mask[0, step]]
        images = learner.data.images[batch].permute(0, 3, 1, 2) / 255
        torch.manual_seed(int(bits(learner.layer_key[row], counter + step)))
        loss = nn.functional.cross_entropy(module(images), learner.data.targets[batch].argmax(1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return module.state_dict()


def test_rounds_with_batch_normalisation_and_dropout_are_those_of_pytorch():
    """Padded batches, late clients: parameters and running statistics are averaged, weighted by data size."""
    learner = federation(Forest, (3, 9))
    globals_ = [learner.model.tensors(weights) for weights in learner.weights.clone()]
    client = np.array([[[0, 1, 2], [2, -1, 0]], [[1, 0, 2], [2, 1, 0]]])
    punctual = np.array([[[True, True, True], [True, False, True]], [[True, False, True], [False, True, True]]])
    for t in range(2):
        for r in range(2):
            chosen = client[t, r][punctual[t, r]]
            shares = learner.sizes[r, chosen] / learner.sizes[r, chosen].sum()
            updates = []
            for i in chosen:
                module = Forest()
                module.load_state_dict(globals_[r])
                updates.append(trained_by_pytorch(learner, module.train(), t, r, int(i)))
            globals_[r] = {
                name: sum(float(p) * update[name].double() for p, update in zip(shares, updates, strict=True))
                for name in globals_[r]
            }
        learner.play(t, client[t], punctual[t])
    for r in range(2):
        for name, tensor in learner.model.tensors(learner.weights[r]).items():
            torch.testing.assert_close(tensor.double(), globals_[r][name], rtol=1e-3, atol=1e-4)
        assert int(learner.model.tensors(learner.weights[r])["head.2.num_batches_tracked"]) == 2 * STEPS
        module = Forest()
        module.load_state_dict(learner.model.tensors(learner.weights[r]))
        with torch.no_grad():
            scores = module.eval()(learner.test_images.permute(0, 3, 1, 2) / 255)
        assert learner.evaluate().loss[r] == pytest.approx(
            float(nn.functional.cross_entropy(scores, learner.test_labels)), rel=1e-4
        )


def test_a_replica_draws_its_own_dropout_masks():
    """Seed 7 alone and among others: the same weights, running statistics and accuracy."""
    client, punctual = np.array([[0, 2, 1]]), np.array([[True, True, False]])
    alone, together = federation(Forest, (7,)), federation(Forest, (3, 7, 9))
    state = torch.random.get_rng_state()
    for t in range(4):
        alone.play(t, client, punctual)
        together.play(t, client.repeat(3, axis=0), punctual.repeat(3, axis=0))
    assert torch.equal(alone.weights[0], together.weights[1])
    assert alone.evaluate().loss[0] == together.evaluate().loss[1]
    assert torch.equal(torch.random.get_rng_state(), state)  # nothing draws from PyTorch's global generator
    again = federation(Forest, (7,))
    for t in range(4):
        again.play(t, client, punctual)
    assert torch.equal(alone.weights, again.weights)


def test_places_without_a_record_do_not_enter_batch_statistics():
    model = checked_module(lambda: nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10)), SHAPE, 10,
                           per_record=False)  # fmt: skip
    x, labels = records(5)
    targets, seeds = nn.functional.one_hot(labels, 10).float(), torch.zeros(1, dtype=torch.int64)
    padded = torch.cat([x, torch.full((3, 8, 8, 1), 9.0)])
    mask = (torch.arange(8) < 5)[None]
    alone, among = model.initial(0)[None], model.initial(0)[None]
    model.descend(alone, Batch(x[None], targets[None], seeds=seeds), None, torch.full((1, 5), 0.1))
    more = torch.cat([targets, targets[:3]])
    model.descend(among, Batch(padded[None], more[None], mask=mask, seeds=seeds), None, 0.1 * mask)
    assert torch.equal(alone, among)
    named = model.tensors(alone[0])
    assert float(named["0.running_mean"]) == pytest.approx(0.1 * float(x.mean()), rel=1e-5)
    assert int(named["0.num_batches_tracked"]) == 1


def test_batch_normalisation_without_running_statistics_is_tested_in_equal_batches():
    """Its scores depend on the test batch, which must not follow from memory or the number of replicas."""
    model = checked_module(
        with_layer(lambda: nn.BatchNorm2d(4, track_running_stats=False)), SHAPE, 10, per_record=False
    )
    assert model.test_batch == TEST_BATCH
    x, labels = records(2 * TEST_BATCH + 1)
    weights = torch.stack([model.initial(seed) for seed in range(3)])
    much, little, alone = (
        evaluate(model, w, x, labels, m) for w, m in ((weights, 1e9), (weights, 1.0), (weights[1:2], 1e9))
    )
    assert torch.equal(much[1], little[1])
    assert much[1][1] == alone[1][0]


def test_layers_keep_their_modes_and_frozen_statistics():
    model = checked_module(HalfFrozen, SHAPE, 10, per_record=False)
    model.logits(model.initial(0)[None], records(3)[0][None])
    assert model.module.training
    assert not model.module.norm.training
    learner = federation(HalfFrozen, (0,))
    learner.play(0, np.array([[0, 1, 2]]), np.ones((1, 3), bool))
    named = learner.model.tensors(learner.weights[0])
    assert (float(named["norm.running_mean"]), int(named["norm.num_batches_tracked"])) == (0.0, 0)


def test_modules_that_mix_records_by_themselves_train_on_whole_batches():
    model = checked_module(Centred, SHAPE, 10, per_record=False)
    assert model.whole_batch
    x, labels = records(4)
    targets = nn.functional.one_hot(labels, 10).float()
    weights = model.initial(0)[None]
    model.descend(
        weights, Batch(x[None], targets[None], seeds=torch.zeros(1, dtype=torch.int64)), None, torch.ones(1, 4)
    )
    module = Centred()
    module.load_state_dict(model.tensors(model.initial(0)))
    nn.functional.cross_entropy(module(x.permute(0, 3, 1, 2)), targets, reduction="sum").backward()
    torch.testing.assert_close(weights[0, :640].view(10, 64), -module.out.weight.grad, rtol=1e-4, atol=1e-6)


def test_a_batch_that_is_too_small_is_named():
    with pytest.raises(
        InputError, match=r"at least 2 records in a batch, but client 1 has a batch of 1: raise learning"
    ):
        federation(Forest, (0,), np.array([4, 1, 4]))
    federation(with_layer(lambda: nn.BatchNorm2d(4)), (0,), np.array([1, 1, 1]))  # many values from one record


def test_a_model_without_single_gradients_is_not_clipped():
    learner = federation(Forest, (0,))
    with pytest.raises(ValueError, match="clipping needs a model with gradients of single records"):
        federation(Forest, (0,), clip_norm=1.0)
    batch = Batch(torch.zeros(1, 1, 8, 8, 1), torch.eye(10)[None, :1])
    with pytest.raises(ValueError, match="without clipping"):
        learner.model.descend(learner.weights, batch, 1.0, torch.ones(1, 1))


def test_a_resumed_run_keeps_running_statistics(here, tmp_path):
    values = {"learning.model": "test_module_layers:LargeForest", "privacy.mechanism": "none", "rounds": 4,
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


def test_the_command_line_names_layer_and_remedy(here, tmp_path):
    words = ["run", "--set", "learning.model=test_module_layers:LargeForest", "--rounds", "2", "--quiet", "--out"]
    refused = fedlane(*words, "a", cwd=tmp_path, code=2)
    assert refused.stderr.startswith("fedlane: layer 'features.1' (BatchNorm2d) mixes the records of a batch")
    fedlane(*words, "b", "--set", "privacy.mechanism=none", cwd=tmp_path, code=0)
    assert (tmp_path / "b" / "model.safetensors").exists()
