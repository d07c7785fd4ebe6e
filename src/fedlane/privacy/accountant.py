"""Privacy accounting for clients: a client's terms, and the privacy that it has spent after a number of uploads."""

import math
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np

from fedlane.cache import remembered
from fedlane.privacy.composition import FINE, LARGEST_NOISE, TINY_NOISE, account, resolution
from fedlane.privacy.mechanisms import mechanism_of
from fedlane.privacy.paper import formula_6
from fedlane.records import FloatArray, IntArray, MechanismSpec
from fedlane.validate import InputError

__all__ = ["Spent", "Terms", "account", "check_budget", "epsilon_curve", "spent"]

EXACT_UPLOADS = 256
"""Epsilon is computed for every upload count up to this one; larger counts are spaced 1% apart."""


@dataclass(frozen=True)
class Terms:
    """The terms of one client for one data set: the agreed budget, and the training settings that accounting needs.

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
            mechanism = mechanism_of(terms.mechanism)
            numbers = [terms.sample_rate, terms.step_noise, terms.upload_noise, terms.epsilon, terms.delta]
            counts = [terms.local_iterations, terms.max_uploads]
            valid = all(math.isfinite(number) and number >= 0 for number in [*numbers, terms.histogram_noise])
            valid &= all(type(count) is int and count >= 1 for count in counts) and 0 < terms.sample_rate <= 1
            valid &= mechanism.has_ledger and 0 < terms.delta < 1 and terms.epsilon > 0
            noises = terms.step_noise, terms.upload_noise, terms.histogram_noise
            valid &= all(noise == 0 or TINY_NOISE <= noise <= LARGEST_NOISE for noise in noises)
            valid &= mechanism.noise(terms.step_noise, terms.upload_noise) > 0
        except (TypeError, OverflowError, InputError) as error:
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
        epsilon: A tight upper bound (rigorous), or a lower bound on the leakage (paper; no upper bound is known).
        epsilon_paper: Epsilon by the paper's formula (6), from the epsilon of one upload.
        epsilon_composed: Epsilon of Gaussian rounds that are each exactly (epsilon, delta)-DP, tightly composed (paper
            only; 0 otherwise).
    """

    uploads: int
    epsilon: float
    epsilon_paper: float
    epsilon_composed: float


def spent(terms: Terms, uploads: int) -> Spent:
    """Return the privacy that a client has spent.

    Args:
        terms: The client's terms.
        uploads: Number of uploads, at least 0.
    """
    mechanism = mechanism_of(terms.mechanism)
    return Spent(
        uploads=uploads,
        epsilon=mechanism.epsilon_after(terms, uploads),
        epsilon_paper=float(formula_6(mechanism.epsilon_per_upload(terms), terms.delta, uploads)),
        epsilon_composed=mechanism.epsilon_composed(terms, uploads),
    )


def exceeds_budget(terms: Terms, uploads: int, epsilon: float) -> bool:
    """Return whether a client has made more uploads, or spent more, than it agreed to.

    The noise was calibrated with epsilons at the resolution of the agreed one, and a curve's are computed at `FINE`.
    Each of them exceeds the true epsilon by about one interval at most, so the larger interval is the tolerance. The
    epsilon of "paper" is not compared: the agreed one is that of its formula, and only a lower bound is known.

    Args:
        terms: The client's terms.
        uploads: Number of uploads.
        epsilon: The epsilon that is accounted for them.
    """
    if uploads > terms.max_uploads:
        return True
    tolerance = max(FINE, resolution(terms.epsilon))
    return not (mechanism_of(terms.mechanism).is_lower_bound or epsilon <= terms.epsilon + tolerance)


def check_budget(terms: Terms) -> None:
    """Check that a client's noise keeps all of its uploads within the epsilon that it agreed to (`exceeds_budget`).

    Args:
        terms: The client's terms.

    Raises:
        InputError: The uploads spend more than that, or accounting does not support the terms.
    """
    if mechanism_of(terms.mechanism).is_lower_bound:
        return
    epsilon = float(epsilon_curve(terms, terms.max_uploads)[-1])
    if exceeds_budget(terms, terms.max_uploads, epsilon):
        raise InputError(
            f"its {terms.max_uploads} uploads spend epsilon {epsilon:.5g}, more than the agreed {terms.epsilon:g}"
        )


def epsilon_curve(terms: Terms, uploads: int) -> FloatArray:
    """Return epsilon after 0, 1, ... ``uploads`` uploads, from the user's cache if it was computed before.

    Above 256 uploads, only counts that are 1% apart are computed. The counts in between take the next larger one's
    epsilon (upper bounds) or the next smaller one's (lower bounds), so that the bounds remain valid.

    Args:
        terms: The client's terms.
        uploads: Largest number of uploads.

    Returns:
        Epsilons of shape (uploads + 1,), which never decrease (see `Spent.epsilon`).
    """
    counts = _computed_counts(uploads)
    key = {**terms.values(), "uploads": uploads, "way": 3, "dp-accounting": version("dp-accounting")}

    def valid(values: list[float]) -> bool:
        return len(values) == len(counts) and values[0] >= 0 and all(a <= b for a, b in pairwise(values))

    # Verifying a curve takes as long as computing it, so only those that this user computed are used.
    compute = partial(_computed_epsilons, terms, counts)
    epsilons = np.array(remembered("epsilon", key, compute, valid, sealed=True))
    if mechanism_of(terms.mechanism).is_lower_bound:
        return epsilons[np.searchsorted(counts, np.arange(uploads + 1), side="right") - 1]
    return epsilons[np.searchsorted(counts, np.arange(uploads + 1), side="left")]


def _computed_epsilons(terms: Terms, counts: IntArray) -> list[float]:
    return [float(epsilon) for epsilon in mechanism_of(terms.mechanism).epsilons(terms, counts)]


def _computed_counts(uploads: int) -> IntArray:
    """Return the upload counts whose epsilon is computed."""
    counts, last = list(range(min(uploads, EXACT_UPLOADS) + 1)), EXACT_UPLOADS
    while last < uploads:
        last = min(uploads, last + last // 100)
        counts.append(last)
    return np.array(counts)
