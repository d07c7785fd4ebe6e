"""The fused GPU kernels against PyTorch: these tests need a GPU (benchmarks/README.md says how they are run)."""

import pytest
import torch

from fedlane.learning import fused
from fedlane.learning.counter_rng import box_muller
from fedlane.learning.model_interface import Batch
from fedlane.learning.models import make_model
from support.tensors import assert_close

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and fused.HAS_TRITON),
    reason="needs a GPU and Triton, which comes with PyTorch for CUDA",
)


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def source():
    return torch.Generator("cuda").manual_seed(1)


def relative_error(result, expected):
    return float((result - expected).norm() / expected.norm())


def keys(count, source):
    return torch.randint(-(2**62), 2**62, (count,), generator=source, device="cuda")


@pytest.mark.parametrize("size", [1, 2, 2501, 50_890])
def test_a_step_is_finished_with_the_numbers_of_box_muller(size, source):
    from fedlane.learning.fused.noise import finish_step_

    weights, move = torch.randn(2, 3, size, generator=source, device="cuda")
    key, counter = keys(3, source), torch.tensor([0, 5, 10**7], device="cuda")
    deviation = torch.tensor([0.0, 1.0, 2.0], device="cuda")
    expected = weights + move + deviation[:, None] * box_muller(key, counter, size)
    finish_step_(weights, move, key, counter, deviation)
    assert_close(weights, expected, rtol=1e-4, atol=1e-5)
    assert not move.any()


def test_keys_and_deviations_may_be_views(source):
    """One key for all rows, as the audit has: the kernel must not read beyond it."""
    from fedlane.learning.fused.noise import finish_step_

    weights, move = torch.zeros(2, 3, 2501, device="cuda")
    key, counter = keys(1, source).expand(3), torch.arange(6, device="cuda")[::2]
    expected = box_muller(key, counter, 2501)
    finish_step_(weights, move, key, counter, torch.ones(1, device="cuda").expand(3))
    assert_close(weights, expected, rtol=1e-4, atol=1e-5)


def test_noise_is_normal(source):
    """Mean, variance, and shares beyond 1 to 5 sigma of 40 million numbers, within 5 standard errors."""
    from fedlane.learning.fused.noise import finish_step_

    numbers = torch.zeros(8, 5_000_000, device="cuda")
    counter = torch.arange(8, device="cuda")
    finish_step_(numbers, torch.zeros_like(numbers), keys(8, source), counter, torch.ones(8, device="cuda"))
    count = numbers.numel()
    assert abs(float(numbers.double().mean())) < 5 / count**0.5
    assert abs(float(numbers.double().var()) - 1) < 5 * (2 / count) ** 0.5
    normal = torch.distributions.Normal(0.0, 1.0)
    for sigmas in range(1, 6):
        share = 2 * float(normal.cdf(torch.tensor(-float(sigmas), dtype=torch.float64)))
        seen = float((numbers.abs() > sigmas).double().mean())
        assert abs(seen - share) < 5 * (share / count) ** 0.5, sigmas


def test_averages_skip_late_uploads_and_keep_models_without_uploads(source):
    from fedlane.learning.fused.noise import average_

    models, size = torch.randn(6, 2501, generator=source, device="cuda"), 2501
    models[1] = float("nan")
    weights = torch.randn(2, size, generator=source, device="cuda")
    share = torch.tensor([[0.4, 0.0, 0.6], [0.0, 0.0, 0.0]], device="cuda")
    key, round, deviation = keys(2, source), torch.tensor(7, device="cuda"), torch.tensor([0.5, 0.5], device="cuda")
    expected = weights.clone()
    expected[0] = 0.4 * models[0] + 0.6 * models[2] + 0.5 * box_muller(key, round, size)[0]
    average_(weights, models, share, key, round, deviation, noisy=True)
    assert_close(weights, expected, rtol=1e-4, atol=1e-5)


def problem(name, shape, groups, places, source):
    """Weights, a batch with rows of different lengths, and factors."""
    model = make_model(name, shape, 10)
    weights = torch.stack([model.initial(seed) for seed in range(groups)]).cuda()
    counts = torch.randint(1, places + 1, (groups,), generator=source, device="cuda")
    counts[0], counts[-1] = 0, places
    mask = torch.arange(places, device="cuda") < counts[:, None]
    x = torch.rand(groups, places, shape[1], shape[2], shape[0], generator=source, device="cuda")
    x = x * mask[:, :, None, None, None]
    labels = torch.randint(0, 10, (groups, places), generator=source, device="cuda")
    targets = torch.nn.functional.one_hot(labels, 10).float() * mask[..., None]
    squares = x.flatten(2).square().sum(2)
    scale = torch.rand(groups, places, generator=source, device="cuda") * mask
    return model, weights, Batch(x, targets, squares, counts), scale


def steps(model, weights, batch, clip_norm, scale, monkeypatch):
    """The change that the fused kernels make, and that PyTorch's operations make."""
    changes = []
    for usable in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(fused, "usable", lambda tensor, usable=usable: usable)
            change = torch.zeros_like(weights)
            model.descend(weights, batch, clip_norm, scale, change)
            changes.append(change)
    return changes


CASES = [
    ("mlp", (1, 6, 6)),
    ("mlp", (1, 28, 28)),
    ("mlp", (3, 32, 32)),
    ("cnn", (3, 9, 8)),
    ("cnn", (1, 28, 28)),
    ("cnn", (3, 32, 32)),
]


@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_steps_equal_those_of_pytorch(name, shape, clip_norm, source, monkeypatch):
    model, weights, batch, scale = problem(name, shape, 5, 40, source)
    result, expected = steps(model, weights, batch, clip_norm, scale, monkeypatch)
    assert relative_error(result, expected) < 1e-5
    assert not result[0].any()  # a row without samples


@pytest.mark.parametrize(("name", "shape"), CASES[1:])
def test_lower_precision_stays_close(name, shape, source, monkeypatch):
    model, weights, batch, scale = problem(name, shape, 5, 40, source)
    _, expected = steps(model, weights, batch, 0.5, scale, monkeypatch)
    torch.set_float32_matmul_precision("high")
    result, _ = steps(model, weights, batch, 0.5, scale, monkeypatch)
    assert relative_error(result, expected) < (0.1 if name == "mlp" else 0.15)


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_the_norm_that_was_measured_is_that_of_what_is_added(precision, source):
    """One sample per row: norms and sums make the same tiles, for weights of very different sizes."""
    from fedlane.learning.architectures import Convolution
    from fedlane.learning.fused import convolution

    torch.set_float32_matmul_precision(precision)
    number = torch.float32 if precision == "highest" else torch.bfloat16
    for layer in (Convolution(32, 32, 3, 64), Convolution(16, 16, 64, 128), Convolution(8, 8, 128, 256)):
        x = torch.randn(64, 1, layer.height, layer.width, layer.inputs, generator=source, device="cuda")
        gradient = torch.randn(64, 1, layer.height, layer.width, layer.outputs, generator=source, device="cuda")
        x, gradient = (
            (x * 10.0 ** torch.arange(-32, 32, device="cuda").div(4).view(-1, 1, 1, 1, 1)).to(number),
            gradient.to(number),
        )
        x[:, :, 1::2] = -x[:, :, ::2]  # cancellation between rows of pixels
        counts, ones = torch.ones(64, dtype=torch.int64, device="cuda"), torch.ones(64, 1, device="cuda")
        squares = convolution.squared_norms(layer, x, gradient, counts, "ieee")
        added = convolution.weighted_sum(layer, x, gradient, counts, ones, "ieee").double().flatten(1).square().sum(1)
        assert_close(squares[:, 0].double(), added, rtol=1e-5, atol=0)


def test_records_are_read_in_place(source):
    """The same step from bytes in the data set and from gathered inputs."""
    model = make_model("mlp", (1, 28, 28), 10)
    weights = torch.stack([model.initial(seed) for seed in range(3)]).cuda()
    images = torch.randint(0, 256, (500, 784), generator=source, device="cuda", dtype=torch.uint8)
    targets = torch.eye(10, device="cuda")[torch.arange(500, device="cuda") % 10]
    records = torch.randint(0, 500, (3, 40), generator=source, device="cuda")
    counts, scale = torch.tensor([40, 7, 33], device="cuda"), torch.ones(3, 40, device="cuda")
    inputs = images.float() / 255
    squares = inputs.square().sum(1)
    in_place, gathered = torch.zeros_like(weights), torch.zeros_like(weights)
    model.descend(weights, Batch(images, targets, squares, counts, records), 0.5, scale, in_place)
    model.descend(weights, Batch(inputs[records], targets[records], squares[records], counts), 0.5, scale, gathered)
    assert relative_error(in_place, gathered) < 1e-6
