"""The compiled values of looking against the same formula in NumPy, and the table of the normal distribution."""

import numpy as np
import pytest
from scipy.special import ndtr

from fedlane.scheduling.lane import looking
from fedlane.scheduling.lane.delay_rows import LARGEST_VARIANCE
from fedlane.scheduling.lane.looking import about_as_slow, good_enough, put, smallest_two
from fedlane.scheduling.lane.normal_table import NORMAL, REACH, normal_cdf

DEADLINE_S = 4.0


def slow_gain(strike, enough, floor, network, moved, tried):
    """The expected improvement over ``strike`` down to the level ``enough``, (R, U, N)."""
    gain = np.where(enough < strike, put(strike, network, moved) - floor, 0.0)
    expected = np.clip(strike - np.maximum(network, enough), 0.0, None)
    gain = np.where(tried, looking.REPEATED * (gain - expected), gain)
    return np.maximum(gain, 0.0)


def slow_looking(location, spread, tried, compute_s, uploads, deadline_s):
    """`looking` with arrays of all pairs; also the largest factor of an error of the improvements."""
    mean, variance = location[0], np.minimum(location[1], LARGEST_VARIANCE)
    clients, channels = tried.shape[1:]
    network = np.exp(mean + (variance + spread) / 2)
    limit = np.maximum(deadline_s - compute_s, 1e-3 * deadline_s)[..., None]
    known = np.where(tried, np.minimum(network, limit), np.inf)
    first, second = (np.minimum(times, limit[..., 0]) for times in smallest_two(known, axis=2))
    best, seen = first + compute_s, tried.any(axis=2)
    enough = np.maximum(good_enough(best, seen, channels)[:, None] - compute_s, 1e-3 * deadline_s)[..., None]
    moved = np.where(tried, variance**2 / (variance + spread), variance)
    floor = put(enough, network, moved)
    for_client = np.maximum(channels / about_as_slow(best), np.where(seen, 0.0, looking.UNSEEN))[..., None]
    of_client = for_client * slow_gain(second[..., None], enough, floor, network, moved, tried)
    on_first, on_second = smallest_two(known, axis=1)
    slowness = np.minimum(on_first, limit.max(axis=1))
    for_channel = min(1.0, 2.5 * channels / clients) * (channels / about_as_slow(slowness))[:, None]
    strike = np.minimum(on_second[:, None], limit)
    of_channel = for_channel * slow_gain(strike, enough, floor, network, moved, tried)
    scale = (uploads / deadline_s)[..., None]
    return np.maximum(of_client, of_channel) * scale, np.maximum(for_client, for_channel) * scale * (network + limit)


def random_pairs(rng, replicas, clients, channels, share):
    """Arguments of `looking`, with ``share`` of the pairs tried."""
    shape = replicas, clients, channels
    mean, variance = rng.normal(0.3, 0.9, shape), rng.uniform(0.01, 1.2, shape)
    variance.flat[:2] = 0.0, 50.0  # a pair that is known exactly, and one about which nothing is known
    compute_s = rng.uniform(0.0, 1.5, shape[:2])
    compute_s[0, 0] = 5.0  # longer than the deadline
    tried = rng.uniform(size=shape) < share
    return (mean, variance), rng.uniform(0.02, 0.4, shape), tried, compute_s, rng.uniform(0, 90, shape[:2]), DEADLINE_S


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("shape", [(3, 30, 7), (1, 5, 1), (2, 1, 4), (2, 3, 6)])
def test_compiled_values_of_looking_are_those_of_arrays(shape, share):
    """An improvement is the difference of two puts: four values of the table, each with an error below 1e-6."""
    arguments = random_pairs(np.random.default_rng([*shape, int(10 * share)]), *shape, share)
    value, (expected, factor) = looking.looking(*arguments), slow_looking(*arguments)
    assert np.all(np.abs(value - expected) <= 4e-6 * factor)
    assert np.all(value >= 0)
    if shape[1] > 5 and share < 1:
        assert expected.max() > 1.0


def test_values_at_which_nothing_can_be_gained_are_zero():
    """Every pair is known exactly and good enough."""
    shape = 1, 6, 3
    some = np.full(shape, -1.0), np.zeros(shape)
    ones = np.ones(shape, bool)
    value = looking.looking(some, np.full(shape, 0.1), ones, np.zeros((1, 6)), np.full((1, 6), 50.0), DEADLINE_S)
    np.testing.assert_array_equal(value, 0.0)


def test_the_normal_table_is_that_of_scipy():
    z = np.concatenate([np.linspace(-9.0, 9.0, 20_003), [-REACH, REACH, -1e300, 1e300, -np.inf, np.inf]])
    found = np.array([normal_cdf(x, NORMAL) for x in z])
    np.testing.assert_allclose(found, ndtr(z), rtol=0, atol=1e-6)
    assert np.all(np.diff(found[:20_003]) >= -1e-15)  # rounding
    assert np.all((found >= 0) & (found <= 1 + 1e-15))
    at_points = np.linspace(-REACH, REACH, len(NORMAL))[:-1]
    np.testing.assert_allclose([normal_cdf(x, NORMAL) for x in at_points], ndtr(at_points), atol=1e-12)
