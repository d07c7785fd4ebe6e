"""Distributions for statistical tests, without scipy.stats, whose import alone takes a second of processor time."""

import numpy as np
from scipy.special import chdtri, ndtr


def kolmogorov(values, cdf):
    """Return Kolmogorov and Smirnov's sqrt(n) D, the distance of the values' distribution from ``cdf``.

    For values of that distribution it exceeds 2.23 with probability 1e-4, and 2.7 with probability 1e-6.
    """
    expected, n = cdf(np.sort(np.ravel(values))), np.size(values)
    steps = np.arange(n + 1) / n
    return np.sqrt(n) * max((expected - steps[:-1]).max(), (steps[1:] - expected).max())


def chi_square_limit(degrees_of_freedom):
    """Return what a chi-square statistic exceeds with probability 1e-5."""
    return chdtri(degrees_of_freedom, 1e-5)


def uniform_cdf(x):
    """Return the distribution function of the uniform distribution on [0, 1]."""
    return np.clip(x, 0.0, 1.0)


def exponential_cdf(x):
    """Return the distribution function of the exponential distribution with mean 1."""
    return -np.expm1(-x)


def normal_density(x, mean=0.0, deviation=1.0):
    """Return the density of a normal distribution."""
    return np.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * np.sqrt(2 * np.pi))


def normal_tail(x, mean=0.0, deviation=1.0):
    """Return the probability that a normal number exceeds x."""
    return ndtr((mean - x) / deviation)


def lognormal_moments(location, variance):
    """Return mean and variance of exp(X) for a normal X."""
    mean = np.exp(location + variance / 2)
    return mean, np.expm1(variance) * mean**2


def midpoints(low, high, count=20_000):
    """Return the middles of ``count`` equal parts of an interval, and the width of a part: the midpoint rule."""
    width = (high - low) / count
    return low + width * (np.arange(count) + 0.5), width
