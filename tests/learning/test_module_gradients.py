"""Per-sample gradients of a user's layers: against autograd one sample at a time, hostile weights, and the fallback."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedlane.learning import module_checks
from fedlane.learning.model_interface import Batch
from fedlane.learning.module_checks import checked_module
from fedlane.learning.module_gradients import slow_layer
from support.tensors import assert_close

pytestmark = pytest.mark.slow  # torch.func imports a compiler, which takes 3 s of processor time

CLASSES, RECORDS = 3, 5


class Tokens(nn.Module):
    """Embedding, positions in between, normalisation over tokens, and a linear layer on every token."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6, padding_idx=2)
        self.norm = nn.LayerNorm(6)
        self.token = nn.Linear(6, 5)
        self.mix = nn.Conv1d(5, 4, 3, stride=2, padding=2, dilation=2)
        self.head = nn.Linear(4, CLASSES, bias=False)

    def forward(self, x):
        tokens = (x.flatten(1) * 10).long().clamp(0, 10)
        h = torch.relu(self.token(self.norm(self.embed(tokens))))
        return self.head(self.mix(h.transpose(1, 2)).mean(2))


class Twice(nn.Module):
    """A residual network that uses one layer twice."""

    def __init__(self):
        super().__init__()
        self.first, self.shared, self.head = nn.Linear(12, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        h = self.first(x.flatten(1))
        h = h + self.shared(torch.tanh(h))
        return self.head(h + self.shared(torch.tanh(h)))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(2, 6, (3, 2), stride=(2, 1), padding=(1, 2)),
        nn.GroupNorm(3, 6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, 3, padding="same", groups=2, bias=False, dilation=2, padding_mode="reflect"),
        nn.LayerNorm([4, 3, 7], bias=False),
        nn.ELU(),
        nn.Flatten(),
        nn.Linear(84, CLASSES),
    )


def lines():
    return nn.Sequential(
        nn.Flatten(1), nn.Unflatten(1, (2, 6)), nn.Conv1d(2, 4, 4, padding=3, padding_mode="circular"),
        nn.GroupNorm(1, 4), nn.Tanh(), nn.Conv1d(4, 4, 1, groups=4), nn.Flatten(), nn.Linear(36, CLASSES),
    )  # fmt: skip


MODULES = {"convolutions": (convolutions, (2, 6, 4)), "lines": (lines, (12,)), "tokens": (Tokens, (13,)),
           "twice": (Twice, (12,))}  # fmt: skip


def trial(name, scale=1.0):
    make, shape = MODULES[name]
    model = checked_module(make, shape, CLASSES, per_record=True)
    source = torch.Generator().manual_seed(1)
    stored = (*shape[1:], shape[0]) if len(shape) == 3 else shape
    x = torch.rand(1, RECORDS, *stored, generator=source)
    weights = (model.initial(3) + 0.1 * torch.randn(model.size, generator=source))[None] * scale
    return model, weights, x, torch.eye(CLASSES)[[0, 1, 2, 0, 1]][None]


def slow_step(model, flat, x, targets, clip_norm, scale):
    """The step from autograd, one record at a time."""
    step = torch.zeros_like(flat)
    for record, target, amount in zip(x, targets, scale, strict=True):
        leaf = flat.clone().requires_grad_()
        loss = nn.functional.cross_entropy(model._called(model._named(leaf), record[None]), target[None])
        (gradient,) = torch.autograd.grad(loss, leaf)
        norm = gradient.double().norm()
        if torch.isfinite(norm):
            step -= float(amount * min(1.0, clip_norm / float(norm))) * gradient
    return step


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("clip_norm", [0.05, 1e6])
def test_steps_agree_with_autograd_one_record_at_a_time(name, clip_norm):
    model, weights, x, targets = trial(name)
    assert model.fast(weights)
    scale, move = torch.tensor([[0.5, 1.0, 0.0, 2.0, 1.0]]), torch.zeros_like(weights)
    model.chunk = 3
    with torch.no_grad():
        model.descend(weights, Batch(x, targets), clip_norm, scale, move)
    expected = slow_step(model, weights[0], x[0], targets[0], clip_norm, scale[0])
    assert expected.abs().max() > 1e-3
    assert_close(move[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("factor", [1e-30, 1e-6, 1e3, 1e10, 1e18, 1e30])
def test_no_weights_switch_clipping_off(name, factor):
    """What is measured is what is added: a record moves the sum by at most C, however large the weights are."""
    model, weights, x, targets = trial(name, factor)
    weights[0, ::7] *= -1e4
    for record in range(RECORDS):
        scale, move = torch.zeros(1, RECORDS), torch.zeros_like(weights)
        scale[0, record] = 1.0
        with torch.no_grad():
            model.descend(weights, Batch(x, targets), 0.5, scale, move)
        assert float(move.double().norm()) <= 0.5 * (1 + 1e-5)


def test_a_record_that_overflows_contributes_nothing_and_leaves_the_others_alone():
    model, weights, x, targets = trial("convolutions")
    x[0, 2] = 1e38
    move = torch.zeros_like(weights)
    with torch.no_grad():
        model.descend(weights, Batch(x, targets), 0.5, torch.ones(1, RECORDS), move)
    others = [0, 1, 3, 4]
    expected = slow_step(model, weights[0], x[0, others], targets[0, others], 0.5, torch.ones(4))
    assert_close(move[0], expected, rtol=1e-4, atol=1e-6)


class Bypass(nn.Linear):
    """A layer of another type."""


class Functional(nn.Module):
    """Uses a layer's matrix without calling the layer."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(12, 12), nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.head(nn.functional.linear(x.flatten(1), self.first.weight))


class TokensFirst(nn.Module):
    """Gives a layer another first axis than the records."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.layer(x.view(-1, 3, 4).transpose(0, 1)).mean(0)


def tied():
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, CLASSES))
    module[2].weight = module[1].weight
    return module


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Sequential(nn.Flatten(), Bypass(12, CLASSES)), "layer '1' (Bypass) has no fast path"),
        (lambda: nn.Sequential(nn.Flatten(), nn.PReLU(), nn.Linear(12, CLASSES)), "layer '1' (PReLU) has no fast path"),
        (Functional, "a layer is not called as a whole"),
        (TokensFirst, "layer 'layer' (Linear) does not have the records as its first axis"),
        (tied, "layer '2' (Linear) shares its parameters with another layer"),
    ],
)
def test_the_fallback_names_the_layer(make, reason, caplog):
    module_checks._log_once.cache_clear()
    with caplog.at_level(logging.WARNING, "fedlane.learning"):
        for _ in range(2):
            model = checked_module(make, (12,), CLASSES, per_record=True, label="model M")
    assert reason in model.slow_reason
    assert [record.getMessage() for record in caplog.records] == [
        f"model M: torch.func computes per-sample gradients, which is slower: {model.slow_reason}"
    ]
    weights, x, targets = model.initial(0)[None], torch.rand(1, 4, 12), torch.eye(CLASSES)[[0, 1, 2, 0]][None]
    move = torch.zeros_like(weights)
    model.descend(weights, Batch(x, targets), 0.3, torch.ones(1, 4), move)
    expected = slow_step(model, weights[0], x[0], targets[0], 0.3, torch.ones(4))
    assert_close(move[0], expected, rtol=1e-4, atol=1e-6)


def test_hooks_and_special_embeddings_use_the_fallback():
    hooked = nn.Linear(3, 3)
    hooked.register_forward_hook(lambda layer, inputs, output: 2 * output)
    assert "hooks" in slow_layer(hooked)
    assert "max_norm" in slow_layer(nn.Embedding(4, 3, max_norm=1.0))
    assert slow_layer(nn.GroupNorm(2, 4, affine=False)) is None


def test_no_hook_stays_in_the_module():
    model, weights, x, targets = trial("tokens")
    model.descend(weights, Batch(x, targets), 0.5, torch.ones(1, RECORDS), torch.zeros_like(weights))
    assert not any(layer._forward_hooks for layer in model.module.modules())
    assert np.isfinite(weights.numpy()).all()


@pytest.mark.parametrize("name", ["two 5 x 5 convolutions", "two 3 x 3 convolutions", "three 3 x 3 convolutions"])
def test_the_networks_of_the_benchmark_train_without_torch_func(name, monkeypatch):
    """benchmarks/module_gradients.py measures how much faster that is."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import module_gradients as benchmark

    make = next(make for label, make in benchmark.MODULES.items() if label.startswith(name))
    model = checked_module(make, (1, 28, 28), 10, per_record=True)
    monkeypatch.setattr(torch.func, "grad", None)
    monkeypatch.setattr(torch.func, "vmap", None)
    weights, before = model.initial(0)[None], model.initial(0)[None]
    model.descend(weights, Batch(torch.rand(1, 2, 28, 28, 1), torch.eye(10)[None, :2]), 1.0, torch.ones(1, 2))
    assert not torch.equal(weights, before)
