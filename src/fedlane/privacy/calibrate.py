"""Noise for a budget, and the budget of a noise: Poisson-sampled Gaussian steps, add or remove one record.

All figures come from dp-accounting's privacy loss distributions, which round upwards: an epsilon here is never too
small. They are kept in the user's cache, since they take seconds.
"""

import math
from importlib.metadata import version
from typing import TYPE_CHECKING

from scipy.optimize import brentq

from fedlane.cache import remembered
from fedlane.privacy.gaussian import gaussian_epsilon
from fedlane.validate import InputError

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

FINE = 1e-4
"""Discretisation of the privacy loss: dp-accounting's default."""
SMALLEST_NOISE = 0.1
"""Below this, the privacy loss distribution takes minutes and nothing is private."""
LARGEST_NOISE = 1e4
LEAST_DELTA = 1e-12
"""Privacy loss distributions leave out tails of 1e-15."""
MOST_STEPS = 200_000
"""Composing more takes minutes."""


def calibrate(epsilon: float, delta: float, *, sample_rate: float, steps: int, histogram_noise: float = 0.0) -> float:
    """The least noise multiplier z at which ``steps`` steps, and a histogram release, are (epsilon, delta)-DP.

    histogram_noise: the multiplier of a one-off label histogram release that the same budget pays for; 0 for none.
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise InputError(f"epsilon must be greater than 0, got {epsilon:g}")
    _check(sample_rate, steps, delta)
    if not (math.isfinite(histogram_noise) and histogram_noise >= 0):
        raise InputError(f"histogram_noise must be a number of at least 0, got {histogram_noise:g}")
    if histogram_noise and gaussian_epsilon(1 / histogram_noise, delta) >= epsilon:
        raise InputError(
            f"the label histogram's release alone, at noise {histogram_noise:g}, spends epsilon "
            f"{gaussian_epsilon(1 / histogram_noise, delta):.3f} of {epsilon:g}: give it more noise"
        )

    def spent(z: float, interval: float) -> float:
        return account(z, sample_rate, steps, delta, histogram_noise=histogram_noise, interval=interval)

    coarse, fine = 5 * resolution(epsilon), resolution(epsilon)

    def compute() -> list[float]:
        low = high = 1.0
        while spent(high, coarse) > epsilon:
            low, high = high, 2 * high
            if high > LARGEST_NOISE:
                raise InputError(f"epsilon {epsilon:g} needs a noise multiplier above {LARGEST_NOISE:g}")
        while low == high or spent(low, coarse) <= epsilon:
            low, high = low / 2, low
            if low < SMALLEST_NOISE:
                raise InputError(f"epsilon {epsilon:g} needs a noise multiplier below {2 * low:g}: that is no privacy")
        # A coarse root is a little too large. Two Newton steps on finer figures, then up to the safe side.
        z = float(brentq(lambda z: spent(z, coarse) - epsilon, low, high, xtol=1e-6))
        slope = (spent(z * 1.001, coarse) - spent(z, coarse)) / (z * 0.001)
        for _ in range(2):
            z += (epsilon - spent(z, fine)) / slope
        while spent(z, fine) > epsilon:
            z *= 1 + 1e-5
        return [z]

    key = {
        "epsilon": epsilon,
        "delta": delta,
        "sample_rate": sample_rate,
        "steps": steps,
        "histogram_noise": histogram_noise,
        "way": 2,
        "dp-accounting": version("dp-accounting"),
    }
    # A number from a file is checked before any client relies on it.
    values = remembered(
        "calibration", key, compute, lambda found: len(found) == 1 and spent(found[0], coarse) <= epsilon * 1.002
    )
    return values[0]


def resolution(epsilon: float) -> float:
    """A discretisation whose rounding adds less than a ten-thousandth or so to an epsilon of this size."""
    return min(max(epsilon / 10_000, 1e-5), 1e-3)


def account(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    *,
    histogram_noise: float = 0.0,
    interval: float = FINE,
) -> float:
    """The epsilon at delta of ``steps`` Poisson-sampled Gaussian steps and, where given, a histogram release."""
    if math.isnan(noise_multiplier) or math.isnan(histogram_noise) or histogram_noise < 0:
        raise InputError(f"noise must be a number of at least 0, got {noise_multiplier:g} and {histogram_noise:g}")
    if noise_multiplier <= 0 or steps == 0:
        return math.inf if steps else gaussian_epsilon(1 / histogram_noise if histogram_noise else 0.0, delta)
    _check(sample_rate, steps, delta)
    if sample_rate >= 1 or noise_multiplier < SMALLEST_NOISE:  # a closed form: sampling would only make it less
        square = steps / noise_multiplier**2 + (1 / histogram_noise**2 if histogram_noise else 0.0)
        return gaussian_epsilon(math.sqrt(square), delta)
    distribution = loss_distribution(noise_multiplier, sample_rate, interval).self_compose(steps)
    if histogram_noise:
        distribution = distribution.compose(loss_distribution(histogram_noise, 1.0, interval))
    return float(distribution.get_epsilon_for_delta(delta))


def loss_distribution(noise_multiplier: float, sample_rate: float, interval: float) -> "PrivacyLossDistribution":
    """dp-accounting's privacy loss distribution of one step."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=sample_rate, value_discretization_interval=interval
    )


def _check(sample_rate: float, steps: int, delta: float) -> None:
    if not 0 < sample_rate <= 1:
        raise InputError(f"sample_rate must be greater than 0 and at most 1, got {sample_rate:g}")
    if steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}")
    if steps > MOST_STEPS:
        raise InputError(f"steps must be at most {MOST_STEPS:,}, got {steps:,}: fewer uploads, or fewer steps in each")
    if not LEAST_DELTA <= delta < 1:
        raise InputError(f"delta must be at least {LEAST_DELTA:g} and less than 1, got {delta:g}")
