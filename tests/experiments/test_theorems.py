"""Losses, gradients and curvature against autograd and closed forms, and the theorems in a non-vacuous setting."""

import numpy as np
import pytest
import torch

from fedlane.experiments.loss_gaps import (
    best_softmax,
    constructed,
    gradient,
    largest_curvature,
    measure,
    measured,
    optimum,
    participation,
    promised,
    task_of,
)
from fedlane.experiments.reproduce import FIGURES, ReproductionPlan
from fedlane.experiments.store import Experiment, ResultStore
from fedlane.experiments.theorems import compute_convergence, convergence_panels, theorem_table, to_measure
from fedlane.learning import schedule
from fedlane.learning.datasets import load_dataset
from fedlane.learning.models import make_model
from fedlane.theory import Bound

pytestmark = pytest.mark.slow


@pytest.fixture
def small_data():
    """60 images of 4 pixels in 3 classes."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (60, 2, 2, 1)).astype(np.uint8))
    return images, torch.nn.functional.one_hot(torch.from_numpy(rng.integers(0, 3, 60)), 3).float()


def mean_loss(model, images, targets):
    def of(weights):
        scores = model.logits(weights[None], images[None].float() / 255)[0]
        return torch.nn.functional.cross_entropy(scores, targets.argmax(dim=1))

    return of


@pytest.mark.parametrize("name", ["softmax", "mlp"])
def test_gradient_and_curvature_equal_those_of_autograd(small_data, name):
    images, targets = small_data
    model = make_model(name, (1, 2, 2), 3)
    weights = model.initial(0) * 0.5
    of = mean_loss(model, images, targets)
    (expected,) = torch.autograd.grad(of(leaf := weights.clone().requires_grad_()), leaf)
    torch.testing.assert_close(gradient(model, weights[None], images, targets)[0], expected, atol=1e-6, rtol=1e-4)
    top = float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(of, weights))[-1])
    (found,) = largest_curvature(model, weights[None], images, targets, steps=60)
    assert found == pytest.approx(top, rel=0.05)
    if name == "softmax":
        assert top <= best_softmax(images, targets).smoothness < 4 * top


def test_the_gradient_vanishes_at_softmax_s_optimum(small_data):
    images, targets = small_data
    best = best_softmax(images, targets, 500)
    model = make_model("softmax", (1, 2, 2), 3)
    flat = torch.from_numpy(best.weights).float()
    assert best.loss == pytest.approx(float(mean_loss(model, images, targets)(flat)), abs=1e-5)
    assert float(gradient(model, flat[None], images, targets).norm()) < 1e-4
    for direction in torch.randn(5, len(flat), generator=torch.Generator().manual_seed(0)):
        assert float(mean_loss(model, images, targets)(flat + 0.1 * direction)) > best.loss


def test_participation_by_client():
    client, punctual = np.array([[2, 0], [-1, 1]]), np.array([[True, False], [False, True]])
    np.testing.assert_array_equal(participation(punctual, client, 3), [[False, False, True], [False, True, False]])


def test_both_bounds_hold_in_the_constructed_setting_and_are_not_vacuous():
    found = constructed(rounds=300)
    assert np.all(found.gap <= found.convex)
    assert np.all(found.squares <= found.nonconvex)
    assert found.convex[-1] < 1.5 * found.gap[0]  # soon close to the initial gap
    assert found.nonconvex[-1] < 2 * found.squares[-1]  # and nearly tight
    assert found.gap[-1] < 0.05 * found.gap[0]


ROUNDS = 4
SMALL = Experiment("fashion-mnist", "random", "softmax-slow")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store whose experiments learn from the embedded Fashion-MNIST subset instead of the full set."""
    monkeypatch.setattr(schedule, "load_dataset", lambda name: load_dataset("fashion-mnist-mini"))
    monkeypatch.setattr(schedule.LearningTask, "federation", _of_the_subset(schedule.LearningTask.federation))
    store = ResultStore(tmp_path, rounds=ROUNDS)
    store.schedule(SMALL, [0])
    store.schedule(Experiment("fashion-mnist", "random", "softmax"), [0])
    return store


def _of_the_subset(federation):
    """Scale the label counts down to the subset's 800 images per class."""

    def scaled(task, device):
        from dataclasses import replace

        counts = task.label_counts * 800 // 6000
        spec = task.mechanism
        sizes = counts.sum(axis=2)
        small = replace(spec, batch_size=np.minimum(spec.batch_size, sizes), sample_rate=spec.batch_size / sizes)
        return federation(replace(task, label_counts=counts, mechanism=small), device)

    return scaled


class TestMeasured:
    def test_the_losses_of_a_run_are_measured_once_and_stored(self, store):
        measure(store, [(SMALL, 0)])
        losses = measured(store, SMALL, 0)
        assert losses.round.tolist() == [0, 4]
        assert losses.loss[1] < losses.loss[0]
        assert losses.distance[0] > 0
        optimal = optimum(store, "fashion-mnist").loss
        assert 0 < optimal < losses.loss[1]
        assert losses.smoothness == optimum(store, "fashion-mnist").smoothness
        plan = ReproductionPlan({"fig-convergence": FIGURES["fig-convergence"]}, 1, 1, ("fashion-mnist",))
        assert (SMALL, 0) not in to_measure(plan, store)
        assert len(to_measure(plan, store)) == 8

    def test_the_bound_is_inapplicable_at_the_paper_s_learning_rate_and_vacuous_at_a_smaller_one(self, store):
        measure(store, [(SMALL, 0)])
        losses, optimal = measured(store, SMALL, 0), optimum(store, "fashion-mnist").loss
        result = store.result(SMALL, 0)
        present = participation(result.punctual, result.client, 10)
        slow = promised(task_of(store, SMALL, 0), present, losses, optimal)
        assert "exceeds the gap before any learning" in slow.vacuous
        assert slow.value > losses.loss[0] - optimal
        fast = promised(task_of(store, Experiment("fashion-mnist", "random", "softmax"), 0), present, losses, optimal)
        assert "0 < eta lambda_max < 1" in fast.vacuous
        assert fast == Bound(np.inf, fast.vacuous)


def test_the_panels_and_the_table(tmp_path, store):
    plan = ReproductionPlan({"fig-convergence": FIGURES["fig-convergence"]}, 2, 1, ("fashion-mnist",))
    for experiment in plan.scheduled():
        store.schedule(experiment, plan.seeds(experiment))
    finished = []
    compute_convergence(plan, store, finished.append)
    assert len(finished) == 9
    assert to_measure(plan, store) == []
    panels = convergence_panels(plan, store)
    assert len(panels) == 4
    assert "vacuous in 3 of 3 runs" in panels[0].title
    for experiment in FIGURES["fig-regret"].scheduled:
        store.schedule(experiment, plan.seeds(experiment))
    lines = theorem_table(plan, store).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["4"] * 3 + ["5"] * 6 + ["6"] * 3 + ["5", "6"]
    assert all("eta lambda" in line for line in lines if "softmax, eta 0.1" in line)
