"""One upload of a real client: its records, its mechanism, and the ledger that is charged before training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from fedlane.flower.client.weights import as_arrays, as_flat
from fedlane.flower.protocol import LossReport
from fedlane.learning.devices import squared_norms
from fedlane.learning.input_range import RecordError
from fedlane.learning.local import ClientData, TrainingBatch, train_locally
from fedlane.learning.loss_reports import estimated_losses, loss_sums
from fedlane.learning.models import Model
from fedlane.learning.strict import train_strictly
from fedlane.learning.system_random import check_global_model, system_normals, system_rows
from fedlane.privacy.accountant import Terms, epsilon_curve
from fedlane.privacy.ledger import Account, ClientLedger
from fedlane.privacy.loss_release import with_losses
from fedlane.privacy.mechanism import make_mechanism
from fedlane.records import IntArray, LossQuery, MechanismSpec
from fedlane.validate import InputError, at_least, check_clip_norm, positive


@dataclass(frozen=True, kw_only=True)
class TrainingTerms:
    """How a client trains, and the privacy terms that it agreed to. `epsilon` None means training without privacy."""

    learning_rate: float
    batch_size: int
    local_iterations: int
    clip_norm: float
    epsilon: float | None
    delta: float
    max_uploads: int
    histogram_noise: float
    least_noise: float
    report_losses: bool = False
    loss_clip: float = 4.0
    loss_noise: float = 4.0

    def __post_init__(self) -> None:
        positive("loss_clip", self.loss_clip)
        positive("loss_noise", self.loss_noise)
        positive("learning_rate", self.learning_rate)
        check_clip_norm("clip_norm", self.clip_norm)
        for field in ("batch_size", "local_iterations", "max_uploads"):
            at_least(field, getattr(self, field), 1)
        if self.epsilon is not None:
            positive("epsilon", self.epsilon)
            positive("histogram_noise", self.histogram_noise)
            if not 0 < self.delta < 1:
                raise InputError(f"delta must be greater than 0 and less than 1, got {self.delta}")


@dataclass(frozen=True)
class PrivacyAccount:
    """A data set's account in an open ledger, with its mechanism."""

    spec: MechanismSpec
    entry: Account
    """The account as the ledger holds it."""
    histogram: tuple[float, ...]
    """Released label counts, with noise; some may be negative."""

    @property
    def size(self) -> float:
        """Released number of records: the noisy counts' sum, but at least 1."""
        return max(1.0, round(sum(self.histogram), 1))

    @property
    def upload_noise(self) -> float:
        """Standard deviation of an upload's noise in units of eta C."""
        spec = self.spec
        return float(spec.step_noise[0, 0]) * spec.local_iterations**0.5 / float(spec.batch_size[0, 0])

    def epsilon(self, uploads: int) -> float:
        """Return the epsilon spent after some uploads. The first call computes it and fills the user's cache."""
        terms = self.entry.terms
        return float(epsilon_curve(terms, terms.max_uploads)[uploads])


def open_privacy_account(
    ledger: ClientLedger, dataset: str, terms: TrainingTerms, label_counts: IntArray
) -> PrivacyAccount:
    """Open a data set's account. The first time, calibrate the noise and release the label histogram.

    Later, the noise is read from the ledger, and all other terms must equal those in the ledger.
    """
    existing = ledger.accounts.get(dataset)
    spec = _mechanism(terms, int(label_counts.sum()), existing.terms if existing else None)
    if terms.report_losses:
        spec = with_losses(spec, terms.loss_clip, terms.loss_noise)
    ledger.open_account(dataset, Terms.of(spec, 0, 0))
    histogram = ledger.histogram(
        dataset, lambda: (label_counts + spec.histogram_noise * system_normals(len(label_counts))).tolist()
    )
    return PrivacyAccount(spec, ledger.accounts[dataset], histogram)


def _mechanism(terms: TrainingTerms, size: int, ledger_terms: Terms | None) -> MechanismSpec:
    """Return the client's mechanism, calibrated unless its ledger already has the noise."""
    assert terms.epsilon is not None
    if ledger_terms is None:
        return make_mechanism(
            "rigorous",
            np.array([float(terms.epsilon)]),
            np.array([float(terms.delta)]),
            np.array([[size]]),
            clip_norm=terms.clip_norm,
            batch_size=np.array([terms.batch_size]),
            local_iterations=terms.local_iterations,
            max_uploads=np.array([terms.max_uploads]),
            histogram_noise=float(terms.histogram_noise),
            least_noise=terms.least_noise,
        )
    batch = min(terms.batch_size, size)
    return MechanismSpec(
        name="rigorous",
        sampling="poisson",
        clip_norm=terms.clip_norm,
        local_iterations=terms.local_iterations,
        asked_batch=np.array([terms.batch_size]),
        batch_size=np.array([[batch]]),
        sample_rate=np.array([[batch / size]]),
        step_noise=np.array([[ledger_terms.step_noise]]),
        upload_noise=np.zeros((1, 1)),
        epsilon=np.array([float(terms.epsilon)]),
        delta=np.array([float(terms.delta)]),
        max_uploads=np.array([terms.max_uploads]),
        histogram_noise=float(terms.histogram_noise),
    )


@dataclass(frozen=True)
class TrainedUpload:
    """What a client sends after training."""

    arrays: ArrayRecord
    losses: LossReport | None = None
    """Its losses, if it reports them."""


@dataclass(frozen=True)
class LocalTrainer:
    """A client's model as the server sent it, checked, and the records to train it on."""

    model: Model
    weights: Tensor
    """(1, d): the weights that the server sent."""
    received: Mapping[str, NDArray[Any]]
    """The same weights as named arrays."""
    data: ClientData

    @classmethod
    def of(
        cls, model: Model, received: Mapping[str, NDArray[Any]], inputs: Tensor, labels: Tensor, classes: int
    ) -> "LocalTrainer":
        """Prepare training; raise `InputError` for a model that no honest server sends."""
        weights = as_flat(model, received)
        check_global_model(weights[:, : model.trained])
        check_global_model(weights[:, model.trained :], np.inf)  # variances and counters may be large
        size = len(labels)
        data = ClientData(
            images=inputs,
            targets=torch.nn.functional.one_hot(labels, classes).to(torch.float32),
            squares=squared_norms(inputs),
            order=torch.arange(size, dtype=torch.int32)[None],
            start=torch.zeros(1, 1, dtype=torch.int64),
            size=torch.tensor([[size]]),
        )
        return cls(model, weights, received, data)

    def train_privately(self, account: PrivacyAccount, learning_rate: float) -> TrainedUpload:
        """Return the update of tau Poisson-sampled steps with clipping, noise and the operating system's randomness.

        The upload must have been reserved in the ledger. Losses are released within the same budget.
        """
        spec, weights = account.spec, self.weights.clone()
        assert spec.clip_norm is not None
        batch = system_rows(spec, len(self.data.targets))
        with torch.no_grad():
            sums = train_strictly(self.model, weights, self.data, batch, learning_rate, spec.clip_norm, spec.loss_query)
        expected = float(spec.sample_rate[0, 0]) * len(self.data.targets)
        return TrainedUpload(self._named(weights), _loss_report(sums, expected, spec.loss_query))

    def train_plainly(self, terms: TrainingTerms) -> TrainedUpload:
        """Return the update of plain SGD: tau steps on b distinct records each, without clipping or noise."""
        size, rng = len(self.data.targets), np.random.default_rng()
        batch_size = min(terms.batch_size, size)
        if batch_size < self.model.smallest_batch:
            raise RecordError(f"this model needs at least {self.model.smallest_batch} records in a batch")
        indices = np.stack([rng.choice(size, batch_size, replace=False) for _ in range(terms.local_iterations)])
        batch = TrainingBatch(
            indices=torch.from_numpy(indices)[None],
            mask=torch.empty(0),
            batch_size=torch.tensor([batch_size]),
            step_noise=torch.zeros(1),
            seeds=torch.from_numpy(rng.integers(2**62, size=(1, terms.local_iterations))),
        )
        weights, sums = self.weights.clone(), None
        query = LossQuery(np.inf, 0.0, np.zeros((1, 1))) if terms.report_losses else None
        with torch.no_grad():
            if query is not None:
                sums = loss_sums(self.model, weights, self.data, batch, query)
            train_locally(self.model, weights, self.data, batch, terms.learning_rate, None)
        return TrainedUpload(self._named(weights), _loss_report(sums, float(batch_size), query))

    def _named(self, weights: Tensor) -> ArrayRecord:
        """Return trained weights (1, d) under the names of the server's arrays."""
        if not bool(torch.isfinite(weights).all()):
            raise RecordError("training diverged to non-finite weights: nothing is sent")
        return as_arrays(self.model, weights[0], self.received)


def _loss_report(sums: Tensor | None, records: float, query: LossQuery | None) -> LossReport | None:
    """Return the report of loss sums (1, 2) over a number of records; None without a query, and if they overflow."""
    if sums is None or query is None or not bool(torch.isfinite(sums).all()):
        return None
    mean, rms = estimated_losses(sums.numpy(), np.array([records]), query)
    return LossReport(float(mean[0]), float(rms[0]), query.protected)
