"""A hostile server against clipping: the paths in use hold, and the search breaks the code that they replaced."""

import pytest
import torch

from fedlane.learning import adversary, layers
from fedlane.learning.adversary import (
    batched_sum,
    batched_sum_on,
    hostile_records,
    largest_contribution,
    largest_difference,
    strict_sum,
)
from fedlane.learning.architectures import Convolution
from fedlane.learning.clipping import clipping_slack
from fedlane.learning.layered_model import softmax
from fedlane.learning.local import TrainingBatch, train_locally
from fedlane.learning.models import ModuleModel, make_model
from fedlane.validate import LARGEST_WEIGHT
from support.client_records import one_client
from support.tensors import assert_close


class Net(torch.nn.Module):
    """A user's module."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 16), torch.nn.Linear(16, 10)

    def forward(self, x):
        return self.last(self.first(x.flatten(1)).relu())


class ConvolutionalNet(torch.nn.Module):
    """A user's module with a convolution and pooling."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Linear(4 * 16, 10)

    def forward(self, x):
        return self.last(torch.nn.functional.max_pool2d(self.first(x).relu(), 2).flatten(1))


CASES = {
    "softmax": (lambda: make_model("softmax", (1, 28, 28), 10), (28, 28, 1), 20),
    "mlp": (lambda: make_model("mlp", (1, 28, 28), 10), (28, 28, 1), 20),
    "cnn": (lambda: make_model("cnn", (1, 32, 32), 10), (32, 32, 1), 4),
    "small cnn": (lambda: make_model("cnn", (3, 8, 8), 10), (8, 8, 3), 8),
    "module": (lambda: ModuleModel(Net), (8, 8, 1), 8),
    "convolutional module": (lambda: ModuleModel(ConvolutionalNet), (8, 8, 1), 8),
}

pytestmark = pytest.mark.usefixtures("one_thread")
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_weights_make_a_real_client_exceed_the_clip_norm(name):
    make, shape, climbs = CASES[name]
    model, (x, targets) = make(), hostile_records(shape, 10, copies=1 if name == "cnn" else 3)
    one = largest_contribution(strict_sum, model, x[-1:], targets[-1:], 1.0, climbs)
    joined = largest_difference(strict_sum, model, x, targets, 1.0, climbs)
    for finding in (one, joined):
        assert finding.tried >= 17
        assert 0.5 < finding.ratio <= 1.0, finding.attack


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_weights_make_a_simulated_contribution_exceed_the_derived_slack(name):
    make, shape, climbs = CASES[name]
    model, (x, targets) = make(), hostile_records(shape, 10, copies=1)
    finding = largest_contribution(batched_sum, model, x, targets, 1.0, climbs)
    assert 0.5 < finding.ratio <= 1 + clipping_slack(model, 1), finding.attack


@NEEDS_GPU
@pytest.mark.parametrize("name", ["softmax", "mlp", "cnn"])
def test_on_a_gpu_contributions_stay_within_the_assumed_slack(name):
    torch.set_float32_matmul_precision("high")
    make, shape, climbs = CASES[name]
    model, (x, targets) = make(), hostile_records(shape, 10, copies=1)
    finding = largest_contribution(batched_sum_on(torch.device("cuda")), model, x, targets, 1.0, climbs)
    assert 0.5 < finding.ratio <= 1 + clipping_slack(model, 1, "tf32"), finding.attack


def ghost_sum(model, weights, x, targets, clip_norm):
    """What FedLane did before: a convolution's norm from Gram matrices, in float32, at least 0."""
    sums = torch.zeros(1, model.size)
    for k in range(len(x)):
        blocks, into = model._blocks(weights[None]), model._blocks(sums)
        passes, h = [], x[None, k : k + 1]
        for layer, block in zip(model.layers, blocks, strict=True):
            passes.append(layers.forward(layer, block, h, keep=True))
            h = passes[-1].outputs
        gradient, square = softmax(h).sub_(targets[None, k : k + 1]), torch.zeros(1, 1)
        for index in reversed(range(len(model.layers))):
            layer, results = model.layers[index], passes[index]
            gradient = layers.backward(layer, blocks[index], results, gradient, first=index == 0)
            if isinstance(layer, Convolution):
                a, g = results.inputs[0], results.gradient[0]
                square += ((a @ a.T) * (g @ g.T)).sum().clamp(min=0) + g.sum(0).square().sum()
            else:
                square += layers.squared_norms(layer, results)
        factor = torch.where(torch.isfinite(square), clip_norm / square.sqrt().clamp(min=clip_norm), 0.0)
        if torch.isfinite(square):
            for layer, target, results in zip(model.layers, into, passes, strict=True):
                layers.descend(layer, target, results, factor)
    return sums[0].double()


@pytest.mark.slow
def test_the_search_breaks_norms_from_gram_matrices():
    make, shape, _ = CASES["cnn"]
    model, (x, targets) = make(), hostile_records(shape, 10, copies=1)
    finding = largest_contribution(ghost_sum, model, x[:1], targets[:1], 1.0, climbs=0)
    assert finding.ratio > 100
    assert float(finding.weights.abs().max()) <= LARGEST_WEIGHT


def width_dependent_sum(model, weights, x, targets, clip_norm):
    """A batched product whose order of summation depends on the width of the batch, as that of many libraries does."""
    first, bias, second, out_bias = model.tensors(weights).values()
    order = torch.arange(first.shape[1]) if len(x) < 4 else torch.arange(first.shape[1]).flip(0)
    hidden = torch.zeros(len(x), len(first))
    for pixel in order.tolist():
        hidden += x.flatten(1)[:, pixel, None] * first[:, pixel]
    active = (hidden + bias).relu()
    error = torch.softmax(active @ second.T + out_bias, 1) - targets
    back = (error @ second) * (active > 0)
    parts = back[:, :, None] * x.flatten(1)[:, None], back, error[:, :, None] * active[:, None], error
    gradients = torch.cat([part.flatten(1) for part in parts], 1).double()
    return (gradients * (clip_norm / gradients.norm(dim=1).clamp(min=clip_norm))[:, None]).sum(0)


@pytest.mark.slow
def test_the_search_breaks_batched_products_whose_rounding_depends_on_the_batch():
    """Each contribution is clipped correctly, but three equal records change when a fourth one joins."""
    model, (x, targets) = make_model("mlp", (1, 8, 8), 10), hostile_records((8, 8, 1), 10, copies=3)
    one = largest_contribution(width_dependent_sum, model, x[-2:], targets[-2:], 1.0, climbs=0)
    assert one.ratio < 1 + 1e-6
    joined = largest_difference(width_dependent_sum, model, x, targets, 1.0, climbs=8)
    assert joined.ratio > 2, joined
    assert largest_difference(strict_sum, model, x, targets, 1.0, climbs=8).ratio <= 1.0


PATHS = ["compiled", "torch", pytest.param("cuda", marks=NEEDS_GPU)]
"""Implementations of a step: compiled on a CPU, PyTorch on a CPU, PyTorch on a GPU."""


@pytest.fixture(params=PATHS)
def device(request, monkeypatch):
    """The device of a path, which is in use during the test."""
    from fedlane.learning import layered_model

    if request.param != "compiled":
        monkeypatch.setattr(layered_model, "mlp_tail", None)
    return torch.device("cuda" if request.param == "cuda" else "cpu")


def padded_data(record_0, device):
    x = torch.rand(4, 4, 4, 1, generator=torch.Generator().manual_seed(3))
    x[0] = record_0
    return one_client(x, torch.eye(10)[:4], device)


def one_step(model, weights, data, indices, mask):
    """Train weights (1, d) in place for one step on the given records of one client."""
    tensors = torch.tensor([[indices]]), torch.tensor([[mask]]), torch.ones(1), torch.zeros(1)
    rows = TrainingBatch(*(tensor.to(weights.device) for tensor in tensors))
    with torch.no_grad():
        train_locally(model, weights, data, rows, 0.1, 1.0)
    return weights


def step_with_record_0_as_padding(model, weights, data):
    """What FedLane did before: padding holds record 0, with a factor of 0."""
    x, mask = data.images[[2, 0, 0]].flatten(1), torch.tensor([1.0, 0.0, 0.0])
    matrix, bias = model.tensors(weights[0]).values()
    gradient = torch.softmax(x @ matrix.T + bias, 1) - data.targets[[2, 0, 0]]
    weights[:, :160] -= (mask[:, None] * gradient).T.matmul(x).flatten()
    return weights


@pytest.mark.parametrize("name", ["softmax", "mlp"])
@pytest.mark.parametrize("record_0", [1e36, float("inf"), float("nan")])
def test_padding_holds_no_record(name, record_0, device):
    """A record that is not in the sample changes nothing, whatever it holds; with record 0 as padding it did."""
    model = make_model(name, (1, 4, 4), 10)
    weights = model.initial(0)[None].to(device) * 100
    results = [
        one_step(model, weights.clone(), padded_data(value, device), [2, 0, 0], [True, False, False])
        for value in (record_0, 0.0)
    ]
    assert torch.equal(*results)
    assert torch.isfinite(results[0]).all()
    if name == "softmax":
        old = step_with_record_0_as_padding(model, weights.cpu(), padded_data(record_0, "cpu"))
        assert not torch.isfinite(old).all()


@pytest.mark.parametrize("name", ["softmax", "mlp", "small cnn", "module"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_sample_that_overflows_is_dropped_in_every_position(name, place, device):
    make, shape, _ = CASES[name]
    model = make()
    x, targets = (tensor.to(device) for tensor in hostile_records(shape, 10, copies=2))
    weights = model.initial(0).to(device) * 10
    x[place] = 1e36
    kept = [k for k in range(3) if k != place]
    total = batched_sum(model, weights, x, targets, 1.0)
    assert torch.isfinite(total).all()
    rest = batched_sum(model, weights, x[kept], targets[kept], 1.0)
    assert_close(total, rest, rtol=1e-4, atol=1e-5 if device.type == "cpu" else 2e-3)  # TF32


@pytest.mark.slow  # torch.func imports a compiler
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("value", [1e36, 3e38])
def test_torch_func_drops_a_sample_that_overflows_as_well(place, value):
    """A module with a layer that has no fast path; the sum is that of the other two samples."""
    model, (x, targets) = ModuleModel(Net), hostile_records((8, 8, 1), 10, copies=2)
    model.slow_reason = "a layer has no fast path"
    weights = model.initial(0) * 10
    x[place] = value
    kept = [k for k in range(3) if k != place]
    total = batched_sum(model, weights, x[:3], targets[:3], 1.0)
    assert torch.isfinite(total).all()
    assert_close(total, batched_sum(model, weights, x[kept], targets[kept], 1.0), rtol=1e-4, atol=1e-5)


def test_a_null_sample_may_overflow_as_well(device):
    """Biases that overflow on any input: padding that is computed must not reach the result either."""
    model = make_model("cnn", (3, 8, 8), 10)
    weights = torch.full((1, model.size), 3e37, device=device)
    one_step(
        model,
        weights,
        one_client(torch.rand(2, 8, 8, 3), torch.eye(10)[:2], device),
        indices=[1, 0],
        mask=[True, False],
    )
    assert bool((weights == 3e37).all())


def test_weights_stay_within_the_range_that_clients_accept():
    for make, shape, _ in CASES.values():
        model, (x, _) = make(), hostile_records(shape, 10, copies=2)
        names = [name for name, _ in adversary.hostile_weights(model, x)]
        assert len(names) == len(set(names)) >= 17
        for _, weights in adversary.hostile_weights(model, x):
            assert weights.shape == (model.size,)
            assert torch.isfinite(weights).all()


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_the_slack_grows_with_the_batch_and_the_model(precision):
    small, large = make_model("softmax", (1, 8, 8), 10), make_model("cnn", (1, 32, 32), 10)
    slack = [clipping_slack(small, batch, precision) for batch in (1, 10, 100)]
    assert 0 < slack[0] < slack[1] < slack[2] < clipping_slack(large, 100, precision)
    assert clipping_slack(small, 2**25, precision) == float("inf")
    with pytest.raises(ValueError, match="precision must be one of"):
        clipping_slack(small, 1, "float8")


def test_the_slack_covers_operands_rounded_to_the_product_s_format():
    """A dense layer's contribution with operands rounded up to TF32 or bfloat16, against the norm in float32."""
    model = make_model("softmax", (1, 28, 28), 10)
    source = torch.Generator().manual_seed(0)
    for precision, bits in (("tf32", 11), ("bfloat16", 8)):
        g, x = torch.rand(10, generator=source), torch.rand(784, generator=source)
        factor = 1.0 / torch.sqrt(g.square().sum() * (x.square().sum() + 1))

        def up(value, bits=bits):
            exponent = torch.floor(torch.log2(value))
            return torch.ceil(value / 2**exponent * 2 ** (bits - 1) - 0.5) * 2.0 ** (exponent - bits + 1)

        added = torch.outer(up(factor * g), torch.cat([up(x), torch.ones(1)])).double().norm()
        assert 0.99 < float(added) <= 1 + clipping_slack(model, 1, precision)
