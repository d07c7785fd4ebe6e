"""Composition of noised training steps: the epsilon that a number of them spends.

A step is a Poisson-sampled Gaussian mechanism. Adjacency is zero-out: the number of records is fixed and public, and
two data sets are neighbours if a record of one is a null record, which contributes nothing, in the other. Upper bounds
on epsilon come from dp-accounting's privacy loss distributions, which round up, so they are never too small.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from fedlane.privacy.gaussian import gaussian_epsilon
from fedlane.records import FloatArray, IntArray
from fedlane.validate import InputError

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from fedlane.privacy.accountant import Terms

FINE = 1e-4
"""Discretisation interval of the privacy loss: dp-accounting's default."""
SMALLEST_NOISE = 0.1
"""Below this noise multiplier a privacy loss distribution takes minutes to compute, and there is no privacy."""
TINY_NOISE, LARGEST_NOISE = 1e-150, 1e12
"""Below the first, epsilon is infinite, because the square of the noise is 0; above the second, squares overflow."""
MIN_DELTA = 1e-12
"""Smallest delta: privacy loss distributions are truncated at a tail mass of 1e-15."""
MAX_DELTA = 0.5
"""Largest delta. Near 1, the computed epsilon is a rounding error; and a delta of 0.5 promises nothing."""
MAX_STEPS = 200_000
"""Largest number of composed steps: more take minutes."""


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
        delta: Target delta, from 1e-12 to 0.5.
        histogram_noise: Noise multiplier of one label-histogram release that is accounted for as well; 0 for none.
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
    if max(noise_multiplier, histogram_noise) > LARGEST_NOISE:
        raise InputError(f"noise multipliers must be at most {LARGEST_NOISE:g}")
    if noise_multiplier < TINY_NOISE or 0 < histogram_noise < TINY_NOISE or steps == 0:
        return math.inf if steps else gaussian_epsilon(1 / histogram_noise if histogram_noise else 0.0, delta)
    check_steps(sample_rate, steps, delta)
    if has_closed_form(noise_multiplier, sample_rate, histogram_noise):  # ignoring the sampling only raises epsilon
        square = steps / noise_multiplier**2 + (1 / histogram_noise**2 if histogram_noise else 0.0)
        return gaussian_epsilon(math.sqrt(square), delta)
    distribution = loss_distribution(noise_multiplier, sample_rate, interval).self_compose(steps)
    if histogram_noise:
        distribution = distribution.compose(loss_distribution(histogram_noise, 1.0, interval))
    return float(distribution.get_epsilon_for_delta(delta))


def has_closed_form(noise_multiplier: float, sample_rate: float, histogram_noise: float) -> bool:
    """Return whether steps are accounted for as a Gaussian mechanism: without sampling, or with tiny noise."""
    return sample_rate >= 1 or noise_multiplier < SMALLEST_NOISE or 0 < histogram_noise < SMALLEST_NOISE


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
    if not MIN_DELTA <= delta <= MAX_DELTA:
        raise InputError(f"delta must be from {MIN_DELTA:g} to {MAX_DELTA:g}, got {delta:.12g}")


def composed_epsilons(terms: "Terms", counts: IntArray) -> FloatArray:
    """Return upper bounds on epsilon at increasing upload counts, composing sampled Gaussian steps one by one."""
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
