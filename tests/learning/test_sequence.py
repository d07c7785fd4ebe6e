"""The model of token sequences, and the text task it is made for."""

import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from fedlane import Scenario, Simulation
from fedlane.learning import datasets, embedding, shakespeare
from fedlane.learning.clipping import clipping_slack
from fedlane.learning.datasets import dataset_info, load_dataset, locate
from fedlane.learning.model_interface import Batch
from fedlane.learning.models import make_model
from fedlane.learning.strict import RecordGradients
from fedlane.simulation.clipping_audit import audit_clipping
from fedlane.validate import InputError
from support import slow
from support.parts import DATA, missing
from support.tensors import assert_close

TOKENS, LENGTH, CLASSES = 7, 6, 5


def scores(flat, tokens):
    """The model written out in PyTorch, for one sample."""
    sizes = [TOKENS * 8, 8 * LENGTH * 128, 128, 128 * CLASSES, CLASSES]
    table, first, first_bias, second, second_bias = torch.split(flat, sizes)
    x = table.view(TOKENS, 8)[tokens].flatten()
    return second.view(CLASSES, 128) @ torch.relu(first.view(128, -1) @ x + first_bias) + second_bias


def gradient(flat, tokens, label):
    flat = flat.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(scores(flat, tokens)[None], label[None])
    return torch.autograd.grad(loss, flat)[0]


def sample_batch(groups=2, samples=4):
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(TOKENS, (groups, samples, LENGTH), generator=source)
    tokens[0, 0] = 3  # one token at every place
    labels = torch.randint(CLASSES, (groups, samples), generator=source)
    return Batch(tokens, torch.eye(CLASSES)[labels], torch.zeros(groups, samples)), labels


@pytest.mark.parametrize("clip_norm", [None, 0.1, 1.0, 100.0])
def test_a_step_agrees_with_autograd_one_sample_at_a_time(clip_norm):
    model = make_model("sequence", (LENGTH,), CLASSES, tokens=TOKENS)
    batch, labels = sample_batch()
    weights = torch.stack([model.initial(seed) for seed in (3, 4)])
    scale = torch.rand(2, 4, generator=torch.Generator().manual_seed(1))
    expected = weights.clone()
    for g in range(2):
        assert_close(model.logits(weights, batch.x)[g, 0], scores(weights[g], batch.x[g, 0]))
        for s in range(4):
            step = slow.clipped(gradient(weights[g], batch.x[g, s], labels[g, s]), clip_norm)
            expected[g] -= scale[g, s] * step
    moved = weights.clone()
    model.descend(moved, batch, clip_norm, scale)
    assert (expected - weights).abs().max() > 1e-3
    assert_close(moved, expected, rtol=1e-4, atol=2e-6)


def test_no_sample_moves_the_model_by_more_than_the_clip_norm():
    model = make_model("sequence", (LENGTH,), CLASSES, tokens=TOKENS)
    batch, _ = sample_batch()
    weights, slack = model.initial(0)[None], clipping_slack(model, 1)
    for s in range(4):
        moved = torch.zeros_like(weights)
        single = Batch(batch.x[:1, s : s + 1], batch.targets[:1, s : s + 1])
        model.descend(weights, single, 0.01, torch.ones(1, 1), moved)
        assert float(moved.double().norm()) == pytest.approx(0.01, rel=slack)
    assert slack < 2e-4


def test_a_sample_that_overflows_contributes_nothing():
    model = make_model("sequence", (LENGTH,), CLASSES, tokens=TOKENS)
    batch, _ = sample_batch(1, 2)
    weights = torch.full((1, model.size), 1e30)
    moved = torch.zeros_like(weights)
    model.descend(weights, batch, 1.0, torch.ones(1, 2), moved)
    assert float(moved.abs().max()) == 0.0


def test_a_real_client_computes_the_same_gradient():
    from fedlane.learning.local import ClientData

    model = make_model("sequence", (LENGTH,), CLASSES, tokens=TOKENS)
    batch, labels = sample_batch()
    empty = torch.zeros(0)
    data = ClientData(batch.x[0].int(), batch.targets[0], torch.zeros(4), empty, empty, empty)
    records, weights = RecordGradients(model, data), model.initial(5)
    records.start(weights[None])
    for s in range(4):
        assert_close(
            records.negative_gradient(s), -gradient(weights, batch.x[0, s], labels[0, s]), rtol=1e-4, atol=1e-6
        )


def test_the_model_needs_tokens_and_is_saved_by_name():
    with pytest.raises(InputError, match=r"model sequence needs sequences of tokens"):
        make_model("sequence", (1, 28, 28), 10)
    model = make_model("sequence", (LENGTH,), CLASSES, tokens=TOKENS)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.tensors(model.initial(0)).items()}
    assert shapes["layer0.weight"] == (TOKENS, 8)
    assert shapes["layer1.weight"] == (128, 8 * LENGTH)
    assert sum(np.prod(shape) for shape in shapes.values()) == model.size


def test_without_its_file_the_text_task_says_where_it_belongs(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLANE_DATA", str(tmp_path))
    monkeypatch.setattr(datasets, "SYSTEM", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    datasets._shakespeare.cache_clear()
    with pytest.raises(InputError, match=r"put shakespeare_by_role.jsonl.xz into a folder shakespeare of"):
        dataset_info("shakespeare")
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "shakespeare_by_role.jsonl.xz").write_bytes(b"not xz")
    with pytest.raises(InputError, match=r"shakespeare_by_role.jsonl.xz is damaged"):
        dataset_info("shakespeare")


@pytest.fixture
def plays(monkeypatch):
    monkeypatch.setenv("FEDLANE_DATA", str(DATA))
    datasets._shakespeare.cache_clear()
    if locate(shakespeare.SHAKESPEARE) is None:
        missing("shakespeare_by_role.jsonl.xz is not here")
    return load_dataset("shakespeare")


@pytest.mark.slow
def test_shakespeare_s_samples_are_windows_of_a_role_s_lines(plays):
    import json
    import lzma

    file = Path(os.environ["FEDLANE_DATA"], "shakespeare", "shakespeare_by_role.jsonl.xz")
    with lzma.open(file, "rt") as lines:
        texts = ["\n".join(json.loads(line)["speeches"]) for line in lines]
    alphabet = sorted(set("".join(texts)))
    roles = [text for text in texts if len(text) >= 8000]
    assert plays.info.natural.shape == (len(roles), len(alphabet)) == (170, 76)
    assert plays.info.class_totals.sum() == len(plays.train.labels) == 1_046_962
    for client in (0, 7, 169):
        members = np.flatnonzero(plays.train.clients == client)
        for position, row in ((0, members[0]), (2 * (len(members) - 1), members[-1])):
            window = "".join(alphabet[token] for token in plays.train.images[row])
            assert window == roles[client][position : position + 20]
            assert alphabet[plays.train.labels[row]] == roles[client][position + 20]
        assert position + 20 < 0.8 * len(roles[client])


@pytest.mark.slow
def test_shakespeare_trains_from_its_preset(plays):
    changes = {"rounds": 20, "privacy.mechanism": "none", "learning.evaluate_every": 20}
    simulation = Simulation(Scenario.load("shakespeare").with_values(changes), "random", [0], learning=True)
    simulation.play()
    commonest = np.bincount(plays.test.labels).max() / len(plays.test.labels)
    assert simulation.trace.accuracy[0, -1] > commonest + 0.04
    assert Scenario.load("shakespeare").privacy.mechanism == "rigorous"


def test_the_audit_of_clipping_attacks_the_embedding_of_repeated_tokens():
    """No weights make a record exceed the clip norm; norms of single places, which repeated tokens break, do."""

    def places_apart(model, weights, x, targets, clip_norm):
        """A wrong sum: the norm is that of the gradients of all places, not of their sums by token."""
        total = torch.zeros(1, model.size)
        with mock.patch.object(embedding, "token_gradients", lambda layer, tokens, gradient: gradient):
            model.descend(weights[None], Batch(x[None], targets[None]), clip_norm, torch.ones(1, len(x)), total)
        return total[0].double()

    honest = audit_clipping("sequence", "shakespeare")
    assert honest.tried > 30
    assert 0.9 < honest.real <= 1.0
    assert not honest.flagged
    assert audit_clipping("sequence", "shakespeare", batched=places_apart).flagged
