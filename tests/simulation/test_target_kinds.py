"""Data sets with float targets, and with a class at every position of a sequence: runs, tables, pages and sweeps."""

import json
import tomllib

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

import fedlane
from fedlane import Run, Scenario, Simulation, simulate
from fedlane.learning.dataset_records import Objective
from fedlane.learning.datasets import load_dataset
from fedlane.learning.model_interface import Batch
from fedlane.learning.models import make_model
from fedlane.learning.module_checks import checked_module
from fedlane.validate import InputError
from support.terminal import fedlane as command

VALUES = tomllib.loads("""
rounds = 30
network = { clients = 4, channels = 2 }
data = { dataset = "my.npz", noniid_degree = 0.5 }
learning = { model = "mlp", learning_rate = 0.05, batch_size = 16, evaluate_every = 10 }
""")
PRIVATE = {"mechanism": "paper", "epsilon": 25.0, "delta": 1e-3}
NOISE = 0.1


def line(n, outputs=1):
    """Targets that are linear in the inputs, with noise of deviation 0.1."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    y = x @ np.linspace(-1, 1, 4 * outputs).reshape(4, outputs) + NOISE * rng.normal(size=(n, outputs))
    return x, y[:, 0] if outputs == 1 else y


@pytest.fixture
def scenario(here):
    save_line(here)
    return Scenario.from_values(VALUES)


def save_line(folder, outputs=1):
    (x, y), (x_test, y_test) = line(400, outputs), line(100, outputs)
    ids = np.arange(400) % 6
    np.savez(folder / "my.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test, client_train=ids)


def copying(n, length=5, tokens=7):
    """Sequences whose target at every position is the token there, plus 1."""
    x = np.random.default_rng(n).integers(0, tokens - 1, (n, length))
    return x, x + 1


def save_copying(folder):
    (x, y), (x_test, y_test) = copying(300), copying(60)
    np.savez(folder / "my.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test, classes=np.array(7))


class Tagger(torch.nn.Module):
    """Scores of every token by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(7, 8), torch.nn.Linear(8, 7)

    def forward(self, tokens):
        return self.head(self.table(tokens))


class Slow(Tagger):
    """The same through a layer without a fast path."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(7))

    def forward(self, tokens):
        return super().forward(tokens) * self.scale


@pytest.mark.parametrize(("model", "outputs"), [("softmax", 1), ("mlp", 1), ("mlp", 3)])
def test_numbers_are_learned_with_squared_error(here, model, outputs):
    save_line(here, outputs)
    scenario = Scenario.from_values(VALUES).with_values({"learning.model": model})
    run = simulate(scenario, "random", rounds=60, seeds=[0, 1])
    assert run.summary["final_accuracy"]["mean"] is None
    assert run.rounds["accuracy"].null_count == len(run.rounds)
    assert NOISE * 0.9 < run.summary["final_rmse"]["mean"] < 3 * NOISE
    assert run.summary["final_rmse"]["mean"] == pytest.approx(np.mean([np.sqrt(last_loss(run, r)) for r in (0, 1)]))
    if model == "softmax":  # linear regression: the saved weights give the loss that was recorded
        x, y = line(100)
        predicted = x @ run.model["replica1.layer0.weight"].T + run.model["replica1.layer0.bias"]
        assert last_loss(run, 1) == pytest.approx(np.mean((predicted[:, 0] - y) ** 2), rel=1e-4)


def last_loss(run, replica):
    losses = run.rounds.filter(pc.equal(run.rounds["replica"], replica))["loss"].drop_null()
    return losses[-1].as_py()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["softmax", "mlp", "cnn"])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_steps_on_numbers_agree_with_autograd_one_sample_at_a_time(model, clip_norm):
    made = make_model(model, (1, 8, 8), 3, objective=Objective("values"))
    torch.manual_seed(0)
    x, targets = torch.rand(1, 5, 8, 8, 1), torch.randn(1, 5, 3)
    weights = made.initial(0)[None]
    moved = weights.clone()
    squares = x.flatten(2).square().sum(2)
    made.descend(weights, Batch(x, targets, squares), clip_norm, torch.full((1, 5), 0.1), moved)
    expected = weights.clone()
    for sample in range(5):
        leaf = weights.clone().requires_grad_()
        loss = (made.logits(leaf, x[:, sample : sample + 1])[0, 0] - targets[0, sample]).square().mean()
        (gradient,) = torch.autograd.grad(loss, leaf)
        factor = 1.0 if clip_norm is None else min(1.0, clip_norm / float(gradient.norm()))
        expected -= 0.1 * factor * gradient
    torch.testing.assert_close(moved, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("make", [Tagger, Slow])
def test_steps_on_sequences_agree_with_autograd_one_sample_at_a_time(make):
    model = checked_module(make, (5,), 7, per_record=True, tokens=7, objective=Objective("positions", 5))
    assert (model.slow_reason is None) == (make is Tagger)
    x, y = (torch.from_numpy(part[:6]) for part in copying(20))
    weights = model.initial(0)[None]
    moved = weights.clone()
    model.descend(weights, Batch(x[None], y[None]), 0.3, torch.full((1, 6), 0.1), moved)
    expected = weights.clone()
    for tokens, classes in zip(x, y, strict=True):
        leaf = weights.clone().requires_grad_()
        scores = model.logits(leaf, tokens[None, None])[0, 0]
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(scores, classes), leaf)
        expected -= 0.1 * min(1.0, 0.3 / float(gradient.norm())) * gradient
    torch.testing.assert_close(moved, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"privacy": PRIVATE}])
def test_a_class_at_every_position_is_learned(here, monkeypatch, changes):
    save_copying(here)
    monkeypatch.syspath_prepend(str(here))
    (here / "my_tagger.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7))\n"
    )
    settings = {"learning.model": "my_tagger:make", "learning.learning_rate": 1.0, **changes}
    run = simulate(Scenario.from_values(VALUES).with_values(settings), "random", rounds=40, seeds=[0])
    assert run.summary["final_accuracy"]["mean"] > 0.95  # of positions
    assert "final_rmse" not in run.summary


def test_label_counts_hold_each_sample_once(here):
    save_copying(here)
    data = load_dataset("my.npz")
    np.testing.assert_array_equal(data.train.labels, copying(300)[1][:, -1])
    save_line(here)
    data = load_dataset("my.npz")
    assert (data.info.classes, data.info.outputs, data.info.objective.kind) == (10, 1, "values")
    edges = np.quantile(line(100)[1].astype(np.float32), np.arange(1, 10) / 10)
    np.testing.assert_array_equal(data.train.labels, np.searchsorted(edges, line(400)[1].astype(np.float32), "right"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning.target_accuracy": 0.5}, "learning.target_accuracy needs classes, but data set 'my.npz' has float"),
        ({"learning.model": "my_scores:make"}, r"must return 1 scores per sample, got shape \(4, 7\)"),
    ],
)
def test_what_does_not_fit_float_targets_is_refused_in_one_line(here, scenario, changes, message):
    (here / "my_scores.py").write_text(
        "import torch\n\n\ndef make():\n"
        "    return torch.nn.Sequential(torch.nn.Unflatten(1, (4, 1)), torch.nn.Linear(1, 7))\n"
    )
    with pytest.raises(InputError, match=message):
        Simulation(scenario.with_values(changes), "random", [0], learning=True)


def test_built_in_models_refuse_targets_at_every_position(here):
    save_copying(here)
    with pytest.raises(
        InputError, match="model sequence scores whole samples: targets at every position need your own"
    ):
        Simulation(
            Scenario.from_values(VALUES).with_values({"learning.model": "sequence"}), "random", [0], learning=True
        )


@pytest.mark.slow
def test_a_run_on_float_targets_is_saved_shown_drawn_and_replayed(here, scenario):
    (here / "my.toml").write_text(scenario.with_values({"privacy": PRIVATE}).to_toml())
    result = command("run", "my.toml", "--policy", "random", "--seeds", "2", "--out", "run", cwd=here, code=0)
    assert "final RMSE" in result.stdout
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert summary["final_accuracy"]["mean"] is None
    assert summary["final_rmse"]["mean"] < 1.5
    assert "final RMSE" in command("show", "run", cwd=here, code=0).stdout
    command("replay", "run", "--quiet", cwd=here, code=0)
    command("plot", "run", "--out", "loss.svg", cwd=here, code=0)
    assert "test loss" in (here / "loss.svg").read_text()
    command("report", "run", "--out", "page.html", cwd=here, code=0)
    page = (here / "page.html").read_text()
    assert '"final_rmse": {"mean"' in page.replace('":{', '": {')
    assert '"loss"' in page
    loaded = Run.load(here / "run")
    assert loaded.summary["final_rmse"] == summary["final_rmse"]
    assert f"final RMSE: {summary['final_rmse']['mean']:.4g}" in repr(loaded)
    command("compare", "my.toml", "--policy", "random", "--policy", "lane", "--out", "both", cwd=here, code=0)


def test_a_diverged_model_of_numbers_has_a_huge_error(here, scenario):
    run = simulate(scenario.with_values({"learning.learning_rate": 1e6}), "random", seeds=2)
    assert run.summary["final_rmse"] == {"mean": 1e15, "low": 1e15, "high": 1e15}
    assert run.rounds["loss"].to_pylist()[-1] == 1e30
    assert "final RMSE: 1e+15" in repr(run)
    run.save(here / "diverged")
    command("report", "diverged", cwd=here, code=0)


def test_a_sweep_over_float_targets_has_the_error_as_a_measure(here, scenario):
    table = fedlane.sweep(scenario, "random", {"learning.learning_rate": [0.0005, 0.05]}, seeds=2, out=here / "sweep")
    assert table["final_accuracy"].null_count == 4
    errors = np.array(table["final_rmse"].to_pylist()).reshape(2, 2).mean(axis=1)
    assert errors[1] < errors[0]
    assert "final_rmse" in pq.read_schema(here / "sweep" / "sweep.parquet").names
    assert "RMSE" in command("show", "sweep", cwd=here, code=0).stdout
    again = fedlane.sweep(scenario, "random", {"learning.learning_rate": [0.0005, 0.05]}, seeds=2, out=here / "sweep")
    assert again.equals(table)
