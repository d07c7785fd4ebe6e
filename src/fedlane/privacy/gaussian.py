"""The Gaussian mechanism in closed form: sensitivity 1, noise z, mu = 1 / z (Balle and Wang 2018; Dong et al. 2019).

T rounds with noise z compose to exactly one round with noise z / sqrt(T).
"""

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from fedlane.validate import InputError

LARGEST_EPSILON = 1e12


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)."""
    high, low = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return float(ndtr(high) - math.exp(min(epsilon + log_ndtr(low), 0.0)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 at which N(mu, 1) and N(0, 1) are (epsilon, delta)-indistinguishable."""
    if mu <= 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
        if high > LARGEST_EPSILON:
            return math.inf
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, high, xtol=1e-12, rtol=1e-13))


def gaussian_noise(epsilon: float, delta: float) -> float:
    """Return the noise multiplier z of a Gaussian round that is exactly (epsilon, delta)-DP."""
    if not (epsilon > 0 and 0 < delta < 1):
        raise InputError(f"epsilon must be greater than 0 and delta between 0 and 1, got {epsilon:g} and {delta:g}")
    low, high = 1e-9, 1.0
    while gaussian_delta(low, epsilon) > delta:
        low /= 10
    while gaussian_delta(high, epsilon) < delta:
        high *= 2
    return 1.0 / float(brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, low, high, xtol=1e-14, rtol=1e-13))
