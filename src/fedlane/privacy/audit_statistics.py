"""Audit statistics: from trials with and without one record to a lower bound on epsilon that holds with a confidence.

An attacker sees one number per trial and says "the record was there" above a threshold. A mechanism that is
(epsilon, delta)-DP allows TPR <= e^epsilon FPR + delta; one that is mu-Gaussian-DP allows
Phi^-1(TPR) - Phi^-1(FPR) <= mu. Weights of the attack and its threshold come from a part of the trials, the rates, with
Clopper-Pearson bounds, from the rest.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, erfc, ndtri

from fedlane.privacy.gaussian import gaussian_epsilon
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.validate import InputError

PILOT = 0.25
"""The share of trials that the attack learns from."""
LEAST_TRIALS = 400


@dataclass(frozen=True)
class AuditResult:
    """What an audit found."""

    claim: float
    """Epsilon as claimed, at delta."""
    delta: float
    confidence: float
    trials: int
    epsilon_low: float
    """The lower bound: the larger of the two below that applies."""
    epsilon_low_any: float
    """Without any assumption on the mechanism."""
    epsilon_low_gaussian: float | None
    """For Gaussian steps on all records, whose trade-off curve is known; None elsewhere."""
    false_positive: float
    true_positive: float
    """At the threshold, as measured."""
    threshold: float
    scores: tuple[FloatArray, FloatArray]
    """The attack's scores of the trials that count, without and with the record."""

    @property
    def flagged(self) -> bool:
        """The claim is refuted at this confidence."""
        return self.epsilon_low > self.claim


def audit_scores(
    without: FloatArray,
    with_: FloatArray,
    shift: FloatArray,
    *,
    claim: float,
    delta: float,
    confidence: float,
    gaussian: bool,
) -> AuditResult:
    """A lower bound on epsilon from the attack's features (trials, K) without and with the record.

    shift (K,): how far the record moves each feature, as the attacker reckons.
    gaussian: the claim is that of a Gaussian mechanism (no sampling), so that a Gaussian lower bound may be drawn too.
    """
    if not 0.5 < confidence < 1:
        raise InputError(f"confidence must be between 0.5 and 1, got {confidence:g}")
    pilot = int(PILOT * len(without))
    if 2 * len(without) < LEAST_TRIALS:
        raise ValueError(f"{len(without)} trials of each kind are too few: at least {LEAST_TRIALS // 2} are needed")
    weights = _discriminant(without[:pilot], shift)
    low, high = (features @ weights for features in (without, with_))
    offset = (low[:pilot].mean() + high[:pilot].mean()) / 2
    low, high = low - offset, high - offset
    miss = (1 - confidence) / 4  # two bounds, each from two rates
    thresholds = _thresholds(low[:pilot], high[:pilot], delta, miss)
    below, above = low[pilot:], high[pilot:]
    any_ = _bound_any(*_rates(below, above, thresholds[0], miss), delta)
    fitted = None
    if gaussian:
        fpr, tpr = _rates(below, above, thresholds[1], miss)
        fitted = gaussian_epsilon(max(0.0, float(ndtri(tpr) - ndtri(fpr))), delta)
    threshold = thresholds[1] if gaussian else thresholds[0]
    return AuditResult(
        claim=claim,
        delta=delta,
        confidence=confidence,
        trials=2 * len(without),
        epsilon_low=max(any_, fitted or 0.0),
        epsilon_low_any=any_,
        epsilon_low_gaussian=fitted,
        false_positive=float(np.mean(below > threshold)),
        true_positive=float(np.mean(above > threshold)),
        threshold=threshold,
        scores=(below, above),
    )


def _discriminant(without: FloatArray, shift: FloatArray) -> FloatArray:
    """Weights (K,) of independent features: how far the record moves them against how much they scatter without it.

    A feature that does not scatter at all, where noise was left off, gets nearly all the weight.
    """
    variance = without.var(axis=0)
    weights = shift / np.maximum(variance, 1e-12 * max(float(np.max(variance)), 1e-300))
    return np.asarray(weights / max(float(np.abs(weights).max()), 1e-300))


def _thresholds(low: FloatArray, high: FloatArray, delta: float, miss: float) -> tuple[float, float]:
    """The pilot's best threshold for the bound without assumptions, and the mid point for the Gaussian one."""
    candidates = np.quantile(np.concatenate([low, high]), np.linspace(0.02, 0.998, 200))
    bounds = [_bound_any(*_rates(low, high, float(c), miss), delta) for c in candidates]
    return float(candidates[int(np.argmax(bounds))]), 0.0


def _rates(low: FloatArray, high: FloatArray, threshold: float, miss: float) -> tuple[float, float]:
    """False positives bounded from above, true positives from below, each wrong with probability ``miss``."""
    false, true = int(np.sum(low > threshold)), int(np.sum(high > threshold))
    return 1 - _clopper_pearson(len(low) - false, len(low), miss), _clopper_pearson(true, len(high), miss)


def _clopper_pearson(hits: int, trials: int, miss: float) -> float:
    """The lower bound of a rate."""
    return 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, miss))


def _bound_any(fpr: float, tpr: float, delta: float) -> float:
    """ln((TPR - delta) / FPR), also for the opposite test, at least 0."""
    right = math.log((tpr - delta) / fpr) if tpr > delta else 0.0
    left = math.log((1 - fpr - delta) / (1 - tpr)) if 1 - fpr > delta and tpr < 1 else 0.0
    return max(right, left, 0.0)


@dataclass(frozen=True)
class SamplingResult:
    """Whether samples are Poisson: every record on its own, at its rate. Each test's p-value, and the verdict."""

    draws: int
    inclusion: float
    """Every record is included as often as its rate says (smallest p-value, times the records)."""
    batch_mean: float
    """The mean batch size is n q."""
    batch_variance: float
    """The batch size varies as a binomial one; a fixed batch does not vary at all."""
    overlap: float
    """Successive steps share n q^2 records; one sample used again shares all."""
    confidence: float

    @property
    def smallest(self) -> float:
        """The smallest p-value."""
        return min(self.inclusion, self.batch_mean, self.batch_variance, self.overlap)

    @property
    def flagged(self) -> bool:
        return self.smallest < (1 - self.confidence) / 4


def audit_sampling(chosen: BoolArray, rate: float, confidence: float) -> SamplingResult:
    """Test samples (uploads, steps, records) against independent coins of probability ``rate`` < 1."""
    shared = (chosen[:, :-1] & chosen[:, 1:]).sum(axis=2)
    chosen = chosen.reshape(-1, chosen.shape[2])
    draws, records = chosen.shape
    variance = rate * (1 - rate)
    inclusion = np.abs(chosen.mean(axis=0) - rate).max() / math.sqrt(variance / draws)
    batch = chosen.sum(axis=1)
    mean = abs(batch.mean() - records * rate) / math.sqrt(records * variance / draws)
    kurtosis = (1 - 6 * variance) / (records * variance)
    spread = abs(batch.var(ddof=1) / (records * variance) - 1) / math.sqrt((2 + kurtosis) / draws)
    return SamplingResult(
        draws=draws,
        inclusion=min(1.0, records * _two_sided(inclusion)),
        batch_mean=_two_sided(mean),
        batch_variance=_two_sided(spread),
        overlap=_two_sided(
            abs(shared.mean() - records * rate**2) / math.sqrt(_overlap_variance(records, rate, shared))
        ),
        confidence=confidence,
    )


def _overlap_variance(records: int, rate: float, shared: IntArray) -> float:
    """The variance of the mean overlap; neighbouring overlaps share a step, whose chance q^3 (1 - q) counts twice."""
    uploads, pairs = shared.shape
    own, neighbours = rate**2 * (1 - rate**2), 2 * (pairs - 1) / pairs * rate**3 * (1 - rate)
    return records * (own + neighbours) / (uploads * pairs)


def _two_sided(z: float) -> float:
    """P(|Z| > z)."""
    return float(erfc(z / math.sqrt(2)))
