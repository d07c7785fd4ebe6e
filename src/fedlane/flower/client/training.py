"""One upload of a real client: its records, its mechanism, and the ledger that pays before anything is trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from fedlane.flower.client.weights import as_arrays, as_flat
from fedlane.learning.local import ClientData, TrainingBatch, as_inputs, train_locally
from fedlane.learning.models import Model
from fedlane.learning.system_random import check_global_model, system_normals, system_rows
from fedlane.privacy.accountant import Terms, epsilon_curve
from fedlane.privacy.ledger import Account, ClientLedger
from fedlane.privacy.mechanism import make_mechanism
from fedlane.records import IntArray, MechanismSpec
from fedlane.validate import InputError, at_least, positive


@dataclass(frozen=True, kw_only=True)
class TrainingTerms:
    """How a client trains, and what it agreed to. Without an epsilon: plain training, no privacy."""

    learning_rate: float
    batch_size: int
    local_iterations: int
    clip_norm: float
    epsilon: float | None
    delta: float
    max_uploads: int
    histogram_noise: float
    least_noise: float

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        positive("clip_norm", self.clip_norm)
        for field in ("batch_size", "local_iterations", "max_uploads"):
            at_least(field, getattr(self, field), 1)
        if self.epsilon is not None:
            positive("epsilon", self.epsilon)
            positive("histogram_noise", self.histogram_noise)
            if not 0 < self.delta < 1:
                raise InputError(f"delta must be greater than 0 and less than 1, got {self.delta}")


@dataclass(frozen=True)
class PrivacyAccount:
    """An open ledger's account of one data set, and the mechanism that goes with it."""

    ledger: ClientLedger
    dataset: str
    spec: MechanismSpec
    account: Account
    histogram: tuple[float, ...]
    """The label counts as released, noise included; some may be negative."""

    @property
    def size(self) -> float:
        """Records, as released: unbiased, but at least 1."""
        return max(1.0, round(sum(self.histogram), 1))

    @property
    def upload_noise(self) -> float:
        """The deviation of an upload's noise in units of eta C."""
        spec = self.spec
        return float(spec.step_noise[0, 0]) * spec.local_iterations**0.5 / float(spec.batch_size[0, 0])

    def epsilon(self, uploads: int) -> float:
        """Spent after some uploads; from the user's cache but the first time."""
        terms = self.account.terms
        return float(epsilon_curve(terms, terms.max_uploads)[uploads])


def open_privacy_account(
    ledger: ClientLedger, dataset: str, recipe: TrainingTerms, label_counts: IntArray
) -> PrivacyAccount:
    """The account of a data set, opened the first time: the noise is calibrated then, and the histogram released.

    Later the noise comes from the ledger, and all other terms must be the same as they were.
    """
    known = ledger.accounts.get(dataset)
    spec = _mechanism(recipe, int(label_counts.sum()), known.terms if known else None)
    ledger.open_account(dataset, Terms.of(spec, 0, 0))
    histogram = ledger.histogram(
        dataset, lambda: (label_counts + spec.histogram_noise * system_normals(len(label_counts))).tolist()
    )
    return PrivacyAccount(ledger, dataset, spec, ledger.accounts[dataset], histogram)


def _mechanism(recipe: TrainingTerms, size: int, terms: Terms | None) -> MechanismSpec:
    """One client's mechanism. With the noise that its ledger holds already, nothing is calibrated."""
    assert recipe.epsilon is not None
    if terms is None:
        return make_mechanism(
            "rigorous",
            np.array([float(recipe.epsilon)]),
            np.array([float(recipe.delta)]),
            np.array([[size]]),
            clip_norm=recipe.clip_norm,
            batch_size=np.array([recipe.batch_size]),
            local_iterations=recipe.local_iterations,
            max_uploads=np.array([recipe.max_uploads]),
            histogram_noise=float(recipe.histogram_noise),
            least_noise=recipe.least_noise,
        )
    batch = min(recipe.batch_size, size)
    return MechanismSpec(
        name="rigorous",
        sampling="poisson",
        clip_norm=recipe.clip_norm,
        local_iterations=recipe.local_iterations,
        asked_batch=np.array([recipe.batch_size]),
        batch_size=np.array([[batch]]),
        sample_rate=np.array([[batch / size]]),
        step_noise=np.array([[terms.step_noise]]),
        upload_noise=np.zeros((1, 1)),
        epsilon=np.array([float(recipe.epsilon)]),
        delta=np.array([float(recipe.delta)]),
        max_uploads=np.array([recipe.max_uploads]),
        histogram_noise=float(recipe.histogram_noise),
    )


@dataclass(frozen=True)
class LocalTrainer:
    """A client ready to train: the model it was sent, checked, and its records."""

    model: Model
    weights: Tensor
    """(1, d): as the server sent them."""
    sent: Mapping[str, NDArray[Any]]
    """The same as named arrays."""
    data: ClientData

    @classmethod
    def of(
        cls, model: Model, sent: Mapping[str, NDArray[Any]], inputs: Tensor, labels: Tensor, classes: int
    ) -> "LocalTrainer":
        """Refuses a model that no honest server sends."""
        weights = as_flat(model, sent)
        check_global_model(weights)
        size = len(labels)
        data = ClientData(
            images=inputs,
            targets=torch.nn.functional.one_hot(labels, classes).to(torch.float32),
            squares=torch.cat([as_inputs(piece).flatten(1).square().sum(1) for piece in torch.split(inputs, 4096)]),
            order=torch.arange(size, dtype=torch.int32)[None],
            start=torch.zeros(1, 1, dtype=torch.int64),
            size=torch.tensor([[size]]),
        )
        return cls(model, weights, sent, data)

    def trained_privately(self, books: PrivacyAccount, learning_rate: float) -> ArrayRecord:
        """The update: tau Poisson-sampled, clipped and noised steps, by the operating system's randomness.

        The upload must have been reserved in the ledger.
        """
        rows = system_rows(books.spec, len(self.data.targets))
        return self._trained(rows, learning_rate, books.spec.clip_norm)

    def trained_plainly(self, recipe: TrainingTerms) -> ArrayRecord:
        """The update of plain SGD: tau steps on b distinct records each, no clipping, no noise."""
        size, rng = len(self.data.targets), np.random.default_rng()
        batch = min(recipe.batch_size, size)
        chosen = np.stack([rng.choice(size, batch, replace=False) for _ in range(recipe.local_iterations)])
        rows = TrainingBatch(
            indices=torch.from_numpy(chosen)[None],
            mask=torch.empty(0),
            batch_size=torch.tensor([batch]),
            step_noise=torch.zeros(1),
        )
        return self._trained(rows, recipe.learning_rate, None)

    def _trained(self, rows: TrainingBatch, learning_rate: float, clip_norm: float | None) -> ArrayRecord:
        weights = self.weights.clone()
        with torch.no_grad():
            train_locally(self.model, weights, self.data, rows, learning_rate, clip_norm)
        if not bool(torch.isfinite(weights).all()):
            raise InputError("training did not stay finite: nothing is sent")
        return as_arrays(self.model, weights[0], self.sent)
