"""The audit: a membership-inference attack on uploads that the training code itself produces.

The attacker knows everything except the noise, the samples and whether one record, the canary, is in the data. It
trains once with and once without the canary, both times without noise, measures how the canary moves each tensor, and
projects a real upload onto these directions. Losses that are released with the upload are attacked together with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedlane.learning.counter_rng import CounterNoise, add_normals_, keys
from fedlane.learning.datasets import load_dataset
from fedlane.learning.federation import torch_device
from fedlane.learning.local import ClientData, TrainingBatch, as_inputs, train_locally
from fedlane.learning.models import Model, make_model
from fedlane.learning.optimization import LocalOptimizer
from fedlane.learning.sampling import draw_samples, sampling_of
from fedlane.privacy import make_mechanism, mechanism_of
from fedlane.privacy.audit_statistics import MIN_TRIALS, AuditResult, SamplingResult, audit_sampling, audit_scores
from fedlane.privacy.loss_release import first_step_noise
from fedlane.records import BoolArray, FloatArray, LossQuery, MechanismSpec
from fedlane.rng import generator
from fedlane.simulation.loss_audit import AUDITED_LOSS_CLIP, first_noise, loss_shift, released_sums
from fedlane.validate import InputError, at_least

CHUNK_BYTES = 2e8
"""Memory for the uploads that are computed together, in bytes."""
DEFAULT_PLANS: dict[str, dict[str, object]] = {
    "paper": {"epsilon": 0.8, "delta": 1e-3, "records": 600, "batch_size": 10}
}
"""Values of `AuditPlan` that differ in the default audit of a mechanism."""
MAX_TRIALS = 10_000_000
"""Largest number of trials: more take days and show no more."""
SAMPLING_DRAWS, SAMPLING_STEPS, SAMPLING_RECORDS, SAMPLING_RATE = 2000, 3, 100, 0.1
"""Size of the sampling test."""


@dataclass(frozen=True)
class AuditPlan:
    """The settings of an audit.

    Attributes:
        mechanism: ``paper`` or ``rigorous``.
        epsilon: Claimed epsilon of one upload.
        delta: Claimed delta of one upload.
        records: Number of the client's records without the canary, |D|.
        batch_size: Records per step; if equal to ``records``, the sample rate is 1 and the attack is strongest.
        local_iterations: Steps per upload, tau.
        learning_rate: Learning rate, eta.
        local: Momentum and proximal term of the local steps; None for plain SGD.
        clip_norm: Clipping norm, C.
        pixels: Side of the images, which are shrunk from 28 pixels.
        model: Built-in model that is trained, `mlp` or `cnn`.
        device: Device that trains it, `cpu` or `cuda`, whose kernels differ.
        trials: Number of uploads, half of them with the canary.
        confidence: Confidence of the lower bound on epsilon.
        seed: Seed of all random draws.
        loss_noise: Noise multiplier of the losses that are released with the upload; None if none are released. Exact
            losses, which `paper` releases, are not attacked: its claim does not cover them.
        loss_clip: Largest loss of a record. The canary's loss is larger, so that missing clipping shows.
        blank_records: Whether all records but the canary are black images. These move little more than a bias, so
            the random size of a Poisson sample hardly blurs the attack.
    """

    mechanism: str = "rigorous"
    epsilon: float = 4.0
    delta: float = 1e-5
    records: int = 16
    batch_size: int = 16
    local_iterations: int = 5
    learning_rate: float = 0.05
    local: LocalOptimizer | None = None
    clip_norm: float = 1.0
    pixels: int = 4
    model: str = "mlp"
    device: str = "cpu"
    trials: int = 20_000
    confidence: float = 0.999
    seed: int = 0
    loss_noise: float | None = None
    loss_clip: float = AUDITED_LOSS_CLIP
    blank_records: bool = False

    @classmethod
    def of(cls, mechanism: str, **changes: object) -> "AuditPlan":
        """The default audit of a mechanism with ``changes``; for `paper`, epsilon and sample rate are the paper's."""
        defaults = DEFAULT_PLANS.get(mechanism, {})
        return replace(cls(mechanism=mechanism), **{**defaults, **changes})  # type: ignore[arg-type]

    def spec(self) -> MechanismSpec:
        """The mechanism for one client in two replicas: without the canary, and with it."""
        if not mechanism_of(self.mechanism).has_ledger:
            raise InputError(f"mechanism must be paper or rigorous, got '{self.mechanism}', which makes no claim")
        if not 1 <= self.batch_size <= self.records:
            raise InputError(f"batch must be from 1 to {self.records} (the number of records), got {self.batch_size}")
        if not (0 < self.epsilon < np.inf and 0 < self.delta < 1):
            raise InputError(
                f"epsilon must be greater than 0 and delta between 0 and 1, got {self.epsilon:g} and {self.delta:g}"
            )
        spec = make_mechanism(
            self.mechanism,
            np.array([self.epsilon], np.float64),
            np.array([self.delta]),
            np.full((2, 1), self.records),
            clip_norm=self.clip_norm,
            batch_size=np.array([self.batch_size]),
            local_iterations=self.local_iterations,
            max_uploads=np.array([1]),
            least_noise=0.0,
        )
        return self.with_released_losses(spec)

    def with_released_losses(self, spec: MechanismSpec) -> MechanismSpec:
        """Return a mechanism that also releases the losses of this plan, if it has any that are protected."""
        if self.loss_noise is None or not mechanism_of(self.mechanism).is_calibrated:
            return spec
        query = LossQuery(self.loss_clip, self.loss_noise, first_step_noise(spec.step_noise, self.loss_noise))
        return replace(spec, loss_query=query)


def audit(
    plan: AuditPlan, spec: MechanismSpec | None = None, progress: Callable[[int], None] | None = None
) -> AuditResult:
    """Run the trials and compute a lower bound on epsilon.

    Args:
        plan: Settings of the audit.
        spec: The mechanism to attack; by default the one that the plan claims.
        progress: Called with the number of trials done so far.
    """
    at_least("trials", plan.trials, MIN_TRIALS)
    if plan.trials > MAX_TRIALS:
        raise InputError(f"trials must be at most {MAX_TRIALS:,}, got {plan.trials:,}")
    played = spec or plan.spec()
    model, data = _stage(plan)
    first = model.initial(plan.seed).to(data.images.device)
    silent = replace(played, step_noise=np.zeros((2, 1)), upload_noise=np.zeros((2, 1)), loss_query=None)
    move = _canary_move(plan, silent, model, data, first)
    directions, shift = _directions(model, move)
    shift = np.concatenate([shift, loss_shift(played, model, data, first)])
    half = plan.trials // 2
    worlds = []
    for world in (0, 1):
        features = []
        chunk = max(1, int(CHUNK_BYTES / (8 * model.size)))
        for start in range(0, half, chunk):
            count = min(chunk, half - start)
            uploads, sums = _uploads(plan, played, model, data, first, world, count, world * half + start)
            features.append(np.concatenate([_projected(uploads - first, directions), sums], axis=1))
            if progress is not None:
                progress(world * half + start + count)
        worlds.append(np.concatenate(features).astype(np.float64))
    return audit_scores(
        worlds[0],
        worlds[1],
        shift,
        claim=plan.epsilon,
        delta=plan.delta,
        confidence=plan.confidence,
        gaussian=mechanism_of(plan.mechanism).sampling == "poisson" and plan.batch_size == plan.records,
    )


def audit_samples(plan: AuditPlan, sampling: str = "poisson") -> SamplingResult:
    """Test whether training draws its samples independently, each record with the same probability."""
    rate = plan.batch_size / plan.records if plan.batch_size < plan.records else SAMPLING_RATE
    chosen = drawn_samples(plan.seed, sampling, rate, plan.device)
    return audit_sampling(chosen, rate, plan.confidence)


def drawn_samples(seed: int, sampling: str, rate: float = SAMPLING_RATE, device_name: str = "cpu") -> BoolArray:
    """(draws, steps, records): which records `draw_samples` drew."""
    device = torch_device(device_name)
    sizes, steps = np.array([[SAMPLING_RECORDS]]), SAMPLING_STEPS
    batch = max(1, round(rate * SAMPLING_RECORDS))
    spec = MechanismSpec.simple(sizes, batch_size=batch, local_iterations=steps, sampling=sampling)
    spec = replace(spec, sample_rate=np.full((1, 1), rate))
    empty = torch.zeros(0)
    order, start = torch.arange(SAMPLING_RECORDS, dtype=torch.int32)[None], torch.zeros(1, 1, dtype=torch.int64)
    data = ClientData(empty, empty, empty, order.to(device), start.to(device), torch.from_numpy(sizes).to(device))
    row = torch.zeros(SAMPLING_DRAWS, dtype=torch.int64, device=device)
    key = keys([seed], "audit-samples", device).expand(SAMPLING_DRAWS)
    counter = torch.arange(SAMPLING_DRAWS, device=device) * steps
    indices, mask = draw_samples(data, sampling_of(spec, sizes, device), key, row, row, counter, steps)
    counts = torch.ones(indices.shape) if mask.numel() == 0 else mask.float().cpu()
    chosen = torch.zeros(SAMPLING_DRAWS, steps, SAMPLING_RECORDS).scatter_add_(2, indices.cpu(), counts)
    return np.asarray(chosen.numpy() > 0)


def _stage(plan: AuditPlan) -> tuple[Model, ClientData]:
    """Return a small model and its data: real images shrunk to the model's input size, then the canary.

    The canary is white and labelled with the class that the model finds least likely. If a step samples only some
    records, all other records are copies of one record, so that only the canary changes an upload. The
    attacker is allowed to choose the data.
    """
    source = load_dataset("fashion-mnist-mini")
    if not (1 <= plan.pixels <= 28 and 28 % plan.pixels == 0):
        raise InputError(f"pixels must divide 28, got {plan.pixels}")
    chosen = generator(plan.seed, "audit").permutation(len(source.train.labels))[: plan.records]
    if plan.batch_size < plan.records:
        chosen = np.repeat(chosen[:1], plan.records)
    if len(chosen) < plan.records:
        raise InputError(f"records must be at most {len(chosen)}, got {plan.records}")
    side, block = plan.pixels, 28 // plan.pixels
    images = source.train.images[chosen].reshape(-1, side, block, side, block).mean(axis=(2, 4)).astype(np.uint8)
    if plan.blank_records:
        images[:] = 0
    model = make_model(plan.model, (1, side, side), source.info.classes)
    white = np.full((1, side, side), 255, np.uint8)
    pictures = torch.from_numpy(np.concatenate([images, white])[..., None])
    scores = model.logits(model.initial(plan.seed)[None], as_inputs(pictures[None, -1:]))[0, 0]
    labels = torch.tensor([*source.train.labels[chosen].tolist(), int(scores.argmin())])
    order = torch.arange(plan.records + 1, dtype=torch.int32)
    data = ClientData(
        images=pictures,
        targets=torch.nn.functional.one_hot(labels, source.info.classes).float(),
        squares=as_inputs(pictures).flatten(1).square().sum(1),
        order=torch.stack([order, order]),
        start=torch.zeros(2, 1, dtype=torch.int64),
        size=torch.tensor([[plan.records], [plan.records + 1]]),
    )
    device = torch_device(plan.device)
    return model, ClientData(**{name: tensor.to(device) for name, tensor in vars(data).items()})


@torch.no_grad()
def _uploads(
    plan: AuditPlan,
    spec: MechanismSpec,
    model: Model,
    data: ClientData,
    first: Tensor,
    world: int,
    count: int,
    start: int = 0,
) -> tuple[Tensor, FloatArray]:
    """Uploads (count, d) in one world (0: without the canary, 1: with it), all from the same model, and loss sums."""
    device = first.device
    replica, client = torch.full((count,), world, device=device), torch.zeros(count, dtype=torch.int64, device=device)
    counter = torch.arange(start, start + count, device=device) * spec.local_iterations
    sampling = sampling_of(spec, data.size.cpu().numpy(), device)
    sample_key, noise_key, upload_key = (
        keys([plan.seed], f"audit-{purpose}", device).expand(count) for purpose in ("samples", "steps", "uploads")
    )
    indices, mask = draw_samples(data, sampling, sample_key, replica, client, counter, spec.local_iterations)
    if bool(sampling.overflow):
        raise InputError("a sample has more records than places on this device: audit with another seed")
    rows = TrainingBatch(
        indices,
        mask,
        sampling.batch_size[replica, client],
        torch.from_numpy(spec.step_noise).to(device)[replica, client].float(),
        CounterNoise(noise_key, counter) if spec.step_noise.any() else None,
        first_noise=first_noise(spec, replica, client),
    )
    weights = first.repeat(count, 1)
    sums = released_sums(spec, model, weights, data, rows, plan.seed, counter)
    train_locally(model, weights, data, rows, plan.learning_rate, spec.clip_norm, plan.local)
    weight = 1.0 if plan.local is None else plan.local.first_step_weight(plan.learning_rate, spec.local_iterations)
    deviations = torch.from_numpy(weight * spec.upload_deviation(plan.learning_rate)).to(device)
    if spec.upload_noise.any():
        add_normals_(weights, upload_key, counter, deviations[replica, client].float())
    return weights, sums


def _canary_move(plan: AuditPlan, silent: MechanismSpec, model: Model, data: ClientData, first: Tensor) -> Tensor:
    """(d,): how far the canary moves an upload without noise and sampling.

    If a step samples only some records, this is one step in which the canary joins b copies of the other record
    (Poisson sampling) or replaces one of them (fixed batches).
    """
    if plan.batch_size == plan.records:
        without, with_ = (_uploads(plan, silent, model, data, first, world, 1)[0][0] for world in (0, 1))
        return with_ - without
    b = plan.batch_size
    device = first.device
    samples = torch.zeros(2, 1, b + 1, dtype=torch.int64, device=device)
    mask = torch.ones(2, 1, b + 1, dtype=torch.bool, device=device)
    samples[1, 0, b] = plan.records
    mask[0, 0, b] = False
    if silent.sampling == "fixed":
        mask[1, 0, 0] = False
    rows = TrainingBatch(samples, mask, torch.tensor([b, b], device=device), torch.zeros(2, device=device))
    weights = first.repeat(2, 1)
    train_locally(model, weights, data, rows, plan.learning_rate, silent.clip_norm, plan.local)
    return weights[1] - weights[0]


def _projected(moves: Tensor, directions: FloatArray) -> FloatArray:
    """Return moves (n, d) times directions (d, K)."""
    if moves.device.type == "cpu":
        return np.asarray(moves.numpy() @ directions)
    columns = torch.from_numpy(directions).to(moves.device, torch.float64)
    return np.asarray((moves.double() @ columns).cpu().numpy())


def _directions(model: Model, move: Tensor) -> tuple[FloatArray, FloatArray]:
    """For each of the K tensors: the unit vector along which the canary moves it, (d, K), and how far, (K,)."""
    columns, lengths, at = [], [], 0
    move = move.cpu()
    for tensor in model.tensors(move).values():
        column = torch.zeros(model.size)
        piece = move[at : at + tensor.numel()]
        column[at : at + tensor.numel()] = piece / piece.norm().clamp(min=1e-30)
        columns.append(column)
        lengths.append(float(piece.norm()))
        at += tensor.numel()
    return torch.stack(columns, dim=1).numpy(), np.array(lengths)
