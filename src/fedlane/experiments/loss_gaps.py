"""Theorems 5 and 6 beside measured losses: on the paper's network, and in a setting where they say something.

F is the mean loss over all training records. The convex theorem is measured on `softmax`, whose optimum can be
computed, the other one on the paper's MLP. Everything that the bounds take is taken from the run: who was punctual,
P_max, the largest distance to the optimum, and the smoothness (bounded for `softmax`, estimated for the MLP).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from fedlane.experiments.store import Experiment, ResultStore
from fedlane.learning.datasets import Dataset, DatasetInfo, Samples
from fedlane.learning.evaluate import evaluate
from fedlane.learning.federation import FederationBatch
from fedlane.learning.local import as_inputs
from fedlane.learning.models import Batch, Model, make_model
from fedlane.learning.schedule import LearningTask
from fedlane.records import BoolArray, FloatArray, IntArray, MechanismSpec
from fedlane.rng import generator
from fedlane.theory import Bound, BoundInputs, convex_bound, nonconvex_bound
from fedlane.validate import InputError

KIND = "convergence"
EVERY = 50
"""Rounds between two looks at the loss over all training records."""
PIECE = 2000
"""Training records at once."""
MEMORY_BYTES = 5e8
MOST_ITERATIONS = 150
"""Of L-BFGS on whitened inputs, after which Fashion-MNIST's loss falls by less than 0.001 in 50 more."""
CONSTRUCTED_ROUNDS = 1000


@dataclass(frozen=True)
class MeasuredLosses:
    """One run's losses over all training records, at K rounds of which the first is before any learning."""

    round: FloatArray
    """(K,): rounds done."""
    loss: FloatArray
    """(K,): F(w(t))."""
    square: FloatArray
    """(K,): |grad F(w(t))|^2."""
    distance: FloatArray
    """(K,): |w(t) - w*|; NaN where w* is not known."""
    smoothness: float
    """lambda_max: a bound for softmax; for others an estimate of F's own from the run, which is less."""

    @property
    def squares(self) -> float:
        """The mean over rounds of |grad F|^2, by the trapezium rule."""
        return float(np.trapezoid(self.square, self.round) / (self.round[-1] - self.round[0]))


def measured(store: ResultStore, cell: Experiment, seed: int) -> MeasuredLosses:
    """What `measure` kept of a run."""
    kept = store.read(KIND, cell, seed)
    return MeasuredLosses(**{**kept, "smoothness": float(kept["smoothness"])})  # type: ignore[arg-type]


def measure(store: ResultStore, wanted: Sequence[tuple[Experiment, int]]) -> None:
    """Play the runs of one model and step side by side, look at their losses, and keep them."""
    schedule = store.to_learn(wanted)
    best = optimum(store, wanted[0][0].task) if schedule.task.model == "softmax" else None
    found = _looks(schedule.task.federation("cpu"), best, EVERY, schedule.client, schedule.punctual)
    for (cell, seed), one in zip(wanted, found, strict=True):
        store.write(KIND, cell, seed, {name: np.asarray(value) for name, value in one.__dict__.items()})


def _looks(
    federation: FederationBatch, best: "Optimum | None", every: int, client: IntArray, punctual: BoolArray
) -> list[MeasuredLosses]:
    """Play a schedule (R, T, N), and look at the losses now and then."""
    model, data, rounds = federation.model, federation.data, client.shape[1]
    labels = data.targets.argmax(dim=1)
    tested: list[float] = []
    loss, square, distance, curvature = [], [], [], []

    def look(t: int) -> None:
        weights = federation.weights.clone()
        tested.append(t)
        loss.append(evaluate(model, weights, data.images, labels, MEMORY_BYTES)[1].numpy())
        square.append(gradient(model, weights, data.images, data.targets).double().square().sum(dim=1).numpy())
        if best is None:
            distance.append(np.full(len(weights), np.nan))
            curvature.append(largest_curvature(model, weights, data.images[:PIECE], data.targets[:PIECE]))
        else:
            distance.append(np.linalg.norm(weights.double().numpy() - best.weights, axis=1))
            curvature.append(np.full(len(weights), best.smoothness))

    look(0)
    for t in range(rounds):
        federation.play(t, client[:, t], punctual[:, t])
        if t == rounds - 1 or (t + 1) % every == 0:
            look(t + 1)
    columns = (np.stack(values, axis=1) for values in (loss, square, distance))
    most = np.stack(curvature).max(axis=0)
    rows = zip(*columns, most, strict=True)
    return [MeasuredLosses(np.array(tested), loss, square, distance, float(s)) for loss, square, distance, s in rows]


def gradient(model: Model, weights: Tensor, images: Tensor, targets: Tensor) -> Tensor:
    """The gradients (R, d) of the mean loss over all records at weights (R, d)."""
    into, scale, rows = torch.zeros_like(weights), 1.0 / len(images), len(weights)
    for start in range(0, len(images), PIECE):
        x, y = as_inputs(images[None, start : start + PIECE]), targets[None, start : start + PIECE]
        batch = Batch(x.expand(rows, *x.shape[1:]), y.expand(rows, *y.shape[1:]))
        model.descend(weights, batch, None, torch.full((rows, y.shape[1]), scale), into)
    return -into


def _second_moments(images: Tensor, targets: Tensor) -> FloatArray:
    """(M, p, p): of each class the sum of x x' over its records, x the inputs with a 1 behind them."""
    size = 1 + images[0].numel()
    total = torch.zeros(targets.shape[1], size, size, dtype=torch.float64)
    for start in range(0, len(images), PIECE):
        x, label = _with_one(images[start : start + PIECE]), targets[start : start + PIECE].argmax(dim=1)
        for number in range(len(total)):
            own = x[label == number]
            total[number] += own.T @ own
    return np.asarray(total.numpy())


def _with_one(images: Tensor) -> Tensor:
    x = as_inputs(images).flatten(1).double()
    return torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)


def largest_curvature(model: Model, weights: Tensor, images: Tensor, targets: Tensor, steps: int = 15) -> FloatArray:
    """(R,): the Hessian's largest eigenvalue at weights (R, d), by power iteration on gradients. From below."""
    direction = torch.from_numpy(generator(0, "curvature").standard_normal(tuple(weights.shape))).to(weights)
    reach, found = 1e-2, direction.norm(dim=1, keepdim=True)
    for _ in range(steps):
        direction /= found
        ahead, behind = (gradient(model, weights + s * reach * direction, images, targets) for s in (1, -1))
        direction = (ahead - behind) / (2 * reach)
        found = direction.norm(dim=1, keepdim=True)
    return np.asarray(found[:, 0].double().numpy())


@dataclass(frozen=True)
class Optimum:
    """softmax's best weights on some records."""

    weights: FloatArray
    """(d,)"""
    loss: float
    """F(w*). L-BFGS is stopped, so that the true minimum is a little lower still."""
    smoothness: float
    """lambda_max: the largest of the classes' losses'."""


def optimum(store: ResultStore, task: str) -> Optimum:
    """softmax's optimum on a task's training records; computed once and kept."""
    cell = Experiment(task, "random", "softmax")
    if store.missing("optimum", cell, [0]):
        federation = task_of(store, cell, 0).federation("cpu")
        found = best_softmax(federation.data.images, federation.data.targets)
        store.write("optimum", cell, 0, {name: np.asarray(value) for name, value in found.__dict__.items()})
    kept = store.read("optimum", cell, 0)
    return Optimum(kept["weights"], float(kept["loss"]), float(kept["smoothness"]))


def best_softmax(images: Tensor, targets: Tensor, iterations: int = MOST_ITERATIONS) -> Optimum:
    """The weights of the least mean loss, by L-BFGS on whitened inputs.

    A class's lambda is half the largest eigenvalue of E[x x'] over its records, x with a 1 for the bias: the Hessian is
    E[(diag(p) - p p') (x) x x'], and diag(p) - p p' has no eigenvalue above 1/2. The paper takes the largest.
    """
    moments, sizes = _second_moments(images, targets), targets.sum(dim=0).double().numpy()
    smoothness = max(
        float(np.linalg.eigvalsh(own)[-1] / count) / 2 for own, count in zip(moments, sizes, strict=True) if count
    )
    values, vectors = np.linalg.eigh(moments.sum(axis=0) / len(images))
    spread = torch.from_numpy(vectors / np.sqrt(np.maximum(values, 1e-7 * values[-1])))
    x = torch.cat([(_with_one(images[k : k + PIECE]) @ spread).float() for k in range(0, len(images), PIECE)])

    def loss_and_gradient(flat: FloatArray) -> tuple[float, FloatArray]:
        scores = x @ torch.from_numpy(flat).float().view(x.shape[1], -1)
        total = torch.logsumexp(scores, dim=1)
        loss = float((total.double() - (scores * targets).sum(dim=1).double()).mean())
        slope = x.T @ (torch.exp(scores - total[:, None]) - targets)
        return loss, (slope.double() / len(x)).numpy().ravel()

    start = np.zeros(x.shape[1] * targets.shape[1])
    options = {"maxiter": iterations, "maxfun": 2 * iterations, "maxcor": 30, "ftol": 1e-14, "gtol": 1e-9}
    found = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options=options)  # type: ignore[call-overload]
    best = spread @ torch.from_numpy(found.x).view(x.shape[1], -1)
    # As `softmax` has them: a matrix (classes, inputs), then the biases.
    weights = np.concatenate([best[:-1].T.numpy().ravel(), best[-1].numpy()])
    return Optimum(weights, float(found.fun), smoothness)


def task_of(store: ResultStore, cell: Experiment, seed: int) -> LearningTask:
    """What one run learns."""
    return store.to_learn([(cell, seed)]).task


def setting_of(task: LearningTask, smoothness: float) -> BoundInputs:
    """What the bounds need to know of a run of one replica. A step that is too large for them is an `InputError`."""
    counts = task.label_counts[0].astype(np.float64)
    spec = task.mechanism
    return BoundInputs(
        sizes=counts.sum(axis=1),
        label_shares=counts / counts.sum(axis=1, keepdims=True),
        batch_size=spec.batch_size[0].astype(np.float64),
        epsilon=spec.epsilon,
        delta=spec.delta,
        learning_rate=task.learning_rate,
        clip_norm=spec.clip_norm or np.inf,
        local_iterations=spec.local_iterations,
        smoothness=smoothness,
    )


def participation(punctual: BoolArray, client: IntArray, clients: int) -> BoolArray:
    """(T, U): who took part, from (T, N) of channels."""
    present = np.zeros((len(client), clients), np.bool_)
    round, channel = np.nonzero(punctual)
    present[round, client[round, channel]] = True
    return present


def promised(task: LearningTask, present: BoolArray, found: MeasuredLosses, best: float | None) -> Bound:
    """Theorem 5 where the optimum's loss is known, else Theorem 6 with F(w*) >= 0; or why it does not apply."""
    try:
        setting = setting_of(task, found.smoothness)
    except InputError as error:
        return Bound(np.inf, str(error))
    if best is not None:
        bound, first = convex_bound(setting, present, float(found.distance.max())), float(found.loss[0]) - best
        if bound.vacuous is None and bound.value >= first:
            return Bound(bound.value, f"{bound.value:.3g} exceeds the gap before any learning, {first:.3g}")
        return bound
    return nonconvex_bound(setting, present, float(found.loss[0]))


@dataclass(frozen=True)
class Constructed:
    """Theorems 5 and 6 where nothing but progress is left, after every round."""

    gap: FloatArray
    """(T,): F(w(t)) - F(w*)."""
    convex: FloatArray
    """(T,): Theorem 5's bound."""
    squares: FloatArray
    """(T,): the mean so far of |grad F|^2."""
    nonconvex: FloatArray
    """(T,): Theorem 6's bound."""


def constructed(rounds: int = CONSTRUCTED_ROUNDS) -> Constructed:
    """Four clients with equal labels, no noise, whole batches, always there: two classes of four overlapping pixels.

    One step a round, so that every gradient of Theorem 6's sum is measured.
    """
    clients, each = 4, 250
    rng = generator(0, "constructed")
    labels = np.tile([0, 1], clients * each // 2)
    pixels = 0.5 + 0.05 * (2.0 * labels[:, None] - 1.0) + rng.uniform(-0.4, 0.4, (len(labels), 4))
    samples = Samples((255 * pixels).astype(np.uint8).reshape(-1, 2, 2, 1), labels.astype(np.int64))
    info = DatasetInfo("constructed", "", (1, 2, 2), 2, len(labels) // 2, 0, "")
    counts = np.full((1, clients, 2), each // 2)
    clip_norm = 10.0  # longer than any gradient
    spec = MechanismSpec.simple(counts.sum(axis=2), batch_size=each, local_iterations=1, clip_norm=clip_norm)
    model = make_model("softmax", info.input_shape, info.classes)
    federation = FederationBatch(model, Dataset(info, samples, samples), counts, [0], spec, 0.1)
    best = best_softmax(federation.data.images, federation.data.targets, 500)
    federation.learning_rate = 0.5 / best.smoothness
    client = np.tile(np.arange(clients), (1, rounds, 1))
    present = np.ones((rounds, clients), np.bool_)
    (found,) = _looks(federation, best, 1, client, present[None])
    task = LearningTask("constructed", "softmax", federation.learning_rate, 1, spec, counts, np.zeros(1, np.int64))
    setting = setting_of(task, best.smoothness)
    distance = float(found.distance.max())
    return Constructed(
        gap=found.loss[1:] - best.loss,
        convex=_bounds(lambda t: convex_bound(setting, present[:t], distance), rounds),
        squares=np.cumsum(found.square[:-1]) / np.arange(1, rounds + 1),
        nonconvex=_bounds(lambda t: nonconvex_bound(setting, present[:t], float(found.loss[0]) - best.loss), rounds),
    )


def _bounds(bound: Callable[[int], Bound], rounds: int) -> FloatArray:
    return np.array([bound(t).value for t in range(1, rounds + 1)])
