"""Models against the slow reference; clipping; users' modules."""

import numpy as np
import pytest
import torch

from fedlane.learning import layers
from fedlane.learning.datasets import load_dataset
from fedlane.learning.federation import FederationBatch
from fedlane.learning.models import Batch, ModuleModel, make_model
from fedlane.records import MechanismSpec
from fedlane.validate import InputError
from support import slow
from support.tensors import assert_close

SHAPES = {"softmax": (1, 28, 28), "mlp": (1, 28, 28), "cnn": (3, 32, 32)}


def batch_of(shape, groups, samples, seed=0):
    torch.manual_seed(seed)
    planes, height, width = shape
    labels = torch.randint(10, (groups, samples))
    x = torch.rand(groups, samples, height, width, planes)
    return Batch(x, torch.nn.functional.one_hot(labels, 10).float()), labels


@pytest.mark.parametrize(
    ("name", "clip_norm"),
    [
        ("softmax", 1.0),
        ("softmax", None),
        ("mlp", 1.0),
        ("mlp", 30.0),
        ("mlp", None),
        ("cnn", 1.0),
        ("cnn", 20.0),
        ("cnn", None),
    ],
)
def test_a_step_agrees_with_the_slow_reference(name, clip_norm):
    model = make_model(name, SHAPES[name], 10)
    batch, labels = batch_of(SHAPES[name], 2, 4)
    weights = torch.stack([model.initial(seed) for seed in (3, 4)])
    scale = torch.rand(2, 4) * 0.1
    expected = weights.clone()
    for g in range(2):
        for s in range(4):
            gradient = slow.gradient(model.layers, weights[g], batch.x[g, s], int(labels[g, s]))
            expected[g] -= scale[g, s] * slow.clipped(gradient, clip_norm)
    moved = weights.clone()
    model.descend(moved, batch, clip_norm, scale)
    assert (expected - weights).abs().max() > 1e-3
    assert_close(moved, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("squares_given", [True, False])
def test_no_sample_moves_the_model_by_more_than_the_clip_norm(name, squares_given):
    """One sample at a time, so that the step's norm is the sample's contribution; some are clipped, some are not."""
    model = make_model(name, SHAPES[name], 10)
    batch, labels = batch_of(SHAPES[name], 1, 12, seed=1)
    weights = model.initial(0)[None]
    norms = [float(slow.gradient(model.layers, weights[0], batch.x[0, s], int(labels[0, s])).norm()) for s in range(12)]
    clip_norm = sorted(norms)[6]
    for s in range(12):
        squares = batch.x[:, s : s + 1].flatten(2).square().sum(2) if squares_given else None
        moved = weights.clone()
        model.descend(
            moved, Batch(batch.x[:, s : s + 1], batch.targets[:, s : s + 1], squares), clip_norm, torch.ones(1, 1)
        )
        length = float((moved - weights).norm())
        assert length <= clip_norm * (1 + 1e-5)
        assert length == pytest.approx(min(norms[s], clip_norm), rel=1e-4)


def cancelling_weights(model, imbalance):
    """Weights within +-1000 under which the last convolution's gradient is a sum of huge terms that nearly cancel.

    Constant activations of 1000 meet output gradients of +-1e9 at four inner positions; what is left of their sum, a
    share ``imbalance``, is far below the rounding error of a norm made from Gram matrices.
    """
    flat = torch.zeros(model.size)
    blocks = [
        layers.weights_of(layer, block[None])
        for layer, block in zip(model.layers, torch.split(flat, [layer.size for layer in model.layers]), strict=True)
    ]
    for (_, bias), constant in zip(blocks[:3], (1.0, 1000.0, 1.0), strict=True):
        bias[:] = constant
    (first, first_bias), (second, _), (third, _) = blocks[3:]
    places = first[0, 0].view(4, 4, 256)
    places[1, 1], places[1, 2], places[2, 1], places[2, 2] = 1000.0, -1000.0, -1000.0, 1000.0 * (1 - imbalance)
    first_bias[0, 0] = 1.0 + 1000.0 * 256 * imbalance
    second[0, 0, 0], third[0, 0, 0] = 1000.0, -1000.0
    return flat


@pytest.mark.parametrize("imbalance", [3e-5, 1e-4, 1.5e-4, 2e-4, 3e-4, 4e-4, 6e-4, 1e-3])
def test_no_weights_from_a_server_disable_clipping(imbalance):
    """With norms from Gram matrices, this record contributed up to 5,034 times the clip norm."""
    model = make_model("cnn", SHAPES["cnn"], 10)
    weights = cancelling_weights(model, imbalance)[None]
    assert weights.abs().max() <= 1000.0
    batch = Batch(torch.rand(1, 1, 32, 32, 3), torch.eye(10)[None, :1])
    moved = torch.zeros_like(weights)
    model.descend(weights, batch, 1.0, torch.ones(1, 1), moved)
    assert 0.5 < float(moved.double().norm()) <= 1.0 + 1e-5


def test_logits_agree_with_the_slow_reference():
    for name, shape in SHAPES.items():
        model = make_model(name, shape, 10)
        weights = torch.stack([model.initial(seed) for seed in (0, 1)])
        batch, _ = batch_of(shape, 1, 3)
        logits = model.logits(weights, batch.x)
        for g in range(2):
            for s in range(3):
                assert_close(logits[g, s], slow.scores(model.layers, weights[g], batch.x[0, s]), rtol=1e-4, atol=1e-5)


def test_images_of_odd_size():
    model = make_model("cnn", (1, 28, 28), 10)  # 28, 14, 7, 3: the last pooling drops a row
    batch, labels = batch_of((1, 28, 28), 1, 2)
    weights = model.initial(0)[None]
    moved = weights.clone()
    model.descend(moved, batch, 1.0, torch.ones(1, 2))
    expected = weights[0].clone()
    for s in range(2):
        expected -= slow.clipped(slow.gradient(model.layers, weights[0], batch.x[0, s], int(labels[0, s])), 1.0)
    assert_close(moved[0], expected, rtol=1e-4, atol=2e-6)


def test_initial_weights_are_he_normal_with_zero_biases():
    model = make_model("mlp", (1, 28, 28), 10)
    tensors = model.tensors(model.initial(0))
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        "layer0.weight": (64, 784),
        "layer0.bias": (64,),
        "layer1.weight": (10, 64),
        "layer1.bias": (10,),
    }
    assert float(tensors["layer0.weight"].std()) == pytest.approx((2 / 784) ** 0.5, rel=0.02)
    assert float(tensors["layer1.weight"].std()) == pytest.approx((2 / 64) ** 0.5, rel=0.1)
    assert not tensors["layer0.bias"].any()
    assert torch.equal(model.initial(5), model.initial(5))
    assert not torch.equal(model.initial(5), model.initial(6))


def test_saved_tensors_load_into_pytorch_s_own_layers():
    model = make_model("cnn", (3, 32, 32), 10)
    flat = model.initial(2)
    tensors = model.tensors(flat)
    image = torch.rand(32, 32, 3)
    h = image.permute(2, 0, 1)[None]
    for k in range(3):
        h = torch.nn.functional.conv2d(h, tensors[f"layer{k}.weight"], tensors[f"layer{k}.bias"], padding=1)
        h = torch.nn.functional.max_pool2d(h.relu(), 2)
    h = h.permute(0, 2, 3, 1).flatten(1)  # FedLane flattens (height, width, planes)
    for k in (3, 4, 5):
        h = torch.nn.functional.linear(h, tensors[f"layer{k}.weight"], tensors[f"layer{k}.bias"])
        h = h.relu() if k < 5 else h
    assert_close(h[0], slow.scores(model.layers, flat, image), rtol=1e-4, atol=1e-5)


class Net(torch.nn.Module):
    """The built-in MLP as a plain module."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(784, 64), torch.nn.Linear(64, 10)

    def forward(self, x):
        return self.second(self.first(x.flatten(1)).relu())


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.BatchNorm2d(1), torch.nn.Flatten(), torch.nn.Linear(784, 10))

    def forward(self, x):
        return self.layers(x)


class Wide(Net):
    def forward(self, x):
        return self.first(x.flatten(1))


class Forgetful(Net):
    def forward(self, x):
        return torch.nn.functional.dropout(super().forward(x))


class Empty(torch.nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :10]


class Broken(torch.nn.Module):
    def __init__(self):
        raise RuntimeError("no luck\ntoday")


def sequential():
    """A function that returns a module, instead of a class."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))


@pytest.mark.slow  # torch.func imports a compiler, which takes 3 s of processor time
@pytest.mark.parametrize("chunk", [2, 64])
@pytest.mark.parametrize("clip_norm", [1.0, None])
def test_a_user_s_module_moves_like_the_built_in_model(chunk, clip_norm):
    built_in, own = make_model("mlp", (1, 28, 28), 10), ModuleModel(Net, chunk)
    batch, _ = batch_of((1, 28, 28), 2, 5)
    weights = torch.stack([built_in.initial(seed) for seed in (0, 1)])
    scale = torch.rand(2, 5)
    a, b = weights.clone(), weights.clone()
    built_in.descend(a, batch, clip_norm, scale)
    own.descend(b, batch, clip_norm, scale)
    assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert_close(built_in.logits(a, batch.x), own.logits(a, batch.x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # torch.func imports a compiler, which takes 3 s of processor time
def test_a_module_by_import_path(monkeypatch):
    monkeypatch.syspath_prepend(str(__import__("pathlib").Path(__file__).parent))
    model = make_model("test_models:Net", (1, 28, 28), 10)
    assert model.size == 50_890
    assert not torch.equal(model.initial(0), model.initial(1))
    assert torch.equal(model.initial(1), model.initial(1))
    assert make_model("test_models:sequential", (1, 28, 28), 10).initial(0).shape == (7850,)
    for name, message in (
        ("test_models:Normed", r"layer 'layers.0' \(BatchNorm2d\) mixes the records"),
        ("test_models:Wide", "must return 10 scores"),
        ("test_models:slow", "cannot be created"),
        ("test_models:Nothing", "cannot be created"),
        ("test_models:Forgetful", r"has no per-sample gradients: it draws random numbers .*privacy.mechanism"),
        ("test_models:Empty", "has no parameters"),
        ("test_models:Broken", "cannot be created: no luck$"),
        (":Net", "cannot be created"),
        ("no_such_module:Net", "cannot be created"),
        ("mpl", "unknown model 'mpl'"),
    ):
        with pytest.raises(InputError, match=message):
            make_model(name, (1, 28, 28), 10)
    with pytest.raises(InputError, match="does not accept images of 3 x 32 x 32"):
        make_model("test_models:Net", (3, 32, 32), 10)


def saturated(model, scale_of_weights):
    """Weights so large that the softmax is exactly one-hot, and four images."""
    weights = model.initial(1)[None] * scale_of_weights
    images = torch.linspace(0.1, 1.0, 4 * 16).view(1, 4, 4, 4, 1)
    return weights, images


@pytest.mark.parametrize("name", ["softmax", "mlp"])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_masked_sample_without_a_gradient_changes_nothing(name, compiled, monkeypatch):
    """Its gradient underflows to 0: the quotient 0 / 0 must not reach the other samples."""
    if not compiled:
        monkeypatch.setattr("fedlane.learning.layered_model.mlp_tail", None)
    model = make_model(name, (1, 4, 4), 10)
    weights, images = saturated(model, 1e4)
    best = int(model.logits(weights, images)[0, 3].argmax())
    targets = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2, best]]), 10).float()
    batch = Batch(images, targets, images.flatten(2).square().sum(2))
    scale = torch.tensor([[0.1, 0.1, 0.1, 0.0]])
    moved, alone = torch.zeros_like(weights), torch.zeros_like(weights)
    model.descend(weights, batch, 1.0, scale, moved)
    assert torch.isfinite(moved).all()
    first = Batch(images[:, :3], targets[:, :3], batch.squares[:, :3])
    model.descend(weights, first, 1.0, scale[:, :3], alone)
    assert_close(moved, alone, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_sample_that_overflows_contributes_nothing(compiled, monkeypatch):
    """A server can choose weights that overflow on one record only: the upload must not reveal that record."""
    if not compiled:
        monkeypatch.setattr("fedlane.learning.layered_model.mlp_tail", None)
    model = make_model("mlp", (1, 4, 4), 10)
    weights = model.initial(1)[None].clone()
    weights[0, 5] = 3e38  # one pixel, which only the last sample has
    images = torch.rand(1, 4, 16, generator=torch.Generator().manual_seed(1))
    images[0, :3, 5], images[0, 3] = 0.0, 1.0
    images = images.view(1, 4, 4, 4, 1)
    targets = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2, 3]]), 10).float()
    squares = images.flatten(2).square().sum(2)
    scale = torch.full((1, 4), 0.1)
    moved, alone = torch.zeros_like(weights), torch.zeros_like(weights)
    model.descend(weights, Batch(images, targets, squares), 1.0, scale, moved)
    model.descend(weights, Batch(images[:, :3], targets[:, :3], squares[:, :3]), 1.0, scale[:, :3], alone)
    assert torch.isfinite(moved).all()
    assert_close(moved, alone, rtol=1e-5, atol=1e-7)


def test_a_module_never_trains_under_inference_mode(monkeypatch):
    """Under inference mode, torch.func.grad of some PyTorch versions returns zeros without a word."""
    modes = []
    real = ModuleModel.descend

    def descend(self, *arguments, **options):
        modes.append(torch.is_inference_mode_enabled())
        return real(self, *arguments, **options)

    monkeypatch.setattr(ModuleModel, "descend", descend)
    data = load_dataset("fashion-mnist-mini")
    counts = np.full((1, 2, 10), 10)
    spec = MechanismSpec.simple(counts.sum(axis=2), batch_size=4, local_iterations=1, clip_norm=1.0)
    model = ModuleModel(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)))
    FederationBatch(model, data, counts, [0], spec, learning_rate=0.1).play(0, np.array([[0]]), np.array([[True]]))
    assert modes == [False]
