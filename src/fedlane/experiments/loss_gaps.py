"""Theorems 5 and 6 compared with measured losses, on the paper's network and in a setting where they are not vacuous.

F is the mean loss over all training records. Theorem 5 (convex) is measured on `softmax`, whose optimum can be
computed, and Theorem 6 (non-convex) on the paper's MLP. All inputs of the bounds come from the run: the punctual
clients, P_max, the largest distance to the optimum, and the smoothness (bounded for `softmax`, estimated for the MLP).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from fedlane.experiments.store import Experiment, ResultStore, SeededExperiment
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
MEASURE_EVERY = 50
"""Rounds between two measurements of the loss over all training records."""
CHUNK = 2000
"""Training records processed at once."""
MEMORY_BYTES = 5e8
MAX_ITERATIONS = 150
"""Iterations of L-BFGS on whitened inputs. Fifty more reduce Fashion-MNIST's loss by less than 0.001."""
CONSTRUCTED_ROUNDS = 1000


@dataclass(frozen=True)
class MeasuredLosses:
    """Losses of one run over all training records, at K points; the first is before any learning."""

    round: FloatArray
    """(K,): rounds completed."""
    loss: FloatArray
    """(K,): F(w(t))."""
    square: FloatArray
    """(K,): |grad F(w(t))|^2."""
    distance: FloatArray
    """(K,): |w(t) - w*|; NaN if w* is unknown."""
    smoothness: float
    """lambda_max: an upper bound for softmax; for other models an estimate from the run, which is a lower bound."""

    @property
    def squares(self) -> float:
        """Mean over rounds of |grad F|^2, by the trapezoidal rule."""
        return float(np.trapezoid(self.square, self.round) / (self.round[-1] - self.round[0]))


def measured(store: ResultStore, experiment: Experiment, seed: int) -> MeasuredLosses:
    """Read the losses that `measure` stored for a run."""
    arrays = store.read(KIND, experiment, seed)
    return MeasuredLosses(**{**arrays, "smoothness": float(arrays["smoothness"])})  # type: ignore[arg-type]


def measure(store: ResultStore, wanted: Sequence[SeededExperiment]) -> None:
    """Replay runs with the same model and learning rate as one batch, and store their losses."""
    schedule = store.joint_schedule(wanted)
    best = optimum(store, wanted[0][0].task) if schedule.task.model == "softmax" else None
    runs = _replay(schedule.task.federation("cpu"), best, MEASURE_EVERY, schedule.client, schedule.punctual)
    for (experiment, seed), losses in zip(wanted, runs, strict=True):
        store.write(KIND, experiment, seed, {name: np.asarray(value) for name, value in losses.__dict__.items()})


def _replay(
    federation: FederationBatch, best: "LossOptimum | None", every: int, client: IntArray, punctual: BoolArray
) -> list[MeasuredLosses]:
    """Replay a schedule (R, T, N) and measure the losses every ``every`` rounds and after the last."""
    model, data, rounds = federation.model, federation.data, client.shape[1]
    labels = data.targets.argmax(dim=1)
    tested: list[float] = []
    loss, square, distance, curvature = [], [], [], []

    def record(t: int) -> None:
        weights = federation.weights.clone()
        tested.append(t)
        loss.append(evaluate(model, weights, data.images, labels, MEMORY_BYTES)[1].numpy())
        square.append(gradient(model, weights, data.images, data.targets).double().square().sum(dim=1).numpy())
        if best is None:
            distance.append(np.full(len(weights), np.nan))
            curvature.append(largest_curvature(model, weights, data.images[:CHUNK], data.targets[:CHUNK]))
        else:
            distance.append(np.linalg.norm(weights.double().numpy() - best.weights, axis=1))
            curvature.append(np.full(len(weights), best.smoothness))

    record(0)
    for t in range(rounds):
        federation.play(t, client[:, t], punctual[:, t])
        if t == rounds - 1 or (t + 1) % every == 0:
            record(t + 1)
    columns = (np.stack(values, axis=1) for values in (loss, square, distance))
    smoothness = np.stack(curvature).max(axis=0)
    rows = zip(*columns, smoothness, strict=True)
    return [MeasuredLosses(np.array(tested), loss, square, distance, float(s)) for loss, square, distance, s in rows]


def gradient(model: Model, weights: Tensor, images: Tensor, targets: Tensor) -> Tensor:
    """(R, d): gradients of the mean loss over all records at weights (R, d)."""
    into, scale, rows = torch.zeros_like(weights), 1.0 / len(images), len(weights)
    for start in range(0, len(images), CHUNK):
        x, y = as_inputs(images[None, start : start + CHUNK]), targets[None, start : start + CHUNK]
        batch = Batch(x.expand(rows, *x.shape[1:]), y.expand(rows, *y.shape[1:]))
        model.descend(weights, batch, None, torch.full((rows, y.shape[1]), scale), into)
    return -into


def _second_moments(images: Tensor, targets: Tensor) -> FloatArray:
    """(M, p, p): for each class, the sum of x x' over its records; x is the input with a 1 appended."""
    size = 1 + images[0].numel()
    total = torch.zeros(targets.shape[1], size, size, dtype=torch.float64)
    for start in range(0, len(images), CHUNK):
        x, label = _with_one(images[start : start + CHUNK]), targets[start : start + CHUNK].argmax(dim=1)
        for number in range(len(total)):
            members = x[label == number]
            total[number] += members.T @ members
    return np.asarray(total.numpy())


def _with_one(images: Tensor) -> Tensor:
    x = as_inputs(images).flatten(1).double()
    return torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)


def largest_curvature(model: Model, weights: Tensor, images: Tensor, targets: Tensor, steps: int = 15) -> FloatArray:
    """(R,): largest eigenvalue of the Hessian at weights (R, d), estimated from below by power iteration."""
    direction = torch.from_numpy(generator(0, "curvature").standard_normal(tuple(weights.shape))).to(weights)
    reach, eigenvalue = 1e-2, direction.norm(dim=1, keepdim=True)
    for _ in range(steps):
        direction /= eigenvalue
        ahead, behind = (gradient(model, weights + s * reach * direction, images, targets) for s in (1, -1))
        direction = (ahead - behind) / (2 * reach)
        eigenvalue = direction.norm(dim=1, keepdim=True)
    return np.asarray(eigenvalue[:, 0].double().numpy())


@dataclass(frozen=True)
class LossOptimum:
    """The softmax weights with the smallest mean loss on a set of records."""

    weights: FloatArray
    """(d,)"""
    loss: float
    """F(w*) where L-BFGS stops; the true minimum is slightly lower."""
    smoothness: float
    """lambda_max: the largest smoothness constant of a class's loss."""


def optimum(store: ResultStore, task: str) -> LossOptimum:
    """Softmax optimum on a task's training records; computed once and stored."""
    experiment = Experiment(task, "random", "softmax")
    if store.missing("optimum", experiment, [0]):
        federation = task_of(store, experiment, 0).federation("cpu")
        best = best_softmax(federation.data.images, federation.data.targets)
        store.write("optimum", experiment, 0, {name: np.asarray(value) for name, value in best.__dict__.items()})
    arrays = store.read("optimum", experiment, 0)
    return LossOptimum(arrays["weights"], float(arrays["loss"]), float(arrays["smoothness"]))


def best_softmax(images: Tensor, targets: Tensor, iterations: int = MAX_ITERATIONS) -> LossOptimum:
    """Minimise the mean loss by L-BFGS on whitened inputs.

    The smoothness of a class is half the largest eigenvalue of E[x x'] over its records, where x includes a 1 for the
    bias: the Hessian is E[(diag(p) - p p') (x) x x'], and diag(p) - p p' has no eigenvalue above 1/2. The paper's
    lambda_max is the largest over the classes.
    """
    moments, sizes = _second_moments(images, targets), targets.sum(dim=0).double().numpy()
    smoothness = max(
        float(np.linalg.eigvalsh(moment)[-1] / count) / 2 for moment, count in zip(moments, sizes, strict=True) if count
    )
    values, vectors = np.linalg.eigh(moments.sum(axis=0) / len(images))
    spread = torch.from_numpy(vectors / np.sqrt(np.maximum(values, 1e-7 * values[-1])))
    x = torch.cat([(_with_one(images[k : k + CHUNK]) @ spread).float() for k in range(0, len(images), CHUNK)])

    def loss_and_gradient(flat: FloatArray) -> tuple[float, FloatArray]:
        scores = x @ torch.from_numpy(flat).float().view(x.shape[1], -1)
        total = torch.logsumexp(scores, dim=1)
        loss = float((total.double() - (scores * targets).sum(dim=1).double()).mean())
        slope = x.T @ (torch.exp(scores - total[:, None]) - targets)
        return loss, (slope.double() / len(x)).numpy().ravel()

    start = np.zeros(x.shape[1] * targets.shape[1])
    options = {"maxiter": iterations, "maxfun": 2 * iterations, "maxcor": 30, "ftol": 1e-14, "gtol": 1e-9}
    solution = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options=options)  # type: ignore[call-overload]
    best = spread @ torch.from_numpy(solution.x).view(x.shape[1], -1)
    # The layout of the model `softmax`: a matrix (classes, inputs), then the biases.
    weights = np.concatenate([best[:-1].T.numpy().ravel(), best[-1].numpy()])
    return LossOptimum(weights, float(solution.fun), smoothness)


def task_of(store: ResultStore, experiment: Experiment, seed: int) -> LearningTask:
    """Learning task of one run."""
    return store.joint_schedule([(experiment, seed)]).task


def bound_inputs(task: LearningTask, smoothness: float) -> BoundInputs:
    """Inputs of the bounds for a run of one replica. Raises `InputError` if the learning rate is too large for them."""
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
    """(T, U): which clients took part, from the (T, N) arrays of channels."""
    present = np.zeros((len(client), clients), np.bool_)
    round, channel = np.nonzero(punctual)
    present[round, client[round, channel]] = True
    return present


def promised(task: LearningTask, present: BoolArray, losses: MeasuredLosses, best: float | None) -> Bound:
    """Bound of Theorem 5 if the optimal loss is known, else of Theorem 6 with F(w*) >= 0; vacuous if inapplicable."""
    try:
        inputs = bound_inputs(task, losses.smoothness)
    except InputError as error:
        return Bound(np.inf, str(error))
    if best is not None:
        bound, first = convex_bound(inputs, present, float(losses.distance.max())), float(losses.loss[0]) - best
        if bound.vacuous is None and bound.value >= first:
            return Bound(bound.value, f"{bound.value:.3g} exceeds the gap before any learning, {first:.3g}")
        return bound
    return nonconvex_bound(inputs, present, float(losses.loss[0]))


@dataclass(frozen=True)
class Constructed:
    """Measurements and bounds of Theorems 5 and 6 after every round, in a setting without noise, skew or absence."""

    gap: FloatArray
    """(T,): F(w(t)) - F(w*)."""
    convex: FloatArray
    """(T,): Theorem 5's bound."""
    squares: FloatArray
    """(T,): mean of |grad F|^2 up to that round."""
    nonconvex: FloatArray
    """(T,): Theorem 6's bound."""


def constructed(rounds: int = CONSTRUCTED_ROUNDS) -> Constructed:
    """Replay a run of four clients with equal label shares, full batches and no noise, all present in every round.

    Images have four pixels, and the two classes overlap. There is one step per round, so that every gradient in Theorem
    6's sum is measured.
    """
    clients, samples_each = 4, 250
    rng = generator(0, "constructed")
    labels = np.tile([0, 1], clients * samples_each // 2)
    pixels = 0.5 + 0.05 * (2.0 * labels[:, None] - 1.0) + rng.uniform(-0.4, 0.4, (len(labels), 4))
    samples = Samples((255 * pixels).astype(np.uint8).reshape(-1, 2, 2, 1), labels.astype(np.int64))
    info = DatasetInfo("constructed", "", (1, 2, 2), 2, len(labels) // 2, 0, "")
    counts = np.full((1, clients, 2), samples_each // 2)
    clip_norm = 10.0  # longer than any gradient
    spec = MechanismSpec.simple(counts.sum(axis=2), batch_size=samples_each, local_iterations=1, clip_norm=clip_norm)
    model = make_model("softmax", info.input_shape, info.classes)
    federation = FederationBatch(model, Dataset(info, samples, samples), counts, [0], spec, 0.1)
    best = best_softmax(federation.data.images, federation.data.targets, 500)
    federation.learning_rate = 0.5 / best.smoothness
    client = np.tile(np.arange(clients), (1, rounds, 1))
    present = np.ones((rounds, clients), np.bool_)
    (losses,) = _replay(federation, best, 1, client, present[None])
    task = LearningTask("constructed", "softmax", federation.learning_rate, 1, spec, counts, np.zeros(1, np.int64))
    inputs = bound_inputs(task, best.smoothness)
    distance = float(losses.distance.max())
    return Constructed(
        gap=losses.loss[1:] - best.loss,
        convex=_bounds(lambda t: convex_bound(inputs, present[:t], distance), rounds),
        squares=np.cumsum(losses.square[:-1]) / np.arange(1, rounds + 1),
        nonconvex=_bounds(lambda t: nonconvex_bound(inputs, present[:t], float(losses.loss[0]) - best.loss), rounds),
    )


def _bounds(bound: Callable[[int], Bound], rounds: int) -> FloatArray:
    return np.array([bound(t).value for t in range(1, rounds + 1)])
