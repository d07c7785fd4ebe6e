"""What a client has spent after some uploads: from the same record that says how it trains."""

import math
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from fedlane.cache import remembered
from fedlane.privacy.calibrate import account, loss_distribution, resolution
from fedlane.privacy.gaussian import gaussian_epsilon
from fedlane.privacy.paper import PaperLeakage, composed_gaussian, formula_6
from fedlane.records import FloatArray, IntArray, MechanismSpec
from fedlane.validate import InputError

EVERY = 256
"""Up to so many uploads every count has its own figure; further on, one count in a hundred, taken upwards."""


@dataclass(frozen=True)
class Terms:
    """What one client agreed to for one data set, and how it trains on it: all that accounting needs."""

    mechanism: str
    """paper or rigorous."""
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
        """One client's terms."""
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
        """From a ledger's plain values; anything else is an `InputError`."""
        try:
            made = cls(**values)
            numbers = [made.sample_rate, made.step_noise, made.upload_noise, made.epsilon, made.delta]
            whole = [made.local_iterations, made.max_uploads]
            sound = all(math.isfinite(n) and n >= 0 for n in [*numbers, made.histogram_noise])
            sound &= all(type(n) is int and n >= 1 for n in whole) and 0 < made.sample_rate <= 1
            sound &= made.mechanism in ("paper", "rigorous") and 0 < made.delta < 1 and made.epsilon > 0
            sound &= (made.step_noise if made.mechanism == "rigorous" else made.upload_noise) > 0
        except TypeError as error:
            raise InputError(f"these are no terms of a client: {error}") from None
        if not sound:
            raise InputError("these are no terms of a client: a value is out of bounds")
        return made

    def values(self) -> dict[str, Any]:
        """As plain values, for a ledger."""
        return asdict(self)


@dataclass(frozen=True)
class Spent:
    """A client's privacy after some uploads."""

    uploads: int
    epsilon: float
    """rigorous: an upper bound, tight; paper: a lower bound of what it leaks (no upper bound is known)."""
    epsilon_paper: float
    """By the paper's formula (6) from the epsilon of one upload."""
    epsilon_composed: float
    """What uploads that are each exactly (epsilon, delta)-DP Gaussian rounds spend together; for paper only."""


def spent(terms: Terms, uploads: int) -> Spent:
    """What ``uploads`` uploads under these terms have spent."""
    return Spent(
        uploads=uploads,
        epsilon=epsilon_after(terms, uploads),
        epsilon_paper=float(formula_6(one_upload(terms), terms.delta, uploads)),
        epsilon_composed=composed_gaussian(terms.epsilon, terms.delta, uploads)
        if terms.mechanism == "paper" and uploads
        else 0.0,
    )


def epsilon_after(terms: Terms, uploads: int) -> float:
    """Epsilon after some uploads (see `Spent.epsilon`), on its own."""
    if terms.mechanism == "paper":
        return PaperLeakage(terms.upload_noise, terms.sample_rate, terms.local_iterations).epsilon(terms.delta, uploads)
    steps = uploads * terms.local_iterations
    return account(
        terms.step_noise,
        terms.sample_rate,
        steps,
        terms.delta,
        histogram_noise=terms.histogram_noise,
        interval=resolution(terms.epsilon),
    )


def one_upload(terms: Terms) -> float:
    """The epsilon of a single upload: as claimed (paper), or tight (rigorous)."""
    if terms.mechanism == "paper":
        return terms.epsilon
    return account(
        terms.step_noise,
        terms.sample_rate,
        terms.local_iterations,
        terms.delta,
        interval=resolution(terms.epsilon),
    )


def epsilon_curve(terms: Terms, uploads: int) -> FloatArray:
    """Epsilon after 0, 1, ... ``uploads`` uploads, (uploads + 1,), cached; it never falls.

    Where only one count in a hundred is computed, the others take the next one up (rigorous) or down (paper), so that
    bounds stay bounds.
    """
    counts = _counts(uploads)
    key = {**terms.values(), "uploads": uploads, "way": 3, "dp-accounting": version("dp-accounting")}
    compute = _leaks if terms.mechanism == "paper" else _losses

    def valid(values: list[float]) -> bool:
        return len(values) == len(counts) and bool(np.all(np.diff(values) >= 0)) and values[0] >= 0

    figures = np.array(remembered("epsilon", key, lambda: compute(terms, counts).tolist(), valid))
    side = np.searchsorted(counts, np.arange(uploads + 1), side="right" if terms.mechanism == "paper" else "left")
    return figures[side - 1 if terms.mechanism == "paper" else side]


def _counts(uploads: int) -> IntArray:
    """The upload counts that are computed."""
    counts, last = list(range(min(uploads, EVERY) + 1)), EVERY
    while last < uploads:
        last = min(uploads, last + last // 100)
        counts.append(last)
    return np.array(counts)


def _losses(terms: Terms, counts: IntArray) -> FloatArray:
    """Upper bounds: the privacy loss of uploads composed one after the other.

    At most what the whole horizon was calibrated to, where that is finer.
    """
    if terms.step_noise <= 0:
        return np.where(counts > 0, np.inf, 0.0)
    histogram = gaussian_epsilon(1 / terms.histogram_noise, terms.delta) if terms.histogram_noise else 0.0
    if terms.sample_rate >= 1:
        return np.array([epsilon_after(terms, int(count)) for count in counts])
    interval = resolution(terms.epsilon)
    step = loss_distribution(terms.step_noise, terms.sample_rate, interval)
    upload = step.self_compose(terms.local_iterations)
    total = loss_distribution(terms.histogram_noise, 1.0, interval) if terms.histogram_noise else None
    gaps = {1: upload}
    figures = [histogram]
    for gap in np.diff(counts):
        if gap not in gaps:
            gaps[gap] = upload.self_compose(int(gap))
        total = gaps[gap] if total is None else total.compose(gaps[gap])
        figures.append(float(total.get_epsilon_for_delta(terms.delta)))
    # The last figure composed at once, at full resolution, is rounded up less; no earlier one can exceed it.
    steps = int(counts[-1]) * terms.local_iterations
    last = account(terms.step_noise, terms.sample_rate, steps, terms.delta, histogram_noise=terms.histogram_noise)
    return np.minimum(np.maximum.accumulate(figures), max(last, histogram))


def _leaks(terms: Terms, counts: IntArray) -> FloatArray:
    """Lower bounds of what the paper's mechanism leaks; more uploads leak no less."""
    pair = PaperLeakage(terms.upload_noise, terms.sample_rate, terms.local_iterations)
    if len(counts) <= 2:
        return np.array([pair.epsilon(terms.delta, int(count)) for count in counts])
    # Composing takes a tenth of a second: one count in twenty, or so, and the others take the next one down.
    some = np.unique(np.concatenate([counts[counts <= 4], np.geomspace(4, max(counts[-1], 5), 40).astype(np.int64)]))
    some = some[some <= counts[-1]]
    known = np.maximum.accumulate([pair.epsilon(terms.delta, int(count)) for count in some])
    return np.asarray(known[np.searchsorted(some, counts, side="right") - 1])
