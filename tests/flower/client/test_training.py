"""Private training of a user's model: noise, steps, and the names and types of the arrays."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedlane.flower.client.ledger_file import new_ledger, open_ledger
from fedlane.flower.client.training import LocalTrainer, PrivacyAccount, TrainingTerms, open_privacy_account
from fedlane.flower.client.weights import as_arrays, as_flat, as_stored, build_model, evaluate_arrays, first_arrays
from fedlane.learning.datasets import load_dataset
from fedlane.records import LossQuery, MechanismSpec
from fedlane.validate import InputError

TERMS = {
    "learning_rate": 0.1,
    "batch_size": 30,
    "local_iterations": 2,
    "clip_norm": 0.5,
    "epsilon": 8.0,
    "delta": 1e-5,
    "max_uploads": 3,
    "histogram_noise": 10.0,
    "least_noise": 0.5,
}


class Net(torch.nn.Module):
    """The built-in mlp as a user would write it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 64), torch.nn.Linear(64, 3)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.flatten(1))))


def records(size=90, planes=1, side=4):
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (size, planes, side, side), dtype=np.uint8), np.arange(size) % 3


def make_trainer(model, sent, data=None):
    inputs, labels = as_stored(*(data or records()), 3)
    return LocalTrainer.of(model, {name: array.numpy() for name, array in sent.items()}, inputs, labels, 3)


def account_with(spec):
    return PrivacyAccount(spec, None, ())


def tiny_noise(sampled=1.0, size=90):
    """Return a mechanism that uses every record in every step, with almost no noise."""
    return MechanismSpec.simple(
        np.array([[size]]), batch_size=int(size * sampled), local_iterations=2, clip_norm=0.5, step_noise=1e-9,
        sampling="poisson",
    )  # fmt: skip


def flat(record):
    return np.concatenate([array.numpy().ravel() for array in record.values()])


@pytest.mark.slow  # it calibrates noise for samples
def test_the_noise_of_each_step_is_z_c_eta_over_b(tmp_path):
    """With all pixels 0, the weights of a softmax model have no gradient: they move by the noise alone."""
    path = new_ledger(tmp_path / "l", "a")
    side = 60
    data = np.zeros((300, 1, side, side), np.uint8), np.arange(300) % 3
    sent = first_arrays("softmax", (1, side, side), 3)
    model = build_model("softmax", (1, side, side), 3)
    with open_ledger(path, "a") as ledger:
        account = open_privacy_account(ledger, "data", TrainingTerms(**TERMS), np.array([100, 100, 100]))
        moves = []
        for _ in range(2):
            update = make_trainer(model, sent, data).train_privately(account, 0.1).arrays
            moves.append(update["layer0.weight"].numpy() - sent["layer0.weight"].numpy())
    z = account.spec.step_noise[0, 0]
    assert z > 0.5
    expected = z * 0.5 * 0.1 / 30 * 2**0.5
    count = 3 * side**2
    for move in moves:
        assert move.std() == pytest.approx(expected, rel=5 / np.sqrt(2 * count))
        assert abs(move.mean()) < 5 * expected / np.sqrt(count)
    # The noise comes from the operating system: two uploads are uncorrelated.
    assert abs(np.corrcoef(moves[0].ravel(), moves[1].ravel())[0, 1]) < 5 / np.sqrt(count)
    assert account.upload_noise * 0.1 * 0.5 == pytest.approx(expected)


@pytest.mark.slow
def test_records_are_poisson_sampled_at_the_accounted_rate(tmp_path):
    """Only one of 300 records has a white pixel: that pixel's weight moves as often as the record is sampled."""
    spec = tiny_noise(0.1, size=300)
    images = np.zeros((300, 1, 4, 4), np.uint8)
    images[17, 0, 2, 1] = 255
    model, sent = build_model("softmax", (1, 4, 4), 3), first_arrays("softmax", (1, 4, 4), 3)
    trainer = make_trainer(model, sent, (images, np.arange(300) % 3))
    before, moved = sent["layer0.weight"].numpy()[:, 9], 0
    for _ in range(400):
        after = trainer.train_privately(account_with(spec), 0.1).arrays["layer0.weight"].numpy()[:, 9]
        moved += bool(np.abs(after - before).max() > 1e-6)
    rate = 1 - 0.9**2
    assert abs(moved - 400 * rate) < 5 * np.sqrt(400 * rate * (1 - rate))


def test_a_user_module_trains_like_the_built_in_model():
    """With every record in every step and noise of 1e-9, both give the same update from the same weights."""
    built_in, module = build_model("mlp", (1, 4, 4), 3), build_model(Net, (1, 4, 4), 3)
    first = first_arrays("mlp", (1, 4, 4), 3)
    renamed = dict(zip(Net().state_dict(), first.values(), strict=True))
    expected = make_trainer(built_in, first).train_privately(account_with(tiny_noise()), 0.5).arrays
    update = make_trainer(module, ArrayRecord(renamed)).train_privately(account_with(tiny_noise()), 0.5).arrays
    assert list(update) == list(Net().state_dict())
    np.testing.assert_allclose(flat(expected), flat(update), atol=2e-6)
    assert np.abs(flat(expected) - flat(first)).max() > 1e-3


@pytest.mark.parametrize("kind", ["bytes", "floats"])
def test_a_clipped_step_equals_numpy(kind):
    """One step of a linear model on all records, with each gradient clipped to C."""
    images, labels = records(40)
    inputs = images if kind == "bytes" else (images / 255.0)
    sent = first_arrays("softmax", (1, 4, 4), 3)
    spec = MechanismSpec.simple(
        np.array([[40]]), batch_size=40, local_iterations=1, clip_norm=0.5, step_noise=1e-9, sampling="poisson"
    )
    update = (
        make_trainer(build_model("softmax", (1, 4, 4), 3), sent, (inputs, labels))
        .train_privately(account_with(spec), 0.3)
        .arrays
    )
    weights, bias = sent["layer0.weight"].numpy().astype(float), sent["layer0.bias"].numpy().astype(float)
    total = np.zeros((3, 17))
    for image, label in zip(images.reshape(40, -1) / 255.0, labels, strict=True):
        scores = np.exp(weights @ image + bias)
        gradient = np.outer(scores / scores.sum() - np.eye(3)[label], np.append(image, 1.0))
        total += gradient * min(1.0, 0.5 / np.linalg.norm(gradient))
    expected = np.hstack([weights, bias[:, None]]) - 0.3 / 40 * total
    np.testing.assert_allclose(update["layer0.weight"].numpy(), expected[:, :-1], atol=1e-5)
    np.testing.assert_allclose(update["layer0.bias"].numpy(), expected[:, -1], atol=1e-5)


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_updates_keep_the_order_and_types_of_the_arrays(kind):
    model = build_model("cnn", (3, 8, 8), 3)
    named = {name: array.numpy().astype(kind) for name, array in first_arrays("cnn", (3, 8, 8), 3).items()}
    backwards = dict(reversed(named.items()))
    weights = as_flat(model, backwards)
    np.testing.assert_array_equal(weights[0].numpy(), model.initial(0).numpy().astype(kind).astype(np.float32))
    back = as_arrays(model, weights[0], backwards)
    assert list(back) == list(backwards)
    for name, array in back.items():
        assert array.numpy().dtype == kind
        np.testing.assert_array_equal(array.numpy(), named[name])


def test_plain_training_learns():
    """Without privacy, 300 steps on the embedded Fashion-MNIST subset are far better than chance."""
    data = load_dataset("fashion-mnist-mini")
    images, labels = data.train.images.transpose(0, 3, 1, 2), data.train.labels
    model, sent = build_model("mlp", (1, 28, 28), 10), first_arrays("mlp", (1, 28, 28), 10)
    inputs, targets = as_stored(images, labels, 10)
    terms = TrainingTerms(**{**TERMS, "epsilon": None, "local_iterations": 300})
    named = {name: array.numpy() for name, array in sent.items()}
    update = LocalTrainer.of(model, named, inputs, targets, 10).train_plainly(terms).arrays
    test = data.test.images.transpose(0, 3, 1, 2), data.test.labels
    assert evaluate_arrays("mlp", sent, *test, 10)["accuracy"] < 0.3
    assert evaluate_arrays("mlp", update, *test, 10)["accuracy"] > 0.65


class Dropping(Net):
    def forward(self, x):
        return torch.dropout(super().forward(x), 0.5, True)


class Normed(Net):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.first.weight.requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "shape", "classes", "message"),
    [
        (Dropping, (1, 4, 4), 3, "Dropping has no per-sample gradients"),
        (Normed, (1, 4, 4), 3, r"layer 'norm' \(BatchNorm1d\) mixes .* epsilon=None"),
        (Frozen, (1, 4, 4), 3, "frozen parameters"),
        (Net, (1, 5, 5), 3, "Net does not accept images of 1 x 5 x 5"),
        (Net, (1, 4, 4), 4, "must return 4 scores"),
        ("mpl", (1, 4, 4), 3, "did you mean 'mlp'"),
        ("torch.nn:Identity", (16,), 3, "pass its class instead"),
    ],
)
def test_models_that_cannot_be_trained_privately_are_rejected(model, shape, classes, message):
    with pytest.raises(InputError, match=message):
        build_model(model, shape, classes)


def test_modules_may_take_inputs_other_than_images():
    make_module = lambda: torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))  # noqa: E731
    data = np.random.default_rng(0).normal(size=(50, 5)), np.arange(50) % 3
    spec = tiny_noise(size=50)
    sent = ArrayRecord(make_module().state_dict())
    update = make_trainer(build_model(make_module, (5,), 3), sent, data).train_privately(account_with(spec), 0.1).arrays
    assert np.abs(flat(update) - flat(sent)).max() > 1e-3


def test_a_module_receives_images_in_their_given_layout():
    """Images of two planes that are not square: FedLane's figures equal those of the module itself."""

    class Planes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Conv2d(2, 3, (2, 5))

        def forward(self, x):
            return self.layer(x).sum(dim=(2, 3))

    torch.manual_seed(0)
    module, images = Planes(), torch.rand(200, 2, 4, 6)
    scores = module(images).detach()
    labels = scores.argmax(1)
    figures = evaluate_arrays(Planes, ArrayRecord(module.state_dict()), images, labels, 3)
    assert figures["accuracy"] == 1
    assert figures["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(scores, labels)), rel=1e-5)


class Positions(Net):
    """A positional encoding and a mask as constants."""

    def __init__(self):
        super().__init__()
        self.register_buffer("encoding", torch.linspace(0, 1, 16) * 3.1)
        self.register_buffer("mask", torch.arange(16) % 5 > 0)

    def forward(self, x):
        return super().forward((x.flatten(1) + self.encoding) * self.mask)


class Norms(Net):
    """Batch normalisation and dropout."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = torch.nn.BatchNorm2d(1), torch.nn.Dropout(0.2)

    def forward(self, x):
        return super().forward(self.drop(self.norm(x)))


@pytest.mark.parametrize("whole", [True, False])
def test_constants_are_neither_taken_from_the_server_nor_trained(whole):
    """The server may begin with a state dict, which holds them, or with `first_arrays`, which does not."""
    first = ArrayRecord(Positions().state_dict()) if whole else first_arrays(Positions, (1, 4, 4), 3)
    assert ("encoding" in first) == whole
    model = build_model(Positions, (1, 4, 4), 3)
    update = make_trainer(model, first).train_privately(account_with(tiny_noise()), 0.5).arrays
    assert list(update) == list(first)
    for name in {"encoding", "mask"} & set(first):
        assert np.array_equal(update[name].numpy(), first[name].numpy())
        assert update[name].dtype == first[name].dtype
    assert np.abs(update["first.weight"].numpy() - first["first.weight"].numpy()).max() > 1e-3
    if whole:  # an average over clients is rounded; another constant is refused
        near = ArrayRecord({**first, "encoding": Array(first["encoding"].numpy() * np.float32(1 + 1e-7))})
        sent = make_trainer(model, near).train_privately(account_with(tiny_noise()), 0.5).arrays
        assert np.array_equal(sent["encoding"].numpy(), first["encoding"].numpy())
        other = ArrayRecord({**first, "encoding": Array(first["encoding"].numpy() + 0.1)})
        with pytest.raises(
            InputError, match="'encoding' differs from this client's constant buffer: begin with first_"
        ):
            make_trainer(model, other)
    images, labels = records(30)
    assert 0 < evaluate_arrays(Positions, update, images, labels, 3)["loss"] < 10


def test_without_privacy_batch_normalisation_and_dropout_train():
    with pytest.raises(InputError, match=r"layer 'norm' \(BatchNorm2d\)"):
        first_arrays(Norms, (1, 4, 4), 3)
    sent = first_arrays(Norms, (1, 4, 4), 3, private=False)
    assert set(sent) == set(Norms().state_dict())
    many = Array(np.array(123_456, np.int64))  # a counter above the largest weight
    sent = ArrayRecord({**sent, "norm.num_batches_tracked": many})
    model = build_model(Norms, (1, 4, 4), 3, per_record=False)
    update = make_trainer(model, sent).train_plainly(TrainingTerms(**{**TERMS, "epsilon": None})).arrays
    assert int(update["norm.num_batches_tracked"].numpy()) == 123_458
    mean = records()[0].mean() / 255
    # Two drawn batches: the standard error is about 2%; one step instead of two would give 47% less.
    assert float(update["norm.running_mean"].numpy()[0]) == pytest.approx(mean * (1 - 0.9**2), rel=0.15)
    assert np.abs(update["last.weight"].numpy() - sent["last.weight"].numpy()).max() > 1e-4
    module = Norms().eval()
    module.load_state_dict({name: torch.from_numpy(array.numpy()) for name, array in update.items()})
    images, labels = records(30)
    scores = module(torch.from_numpy(images) / 255).detach()
    expected = float(torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels)))
    assert evaluate_arrays(Norms, update, images, labels, 3)["loss"] == pytest.approx(expected, rel=1e-4)
    infinite = ArrayRecord({**sent, "norm.running_var": Array(np.array([np.inf], np.float32))})
    with pytest.raises(InputError, match="not finite"):
        make_trainer(model, infinite)


def test_reported_losses_are_divided_by_the_expected_and_not_by_the_drawn_number_of_records():
    """The size of a sample is private. Black images under a softmax model have a loss of ln 3 each; no noise."""
    query = LossQuery(4.0, 1e-9, np.full((1, 1), 1e-9))
    model, sent = build_model("softmax", (1, 4, 4), 3), first_arrays("softmax", (1, 4, 4), 3)
    trainer = make_trainer(model, sent, (np.zeros((300, 1, 4, 4), np.uint8), np.arange(300) % 3))
    account = account_with(replace(tiny_noise(0.1), loss_query=query))
    drawn = [trainer.train_privately(account, 0.1).losses.mean * 30 / np.log(3) for _ in range(8)]
    np.testing.assert_allclose(drawn, np.rint(drawn), atol=1e-4)
    assert len(set(np.rint(drawn))) > 1
