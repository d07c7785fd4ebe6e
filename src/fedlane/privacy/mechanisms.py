"""Privacy mechanisms: how each processes a client's data before an upload, and how its uploads are accounted for.

A `MechanismSpec` is plain data. The classes below implement the behaviour for its name; `mechanism_of` looks it up.
Numbered readings are explained in docs/reading-the-paper.md.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from fedlane.privacy.calibrate import calibrate_clients
from fedlane.privacy.composition import account, composed_epsilons, has_closed_form, resolution
from fedlane.privacy.paper import PaperLeakage, composed_gaussian, paper_noise
from fedlane.records import FloatArray, IntArray, MechanismSpec
from fedlane.validate import InputError

if TYPE_CHECKING:
    from fedlane.privacy.accountant import Terms

FEW_KINDS = 4
"""With more kinds of clients in a replica, sample rates are rounded to a grid, so that few kinds are computed."""
GRID = 1.05
"""Ratio of neighbouring values on that grid."""

_Noise = TypeVar("_Noise", float, FloatArray)


class Mechanism(ABC):
    """Base class of mechanisms: the processing of a client's data, and the privacy that an upload costs.

    Attributes:
        name: Name in scenarios, ledgers and `MechanismSpec.name`.
        sampling: How a step draws its records (see `MechanismSpec.sampling`).
        has_ledger: Whether the mechanism makes a privacy claim, so that every upload is charged to a budget.
        is_calibrated: Whether its noise is calibrated to a budget.
        budget_period: What the agreed epsilon covers: "round" or "run".
        is_lower_bound: Whether the accounted epsilon is a lower bound on the leakage; otherwise it is an upper bound.
    """

    name: ClassVar[str]
    sampling: ClassVar[str] = "fixed"
    has_ledger: ClassVar[bool] = True
    is_calibrated: ClassVar[bool] = False
    budget_period: ClassVar[str] = "run"
    is_lower_bound: ClassVar[bool] = False

    @abstractmethod
    def completed(self, draft: MechanismSpec, sizes: IntArray, least_noise: float) -> MechanismSpec:
        """Return ``draft``, a spec without noise, with this mechanism's noise for clients of ``sizes`` (R, U)."""

    def uncalibrated(self, draft: MechanismSpec, sizes: IntArray) -> MechanismSpec:
        """Return the same as `completed`, but without noise if it has to be calibrated, which is slow."""
        return self.completed(draft, sizes, 0.0)

    def noise(self, step_noise: _Noise, upload_noise: _Noise) -> _Noise:
        """Return the noise that the privacy claim rests on: that of a step or that of an upload."""
        return step_noise

    def divergence_noise(self, spec: MechanismSpec) -> FloatArray | None:
        """Return the standard deviation of an upload's noise in units of eta C, (R, U); None for the paper's noise."""
        return None

    def accounted(self, spec: MechanismSpec) -> MechanismSpec:
        """Return the spec whose terms are accounted for: ``spec``, or one with fewer kinds of clients."""
        return spec

    def epsilon_after(self, terms: "Terms", uploads: int) -> float:
        """Return epsilon after ``uploads`` uploads (see `Spent.epsilon`); infinite without a guarantee."""
        return math.inf if uploads else 0.0

    def epsilon_per_upload(self, terms: "Terms") -> float:
        """Return the epsilon of a single upload, without the histogram release."""
        return self.epsilon_after(terms, 1)

    def epsilon_composed(self, terms: "Terms", uploads: int) -> float:
        """Return the epsilon of Gaussian rounds, tightly composed (see `Spent.epsilon_composed`)."""
        return 0.0

    def epsilons(self, terms: "Terms", counts: IntArray) -> FloatArray:
        """Return epsilon at increasing upload counts."""
        return np.array([self.epsilon_after(terms, int(count)) for count in counts])


class NoMechanism(Mechanism):
    """Plain training: no clipping, no noise, no budget."""

    name = "none"
    has_ledger = False

    def completed(self, draft: MechanismSpec, sizes: IntArray, least_noise: float) -> MechanismSpec:
        """Return ``draft`` without clipping and with an unlimited budget."""
        clients = len(draft.epsilon)
        return replace(
            draft,
            clip_norm=None,
            epsilon=np.full(clients, np.inf),
            delta=np.ones(clients),
            max_uploads=np.full(clients, np.iinfo(np.int64).max),
            histogram_noise=0.0,
        )


class PaperMechanism(Mechanism):
    """The paper's mechanism: fixed batches, noise once per upload, epsilon per round (reading 19).

    Its claim does not hold. The accounted epsilon is a lower bound on the leakage (reading 20).
    """

    name = "paper"
    budget_period = "round"
    is_lower_bound = True

    def completed(self, draft: MechanismSpec, sizes: IntArray, least_noise: float) -> MechanismSpec:
        """Return ``draft`` with Theorem 1's noise; the paper uses exact label counts."""
        noise = paper_noise(draft.epsilon, draft.delta, sizes, draft.batch_size, draft.local_iterations)
        return replace(draft, upload_noise=noise, histogram_noise=0.0)

    def noise(self, step_noise: _Noise, upload_noise: _Noise) -> _Noise:
        """Return the noise of an upload."""
        return upload_noise

    def accounted(self, spec: MechanismSpec) -> MechanismSpec:
        """Return ``spec`` with noise rounded up and rates rounded down in replicas with many kinds of clients.

        The result leaks less than ``spec``, so lower bounds remain valid.
        """
        noise, rate = spec.upload_noise.copy(), spec.sample_rate.copy()
        for r in range(len(noise)):
            if len(np.unique(noise[r])) > FEW_KINDS:
                noise[r] = GRID ** np.ceil(np.log(noise[r]) / np.log(GRID) - 1e-9)
                rate[r] = GRID ** np.floor(np.log(rate[r]) / np.log(GRID) + 1e-9)
        return replace(spec, upload_noise=noise, sample_rate=np.minimum(rate, spec.sample_rate))

    def epsilon_after(self, terms: "Terms", uploads: int) -> float:
        """Return a lower bound on the leakage."""
        return self._leakage(terms).epsilon(terms.delta, uploads)

    def epsilon_per_upload(self, terms: "Terms") -> float:
        """Return the claimed epsilon."""
        return terms.epsilon

    def epsilon_composed(self, terms: "Terms", uploads: int) -> float:
        """Return the epsilon of uploads that are each exactly (epsilon, delta)-DP Gaussian rounds."""
        return composed_gaussian(terms.epsilon, terms.delta, uploads) if uploads else 0.0

    def epsilons(self, terms: "Terms", counts: IntArray) -> FloatArray:
        """Return lower bounds on the leakage."""
        return self._leakage(terms).epsilons(terms.delta, counts)

    def _leakage(self, terms: "Terms") -> PaperLeakage:
        return PaperLeakage(terms.upload_noise, terms.sample_rate, terms.local_iterations)


class RigorousMechanism(Mechanism):
    """DP-SGD: Poisson samples and noise in every step, calibrated to an epsilon over all of a client's uploads."""

    name = "rigorous"
    sampling = "poisson"
    is_calibrated = True

    def completed(self, draft: MechanismSpec, sizes: IntArray, least_noise: float) -> MechanismSpec:
        """Return ``draft`` with calibrated noise, which takes seconds for every new kind of client."""
        spec = self.uncalibrated(draft, sizes)
        steps = spec.max_uploads * spec.local_iterations
        noise = calibrate_clients(spec.sample_rate, spec.epsilon, spec.delta, steps, spec.histogram_noise, least_noise)
        return replace(spec, step_noise=noise)

    def uncalibrated(self, draft: MechanismSpec, sizes: IntArray) -> MechanismSpec:
        """Return ``draft`` with the sample rates that training uses."""
        budgets = draft.epsilon, draft.delta, draft.max_uploads
        return replace(draft, sample_rate=np.stack([_few_rates(row, *budgets) for row in draft.sample_rate]))

    def divergence_noise(self, spec: MechanismSpec) -> FloatArray | None:
        """Return the standard deviation that tau noised steps add to an upload, in units of eta C, (R, U)."""
        noise: FloatArray = spec.step_noise * np.sqrt(spec.local_iterations) / spec.batch_size
        return noise

    def epsilon_after(self, terms: "Terms", uploads: int) -> float:
        """Return a tight upper bound on the epsilon spent."""
        return self._account(terms, uploads, terms.histogram_noise)

    def epsilon_per_upload(self, terms: "Terms") -> float:
        """Return a tight upper bound on the epsilon of a single upload."""
        return self._account(terms, 1, 0.0)

    def epsilons(self, terms: "Terms", counts: IntArray) -> FloatArray:
        """Return upper bounds on the epsilon spent."""
        if terms.step_noise <= 0:
            return np.where(counts > 0, np.inf, 0.0)
        if has_closed_form(terms.step_noise, terms.sample_rate, terms.histogram_noise):
            return super().epsilons(terms, counts)
        return composed_epsilons(terms, counts)

    def _account(self, terms: "Terms", uploads: int, histogram_noise: float) -> float:
        return account(
            terms.step_noise,
            terms.sample_rate,
            uploads * terms.local_iterations,
            terms.delta,
            histogram_noise=histogram_noise,
            interval=resolution(terms.epsilon),
        )


def _few_rates(rates: FloatArray, *budgets: FloatArray | IntArray) -> FloatArray:
    """Return one replica's sample rates (U,), rounded up to powers of 1.05 if it has many kinds of clients.

    Training and accounting both use the rounded rates. They depend on the replica's own clients only.
    """
    kinds = np.unique(np.stack([rates, *budgets]), axis=1)
    if kinds.shape[1] <= FEW_KINDS or len(np.unique(rates)) == 1:
        return rates
    return np.minimum(1.0, GRID ** np.ceil(np.log(rates) / math.log(GRID) - 1e-9))


_MECHANISMS = {mechanism.name: mechanism for mechanism in (NoMechanism(), PaperMechanism(), RigorousMechanism())}


def mechanism_of(name: str) -> Mechanism:
    """Return the mechanism with a name, such as `MechanismSpec.name` or `Terms.mechanism`.

    Raises:
        InputError: There is no mechanism with that name.

    Examples:
        >>> mechanism_of("paper").budget_period
        'round'
    """
    if name not in _MECHANISMS:
        raise InputError(f"privacy.mechanism must be none, paper or rigorous, got '{name}'")
    return _MECHANISMS[name]
