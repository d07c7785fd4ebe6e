"""Privacy accounting: the epsilon of noised training steps, and what a client has spent after a number of uploads.

A step is a Poisson-sampled Gaussian mechanism. Two data sets are neighbours if one has one record more than the other.
Upper bounds on epsilon come from dp-accounting's privacy loss distributions, which round up, so they are never too
small.
"""

import math
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlane.cache import remembered
from fedlane.privacy.gaussian import gaussian_epsilon
from fedlane.privacy.paper import formula_6
from fedlane.records import FloatArray, IntArray, MechanismSpec
from fedlane.validate import InputError

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from fedlane.privacy.mechanisms import Mechanism

FINE = 1e-4
"""Discretisation interval of the privacy loss: dp-accounting's default."""
SMALLEST_NOISE = 0.1
"""Below this noise multiplier a privacy loss distribution takes minutes to compute, and there is no privacy."""
MIN_DELTA = 1e-12
"""Smallest delta: privacy loss distributions are truncated at a tail mass of 1e-15."""
MAX_STEPS = 200_000
"""Largest number of composed steps: more take minutes."""
EXACT_UPLOADS = 256
"""Every upload count up to this one is computed; larger counts are spaced 1% apart."""


def account(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    *,
    histogram_noise: float = 0.0,
    interval: float = FINE,
) -> float:
    """Return the epsilon that Poisson-sampled Gaussian steps spend.

    Args:
        noise_multiplier: Standard deviation of a step's noise in multiples of the clip norm.
        sample_rate: Probability that a record is in a step's sample, greater than 0 and at most 1.
        steps: Number of steps.
        delta: Target delta, from 1e-12 to less than 1.
        histogram_noise: Noise multiplier of one label-histogram release that is paid for as well; 0 for none.
        interval: Discretisation interval of the privacy loss. Smaller is tighter and slower.

    Returns:
        An upper bound on epsilon at ``delta``; infinite if there are steps without noise.

    Raises:
        InputError: An argument is out of bounds.

    Examples:
        >>> round(account(1.0, 0.01, 1000, 1e-5), 1)
        1.8
    """
    if math.isnan(noise_multiplier) or math.isnan(histogram_noise) or histogram_noise < 0:
        raise InputError(
            "noise_multiplier and histogram_noise must be numbers of at least 0, "
            f"got {noise_multiplier:g} and {histogram_noise:g}"
        )
    if noise_multiplier <= 0 or steps == 0:
        return math.inf if steps else gaussian_epsilon(1 / histogram_noise if histogram_noise else 0.0, delta)
    check_steps(sample_rate, steps, delta)
    if sample_rate >= 1 or noise_multiplier < SMALLEST_NOISE:  # in closed form; ignoring the sampling only adds to it
        square = steps / noise_multiplier**2 + (1 / histogram_noise**2 if histogram_noise else 0.0)
        return gaussian_epsilon(math.sqrt(square), delta)
    distribution = loss_distribution(noise_multiplier, sample_rate, interval).self_compose(steps)
    if histogram_noise:
        distribution = distribution.compose(loss_distribution(histogram_noise, 1.0, interval))
    return float(distribution.get_epsilon_for_delta(delta))


def loss_distribution(noise_multiplier: float, sample_rate: float, interval: float) -> "PrivacyLossDistribution":
    """Return dp-accounting's privacy loss distribution of one step."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=sample_rate, value_discretization_interval=interval
    )


def resolution(epsilon: float) -> float:
    """Return a discretisation interval whose rounding adds about a ten-thousandth to an epsilon of this size."""
    return min(max(epsilon / 10_000, 1e-5), 1e-3)


def check_steps(sample_rate: float, steps: int, delta: float) -> None:
    """Raise an `InputError` if a value is outside the range that accounting supports."""
    if not 0 < sample_rate <= 1:
        raise InputError(f"sample_rate must be greater than 0 and at most 1, got {sample_rate:g}")
    if steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}")
    if steps > MAX_STEPS:
        raise InputError(f"steps must be at most {MAX_STEPS:,}, got {steps:,}: use fewer uploads or fewer steps each")
    if not MIN_DELTA <= delta < 1:
        raise InputError(f"delta must be at least {MIN_DELTA:g} and less than 1, got {delta:g}")


@dataclass(frozen=True)
class Terms:
    """The terms that one client agreed to for one data set, and how it trains on it: all that accounting needs.

    Attributes:
        mechanism: Name of the mechanism, "paper" or "rigorous".
        sample_rate: Probability that a record is in a step's sample.
        local_iterations: Training steps of one upload.
        step_noise: Noise of each step, in multiples of the clip norm C; 0 for none.
        upload_noise: Noise of each upload, in multiples of eta C / b; 0 for none.
        epsilon: Agreed epsilon, per round (paper) or over all uploads (rigorous).
        delta: Agreed delta.
        max_uploads: Number of uploads that the budget covers.
        histogram_noise: Noise of the label-histogram release, in records; 0 if there is none.

    Examples:
        >>> terms = Terms("rigorous", sample_rate=0.01, local_iterations=5, step_noise=0.9, upload_noise=0.0,
        ...               epsilon=8.0, delta=1e-5, max_uploads=300, histogram_noise=10.0)
        >>> spent(terms, 100).epsilon < 8.0
        True
    """

    mechanism: str
    sample_rate: float
    local_iterations: int
    step_noise: float
    upload_noise: float
    epsilon: float
    delta: float
    max_uploads: int
    histogram_noise: float

    @classmethod
    def of(cls, spec: MechanismSpec, replica: int, client: int) -> "Terms":
        """Return the terms of one client.

        Args:
            spec: The mechanism of all clients.
            replica: Index of the replica.
            client: Index of the client.
        """
        at = replica, client
        return cls(
            mechanism=spec.name,
            sample_rate=float(spec.sample_rate[at]),
            local_iterations=spec.local_iterations,
            step_noise=float(spec.step_noise[at]),
            upload_noise=float(spec.upload_noise[at]),
            epsilon=float(spec.epsilon[client]),
            delta=float(spec.delta[client]),
            max_uploads=int(spec.max_uploads[client]),
            histogram_noise=spec.histogram_noise,
        )

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "Terms":
        """Return terms from the plain values of a ledger.

        Raises:
            InputError: A value is missing, unknown, of the wrong type or out of bounds.
        """
        try:
            terms = cls(**values)
            mechanism = _mechanism(terms)
            numbers = [terms.sample_rate, terms.step_noise, terms.upload_noise, terms.epsilon, terms.delta]
            counts = [terms.local_iterations, terms.max_uploads]
            valid = all(math.isfinite(number) and number >= 0 for number in [*numbers, terms.histogram_noise])
            valid &= all(type(count) is int and count >= 1 for count in counts) and 0 < terms.sample_rate <= 1
            valid &= mechanism.has_ledger and 0 < terms.delta < 1 and terms.epsilon > 0
            valid &= mechanism.noise(terms.step_noise, terms.upload_noise) > 0
        except (TypeError, InputError) as error:
            raise InputError(f"invalid client terms: {error}") from None
        if not valid:
            raise InputError("invalid client terms: a value is out of bounds")
        return terms

    def values(self) -> dict[str, Any]:
        """Return the terms as plain values, for a ledger."""
        return asdict(self)


@dataclass(frozen=True)
class Spent:
    """The privacy that a client has spent after a number of uploads.

    Attributes:
        uploads: Number of uploads.
        epsilon: rigorous: a tight upper bound. paper: a lower bound on what leaks (no upper bound is known).
        epsilon_paper: Epsilon by the paper's formula (6), from the epsilon of one upload.
        epsilon_composed: Epsilon of Gaussian rounds that are each exactly (epsilon, delta)-DP, tightly composed (paper
            only; 0 otherwise).
    """

    uploads: int
    epsilon: float
    epsilon_paper: float
    epsilon_composed: float


def spent(terms: Terms, uploads: int) -> Spent:
    """Return what a client has spent.

    Args:
        terms: The client's terms.
        uploads: Number of uploads, at least 0.
    """
    mechanism = _mechanism(terms)
    return Spent(
        uploads=uploads,
        epsilon=mechanism.epsilon_after(terms, uploads),
        epsilon_paper=float(formula_6(mechanism.epsilon_per_upload(terms), terms.delta, uploads)),
        epsilon_composed=mechanism.epsilon_composed(terms, uploads),
    )


def epsilon_curve(terms: Terms, uploads: int) -> FloatArray:
    """Return epsilon after 0, 1, ... ``uploads`` uploads, from the user's cache if it was computed before.

    Above 256 uploads, only counts that are 1% apart are computed. The counts in between take the next larger one's
    epsilon (upper bounds) or the next smaller one's (lower bounds), so bounds remain bounds.

    Args:
        terms: The client's terms.
        uploads: Largest number of uploads.

    Returns:
        Epsilons of shape (uploads + 1,), which never decrease (see `Spent.epsilon`).
    """
    counts = _computed_counts(uploads)
    mechanism = _mechanism(terms)
    key = {**terms.values(), "uploads": uploads, "way": 3, "dp-accounting": version("dp-accounting")}

    def valid(values: list[float]) -> bool:
        return len(values) == len(counts) and bool(np.all(np.diff(values) >= 0)) and values[0] >= 0

    epsilons = np.array(remembered("epsilon", key, lambda: mechanism.epsilons(terms, counts).tolist(), valid))
    if mechanism.is_lower_bound:
        return epsilons[np.searchsorted(counts, np.arange(uploads + 1), side="right") - 1]
    return epsilons[np.searchsorted(counts, np.arange(uploads + 1), side="left")]


def _mechanism(terms: Terms) -> "Mechanism":
    from fedlane.privacy.mechanisms import mechanism_of  # mechanisms are built on this module

    return mechanism_of(terms.mechanism)


def _computed_counts(uploads: int) -> IntArray:
    """Return the upload counts whose epsilon is computed."""
    counts, last = list(range(min(uploads, EXACT_UPLOADS) + 1)), EXACT_UPLOADS
    while last < uploads:
        last = min(uploads, last + last // 100)
        counts.append(last)
    return np.array(counts)


def composed_epsilons(terms: Terms, counts: IntArray) -> FloatArray:
    """Return upper bounds on epsilon at increasing upload counts, of sampled Gaussian steps composed one by one."""
    histogram = gaussian_epsilon(1 / terms.histogram_noise, terms.delta) if terms.histogram_noise else 0.0
    interval = resolution(terms.epsilon)
    step = loss_distribution(terms.step_noise, terms.sample_rate, interval)
    upload = step.self_compose(terms.local_iterations)
    total = loss_distribution(terms.histogram_noise, 1.0, interval) if terms.histogram_noise else None
    several = {1: upload}
    epsilons = [histogram]
    for gap in np.diff(counts):
        if gap not in several:
            several[gap] = upload.self_compose(int(gap))
        total = several[gap] if total is None else total.compose(several[gap])
        epsilons.append(float(total.get_epsilon_for_delta(terms.delta)))
    # Composed at once and at full resolution, the last epsilon is rounded up less; no earlier one can exceed it.
    steps = int(counts[-1]) * terms.local_iterations
    last = account(terms.step_noise, terms.sample_rate, steps, terms.delta, histogram_noise=terms.histogram_noise)
    return np.minimum(np.maximum.accumulate(epsilons), max(last, histogram))
