"""Audit statistics: a lower confidence bound on epsilon from trials with and without one record.

An attacker sees one score per trial and guesses that the record was present if the score exceeds a threshold. An
(epsilon, delta)-DP mechanism guarantees TPR <= e^epsilon FPR + delta for the attack's true and false positive rates; a
mu-Gaussian-DP mechanism guarantees Phi^-1(TPR) - Phi^-1(FPR) <= mu. One part of the trials fits the attack's weights
and threshold; the others give the rates, with Clopper-Pearson bounds.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, erfc, ndtri

from fedlane.privacy.gaussian import gaussian_epsilon
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.validate import InputError

PILOT = 0.25
"""Share of the trials that fit the attack."""
MIN_TRIALS = 400


@dataclass(frozen=True)
class AuditResult:
    """Result of an audit.

    Attributes:
        claim: Claimed epsilon at ``delta``.
        delta: Target delta.
        confidence: Confidence of the lower bounds.
        trials: Number of trials, with and without the record.
        epsilon_low: Lower bound on epsilon: the larger of the two below.
        epsilon_low_any: Lower bound without assumptions about the mechanism.
        epsilon_low_gaussian: Lower bound for Gaussian steps on all records; None for other mechanisms.
        false_positive: Measured false positive rate at the threshold.
        true_positive: Measured true positive rate at the threshold.
        threshold: Threshold of the attack.
        scores: Attack scores of the trials that were not used to fit it, without and with the record.
    """

    claim: float
    delta: float
    confidence: float
    trials: int
    epsilon_low: float
    epsilon_low_any: float
    epsilon_low_gaussian: float | None
    false_positive: float
    true_positive: float
    threshold: float
    scores: tuple[FloatArray, FloatArray]

    @property
    def flagged(self) -> bool:
        """Whether the claim is refuted at this confidence."""
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
    """Compute lower bounds on epsilon from the scores of an attack.

    Args:
        without: The attack's features of trials without the record (trials, K).
        with_: Features of as many trials with the record (trials, K).
        shift: Distance that the attacker expects the record to move each feature (K,).
        claim: Claimed epsilon at ``delta``.
        delta: Target delta.
        confidence: Confidence of the bounds, between 0.5 and 1.
        gaussian: Whether the mechanism is Gaussian (no sampling), so that the Gaussian bound applies as well.

    Raises:
        InputError: The confidence is out of bounds.
        ValueError: There are too few trials.
    """
    if not 0.5 < confidence < 1:
        raise InputError(f"confidence must be between 0.5 and 1, got {confidence:g}")
    pilot = int(PILOT * len(without))
    if 2 * len(without) < MIN_TRIALS:
        raise ValueError(f"trials of each kind must be at least {MIN_TRIALS // 2}, got {len(without)}")
    weights = _discriminant(without[:pilot], shift)
    low, high = (features @ weights for features in (without, with_))
    offset = (low[:pilot].mean() + high[:pilot].mean()) / 2
    low, high = low - offset, high - offset
    miss = (1 - confidence) / 4  # two bounds, each from two rates
    thresholds = _thresholds(low[:pilot], high[:pilot], delta, miss)
    below, above = low[pilot:], high[pilot:]
    unconditional = _bound_any(*_rates(below, above, thresholds[0], miss), delta)
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
        epsilon_low=max(unconditional, fitted or 0.0),
        epsilon_low_any=unconditional,
        epsilon_low_gaussian=fitted,
        false_positive=float(np.mean(below > threshold)),
        true_positive=float(np.mean(above > threshold)),
        threshold=threshold,
        scores=(below, above),
    )


def largest_bound(trials: int, delta: float, confidence: float, *, gaussian: bool) -> float:
    """Return the lower bound on epsilon of a perfect attack, which no attack can exceed with this number of trials.

    Args:
        trials: Number of trials, with and without the record.
        delta: Target delta.
        confidence: Confidence of the bound, between 0.5 and 1.
        gaussian: Whether the Gaussian bound applies as well (see `audit_scores`).
    """
    count = trials // 2 - int(PILOT * (trials // 2))
    fpr, tpr = _rates(np.zeros(count), np.ones(count), 0.5, (1 - confidence) / 4)
    fitted = gaussian_epsilon(float(ndtri(tpr) - ndtri(fpr)), delta) if gaussian else 0.0
    return max(_bound_any(fpr, tpr, delta), fitted)


def _discriminant(without: FloatArray, shift: FloatArray) -> FloatArray:
    """Return weights (K,) of independent features: expected shift over variance.

    A feature without variance, where noise is missing, gets nearly all the weight.
    """
    variance = without.var(axis=0)
    weights = shift / np.maximum(variance, 1e-12 * max(float(np.max(variance)), 1e-300))
    return np.asarray(weights / max(float(np.abs(weights).max()), 1e-300))


def _thresholds(low: FloatArray, high: FloatArray, delta: float, miss: float) -> tuple[float, float]:
    """Return the pilot trials' best threshold for the bound without assumptions, and 0 for the Gaussian bound."""
    candidates = np.quantile(np.concatenate([low, high]), np.linspace(0.02, 0.998, 200))
    bounds = [_bound_any(*_rates(low, high, float(c), miss), delta) for c in candidates]
    return float(candidates[int(np.argmax(bounds))]), 0.0


def _rates(low: FloatArray, high: FloatArray, threshold: float, miss: float) -> tuple[float, float]:
    """Return an upper bound on the FPR and a lower bound on the TPR, each wrong with probability ``miss``."""
    false, true = int(np.sum(low > threshold)), int(np.sum(high > threshold))
    return 1 - _clopper_pearson(len(low) - false, len(low), miss), _clopper_pearson(true, len(high), miss)


def _clopper_pearson(hits: int, trials: int, miss: float) -> float:
    """Return the lower confidence bound of a rate."""
    return 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, miss))


def _bound_any(fpr: float, tpr: float, delta: float) -> float:
    """Return ln((TPR - delta) / FPR), or the same for the complementary test if larger; at least 0."""
    right = math.log((tpr - delta) / fpr) if tpr > delta else 0.0
    left = math.log((1 - fpr - delta) / (1 - tpr)) if 1 - fpr > delta and tpr < 1 else 0.0
    return max(right, left, 0.0)


@dataclass(frozen=True)
class SamplingResult:
    """Result of a test for Poisson sampling, where every record is included independently at its rate.

    Attributes:
        draws: Number of samples.
        inclusion: P-value of the hypothesis that every record is included at its rate (Bonferroni-corrected).
        batch_mean: P-value of the hypothesis that the mean batch size is n q.
        batch_variance: P-value of the hypothesis that the batch size has a binomial variance; a fixed batch has none.
        overlap: P-value of the hypothesis that successive steps share n q^2 records on average; a reused sample
            shares all.
        confidence: Confidence of the verdict.
    """

    draws: int
    inclusion: float
    batch_mean: float
    batch_variance: float
    overlap: float
    confidence: float

    @property
    def smallest(self) -> float:
        """The smallest p-value."""
        return min(self.inclusion, self.batch_mean, self.batch_variance, self.overlap)

    @property
    def flagged(self) -> bool:
        """Whether Poisson sampling is refuted at this confidence."""
        return self.smallest < (1 - self.confidence) / 4


def audit_sampling(chosen: BoolArray, rate: float, confidence: float) -> SamplingResult:
    """Test whether samples are Poisson.

    Args:
        chosen: Whether a record is in a step's sample (uploads, steps, records).
        rate: Claimed sample rate, less than 1.
        confidence: Confidence of the verdict.
    """
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
    """Return the variance of the mean overlap.

    Neighbouring overlaps share a step, so their covariance q^3 (1 - q) counts twice.
    """
    uploads, pairs = shared.shape
    variance, covariance = rate**2 * (1 - rate**2), 2 * (pairs - 1) / pairs * rate**3 * (1 - rate)
    return records * (variance + covariance) / (uploads * pairs)


def _two_sided(z: float) -> float:
    """Return P(|Z| > z) of a standard normal Z."""
    return float(erfc(z / math.sqrt(2)))
