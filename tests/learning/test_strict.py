"""Strict training: a record's gradient depends on nothing else, contributions have norm at most C, sums are exact."""

import signal
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedlane.learning.adversary import hostile_records, hostile_weights, strict_sum
from fedlane.learning.local import train_locally
from fedlane.learning.loss_reports import loss_sums
from fedlane.learning.models import ModuleModel, make_model
from fedlane.learning.strict import ClippedSum, RecordGradients, one_thread, train_strictly
from fedlane.learning.system_random import _add_noise, system_rows
from fedlane.records import LossQuery, MechanismSpec
from support.client_records import one_client
from support.tensors import assert_close


class Net(torch.nn.Module):
    """A user's module with a convolution."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Linear(4 * 16, 10)

    def forward(self, x):
        return self.last(torch.nn.functional.max_pool2d(self.first(x).relu(), 2).flatten(1))


MODELS = {
    "softmax": lambda: make_model("softmax", (1, 8, 8), 10),
    "mlp": lambda: make_model("mlp", (1, 8, 8), 10),
    "cnn": lambda: make_model("cnn", (1, 8, 8), 10),
    "module": lambda: ModuleModel(Net),
}
EVERY_MODEL = [
    "softmax",
    "mlp",
    pytest.param("cnn", marks=pytest.mark.slow),
    pytest.param("module", marks=pytest.mark.slow),
]


def records(size, kind="floats", seed=0):
    source = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (size, 8, 8, 1), generator=source, dtype=torch.uint8)
    return images if kind == "bytes" else images / 255.0, torch.eye(10)[torch.arange(size) % 10]


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_a_record_s_gradient_depends_on_nothing_but_the_weights_and_the_record(name):
    """Bit for bit: whoever else is in the data set, at any position, whatever was computed before; hostile weights."""
    model = MODELS[name]()
    x, targets = records(7)
    checked = 0
    with torch.no_grad(), one_thread():
        for attack, weights in hostile_weights(model, x):
            alone = RecordGradients(model, one_client(x[3:4], targets[3:4]))
            alone.start(weights[None])
            expected = alone.negative_gradient(0).clone()
            for order in ([3, 0, 1, 2], [6, 5, 4, 3], [0, 3], [2, 3, 3, 1, 5, 6, 0]):
                among = RecordGradients(model, one_client(x[order], targets[order]))
                among.start(weights[None])
                for place, record in enumerate(order):
                    gradient = among.negative_gradient(place)
                    if record == 3:
                        assert torch.equal(gradient.view(torch.int32), expected.view(torch.int32)), attack
                        checked += 1
    assert checked >= 17 * 5


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_a_joining_record_adds_exactly_its_own_contribution(name):
    model = MODELS[name]()
    x, targets = hostile_records((8, 8, 1), 10, copies=5)
    for attack, weights in hostile_weights(model, x):
        sums = [
            strict_sum(model, weights, x[rows], targets[rows], 0.7) for rows in ([0, 1, 2, 3, 4], [5, 0, 1, 2, 3, 4])
        ]
        contribution = strict_sum(model, weights, x[5:], targets[5:], 0.7)
        difference = sums[1] - sums[0]  # exact, as all three are multiples of one unit
        unit = ClippedSum(1, 0.7, 6).unit
        assert float((difference - contribution).abs().max()) <= unit, attack  # the units of 1 and of 6 records differ
        assert float(difference.norm()) <= 0.7


@pytest.mark.parametrize("magnitude", [1e-44, 1e-38, 1e-20, 1e-3, 1.0, 1e10, 3e38])
@pytest.mark.parametrize("clip_norm", [1e-3, 1.0, 0.7])
def test_the_norm_of_a_contribution_is_at_most_the_clip_norm_in_exact_arithmetic(magnitude, clip_norm):
    source = torch.Generator().manual_seed(1)
    for size in (1, 7, 3000):
        gradient = magnitude * (2 * torch.rand(size, generator=source) - 1)
        total = ClippedSum(size, clip_norm, 600)
        total.add(gradient)
        added = total.take()
        exact = sum(Fraction(value) ** 2 for value in added.tolist())
        assert exact <= Fraction(clip_norm) ** 2
        expected = gradient.double() * min(1.0, clip_norm / float(gradient.double().norm()))
        assert float((added - expected).abs().max()) <= 1.001 * total.unit + 1e-11 * clip_norm


def test_the_sum_is_exact_in_any_order():
    """As many gradients as the data set may hold, all of one direction: no partial sum is rounded."""
    source, size, count = torch.Generator().manual_seed(2), 4, 1023
    gradients = torch.rand(count, size, generator=source)
    gradients[:, 0] = 10.0
    sums = []
    for order in (range(count), reversed(range(count)), torch.randperm(count, generator=source).tolist()):
        total = ClippedSum(size, 1.9, count)
        for k in order:
            total.add(gradients[k])
        sums.append(total.take())
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])
    exact = [Fraction(0)] * size
    for gradient in gradients:
        one = ClippedSum(size, 1.9, count)
        one.add(gradient)
        exact = [a + Fraction(b) for a, b in zip(exact, one.take().tolist(), strict=True)]
    assert [Fraction(value) for value in sums[0].tolist()] == exact


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 0.0])
def test_a_gradient_that_is_not_finite_contributes_nothing(value):
    total = ClippedSum(3, 1.0, 2)
    total.add(torch.tensor([1.0, value, 2.0]) if value else torch.zeros(3))
    assert not total.take().any()


def test_clip_norms_without_a_unit_are_refused():
    for clip_norm in (0.0, 1e-30, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="clip norm must be from"):
            ClippedSum(3, clip_norm, 2)


def mechanism(size, batch, **changes):
    values = {"batch_size": batch, "local_iterations": 3, "clip_norm": 0.5, "step_noise": 1e-9, "sampling": "poisson"}
    return MechanismSpec.simple(np.array([[size]]), **{**values, **changes})


@pytest.mark.parametrize("name", EVERY_MODEL)
@pytest.mark.parametrize("kind", ["bytes", "floats"])
def test_strict_training_is_the_training_that_simulations_do(name, kind):
    """Next to no noise: the same weights to float32 precision, for samples of different sizes."""
    model, (x, targets) = MODELS[name](), records(40, kind)
    data = one_client(x, targets)
    rows = system_rows(mechanism(40, 10), 40)
    first = model.initial(1)[None]
    strict, fast = first.clone(), first.clone()
    train_strictly(model, strict, data, rows, 0.3, 0.5)
    with torch.no_grad():
        train_locally(model, fast, data, rows, 0.3, 0.5)
    assert_close(strict, fast, rtol=1e-4, atol=1e-5)
    assert float((strict - first).abs().max()) > 1e-3


def test_the_noise_of_a_step_is_z_c_eta_over_b():
    """Empty samples: the weights move by noise alone."""
    model, (x, targets) = make_model("cnn", (1, 8, 8), 10), records(5)
    rows = replace(system_rows(mechanism(5, 5, step_noise=2.0, local_iterations=1), 5), mask=torch.zeros(1, 1, 5) > 0)
    weights = torch.zeros(1, model.size)
    train_strictly(model, weights, one_client(x, targets), rows, 0.3, 0.5)
    assert float(weights.std()) == pytest.approx(2.0 * 0.5 * 0.3 / 5, rel=5 / (2 * model.size) ** 0.5)


def loss_rows(size, **changes):
    """Every record in one step, without noise but with the settings of a release of losses."""
    spec = mechanism(size, size, local_iterations=1, step_noise=1.0)
    spec = replace(spec, loss_query=LossQuery(2.2, 1.25, np.array([[5 / 3]])))
    rows = replace(system_rows(spec, size), add_noise=lambda move, step, deviation: None, **changes)
    return spec.loss_query, rows


@pytest.mark.parametrize("name", EVERY_MODEL)
@pytest.mark.parametrize("kind", ["bytes", "floats"])
def test_strict_losses_are_those_that_simulations_report(name, kind):
    """Without noise, the sums over the first step's sample; some losses are clipped and some are not."""
    model, (x, targets) = MODELS[name](), records(40, kind)
    data, weights = one_client(x, targets), model.initial(1)[None]
    query, rows = loss_rows(40)
    released = train_strictly(model, weights.clone(), data, rows, 0.3, 0.5, query)
    expected = loss_sums(model, weights, data, rows, query)
    assert_close(released, expected, rtol=1e-5, atol=1e-5)
    unclipped = loss_sums(model, weights, data, rows, replace(query, clip=np.inf))
    assert 0 < float(expected[0, 0]) < float(unclipped[0, 0])


def test_the_noise_of_losses_and_of_the_step_that_pays_for_them():
    """Empty samples: 4,000 releases of noise alone have the deviations z_l sqrt(2) L and z_g C."""
    model, (x, targets) = make_model("softmax", (1, 8, 8), 10), records(5)
    spec = replace(mechanism(5, 5, step_noise=1.0), loss_query=LossQuery(2.2, 1.25, np.array([[5 / 3]])))
    deviations, normal = [], []

    def watched(move, step, deviation):
        deviations.append((tuple(move.shape), float(deviation)))
        normal.append(_add_noise(torch.zeros(1, 2000, dtype=torch.float64), step, deviation).std().item())

    rows = replace(system_rows(spec, 5), add_noise=watched)
    train_strictly(model, model.initial(0)[None], one_client(x, targets), rows, 0.3, 0.5, spec.loss_query)
    shapes, amounts = zip(*deviations, strict=True)
    assert shapes == ((1, 2), *[(1, model.size)] * 3)
    assert amounts == pytest.approx([1.25 * 2**0.5 * 2.2, 0.5 * 5 / 3, 0.5, 0.5])
    assert normal == pytest.approx(amounts, rel=5 / (2 * 2000) ** 0.5)
    exact = LossQuery(np.inf, 0.0, np.zeros((1, 1)))
    with pytest.raises(ValueError, match="losses need noise"):
        train_strictly(model, model.initial(0)[None], one_client(x, targets), rows, 0.3, 0.5, exact)


def choosy_scores(scores, error):
    """A module's scores that fail if the weights meet an input of 7."""

    def fail(flat, x):
        if x.numel() and float(torch.func.debug_unwrap(x).max()) == 7.0:
            raise error
        return scores(flat, x)

    return fail


@pytest.mark.parametrize("kind", [ValueError, MemoryError, SystemExit, KeyboardInterrupt, GeneratorExit, BaseException])
def test_a_record_on_which_a_module_fails_contributes_nothing(monkeypatch, caplog, kind):
    """A failed upload would tell the server that the record is there, and so would a process that ends."""
    (x, targets), model = records(5), ModuleModel(Net)
    monkeypatch.setattr(model, "_scores", choosy_scores(model._scores, kind("no sevens")))
    x[2] = 7.0
    rows = replace(system_rows(mechanism(5, 5, local_iterations=1), 5), indices=torch.arange(5)[None, None])
    rows = replace(rows, mask=torch.ones(1, 1, 5) > 0)
    weights, without = model.initial(0)[None], model.initial(0)[None]
    train_strictly(model, weights, one_client(x, targets), rows, 0.3, 0.5)
    assert "record 2 has no gradient" in caplog.text
    query, loss_batch = loss_rows(5)
    released = train_strictly(model, model.initial(0)[None], one_client(x, targets), loss_batch, 0.3, 0.5, query)
    assert "record 2 has no loss" in caplog.text
    others = replace(loss_batch, mask=loss_batch.indices != 2)
    expected = train_strictly(model, model.initial(0)[None], one_client(x, targets), others, 0.3, 0.5, query)
    assert torch.equal(released, expected)
    rows = replace(rows, mask=rows.indices != 2)
    train_strictly(model, without, one_client(x, targets), rows, 0.3, 0.5)
    assert_close(weights, without, rtol=0, atol=1e-8)


def pressing(scores, presses):
    """A module's scores that are computed while somebody presses Ctrl-C."""
    calls = []

    def press(flat, x):
        calls.append(1)
        if len(calls) == 1:
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
        return scores(flat, x)

    return press, calls


@pytest.fixture
def handled_ctrl_c():
    """Ctrl-C raises `KeyboardInterrupt`; a shell's background job, such as this test run, ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_training_after_the_record(monkeypatch, handled_ctrl_c, presses):
    """Unlike a `KeyboardInterrupt` of a user's module, it must not be taken for a record without a gradient."""
    (x, targets), model = records(5), ModuleModel(Net)
    press, calls = pressing(model._scores, presses)
    monkeypatch.setattr(model, "_scores", press)
    rows = replace(system_rows(mechanism(5, 5, local_iterations=1), 5), indices=torch.arange(5)[None, None])
    rows = replace(rows, mask=torch.ones(1, 1, 5) > 0)
    with pytest.raises(KeyboardInterrupt):
        train_strictly(model, model.initial(0)[None], one_client(x, targets), rows, 0.3, 0.5)
    assert len(calls) <= 2  # the gradient of one record may call the module more than once
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_strict_training_needs_noise_and_one_client():
    model, (x, targets) = make_model("softmax", (1, 8, 8), 10), records(5)
    rows = system_rows(mechanism(5, 5), 5)
    for weights, batch in (
        (torch.zeros(2, model.size), rows),
        (torch.zeros(1, model.size), replace(rows, add_noise=None)),
    ):
        with pytest.raises(ValueError, match="one client whose mechanism adds noise"):
            train_strictly(model, weights, one_client(x, targets), batch, 0.1, 1.0)


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("noise", [0.7, 1 / 3, 0.9])
@pytest.mark.parametrize("clip_norm", [0.1, 0.3, 1.1])
def test_no_deviation_of_noise_is_rounded_below_the_one_that_is_accounted(noise, clip_norm):
    """In exact arithmetic, above z C and L z_l sqrt(2) by half of the proof's margin 2^-40, and hardly more."""
    model, (x, targets) = make_model("softmax", (1, 8, 8), 10), records(5)
    query, deviations = LossQuery(2.2, 1.25, np.array([[5 / 3]])), []
    spec = replace(mechanism(5, 5, step_noise=noise, clip_norm=clip_norm), loss_query=query)
    watched = replace(system_rows(spec, 5), add_noise=lambda move, step, amount: deviations.append(float(amount)))
    train_strictly(model, model.initial(0)[None], one_client(x, targets), watched, 0.3, clip_norm, query)
    steps = [Fraction(5 / 3), Fraction(noise), Fraction(noise)]
    for given, exact in zip(
        deviations, [Fraction(query.deviation), *(z * Fraction(clip_norm) for z in steps)], strict=True
    ):
        assert Fraction(1, 2**41) < Fraction(given) / exact - 1 < Fraction(1, 2**39)
