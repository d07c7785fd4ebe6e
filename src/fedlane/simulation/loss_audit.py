"""The audit's view of released losses: the sums that an attacker sees with an upload, and how the canary moves them."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedlane.learning.counter_rng import keys
from fedlane.learning.local import ClientData, TrainingBatch, as_inputs
from fedlane.learning.loss_reports import add_loss_noise_, loss_sums, record_losses
from fedlane.learning.models import Model
from fedlane.records import FloatArray, MechanismSpec

AUDITED_LOSS_CLIP = 0.25
"""Largest loss of a record in an audit. Noise is in multiples of it, and the canary's loss is several times larger."""


def first_noise(spec: MechanismSpec, replica: Tensor, client: Tensor) -> Tensor | None:
    """Return the noise (G,) of the first step of clients (G,) of replicas (G,); None if no losses are released."""
    if spec.loss_query is None:
        return None
    return torch.from_numpy(spec.loss_query.first_step_noise).to(replica.device)[replica, client].float()


def released_sums(
    spec: MechanismSpec,
    model: Model,
    weights: Tensor,
    data: ClientData,
    rows: TrainingBatch,
    seed: int,
    counter: Tensor,
) -> FloatArray:
    """Return the sums (G, 2) that G uploads release with their losses; (G, 0) if they release none."""
    if spec.loss_query is None:
        return np.zeros((len(weights), 0))
    key = keys([seed], "audit-losses", weights.device).expand(len(weights))
    sums = loss_sums(model, weights, data, rows, spec.loss_query)
    return np.asarray(add_loss_noise_(sums, spec.loss_query, key, counter).cpu().numpy())


def loss_shift(spec: MechanismSpec, model: Model, data: ClientData, weights: Tensor) -> FloatArray:
    """Return how far the canary, the last record, moves the sums (2,); empty if no losses are released."""
    query = spec.loss_query
    if query is None:
        return np.zeros(0)
    x, targets = as_inputs(data.images[None, -1:]), data.targets[None, -1:]
    loss = float(record_losses(model, weights[None], x, targets, query.clip))
    return np.array([loss, loss**2 / query.unit])


def with_noise_times(spec: MechanismSpec, factor: float) -> MechanismSpec:
    """Return a mechanism that adds ``factor`` times the noise everywhere, losses included."""
    query = spec.loss_query
    if query is not None:
        query = replace(query, noise=factor * query.noise, first_step_noise=factor * query.first_step_noise)
    return replace(spec, step_noise=factor * spec.step_noise, upload_noise=factor * spec.upload_noise, loss_query=query)
