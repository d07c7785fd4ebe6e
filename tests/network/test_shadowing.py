"""Shadowing against its formula: autocorrelation exp(-r / d), unit variance, normal at a point."""

import numpy as np
import pytest
from scipy.special import ndtr

from fedlane.network.shadowing import WAVES, SpatialField, halved_sum
from fedlane.network.tr38901 import UMI, los_probability
from fedlane.validate import InputError
from support.distributions import kolmogorov

DISTANCE_M = 50.0


@pytest.fixture(scope="module")
def field():
    """20,000 independent fields."""
    return SpatialField(range(1000), "shadowing", 20, DISTANCE_M)


@pytest.mark.parametrize("lag", [0.02, 0.1, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("direction", [0.0, 1.0])
def test_the_autocorrelation_is_exponential(field, lag, direction):
    """The mean of 20,000 independent products, against four of their standard errors."""
    here = np.broadcast_to(np.array([[1234.5, 67.8]]), (1000, 1, 2))
    there = here + lag * DISTANCE_M * np.array([np.cos(direction), np.sin(direction)])
    product = field.at(here) * field.at(there)
    error = product.std() / product.size**0.5
    assert error < 0.011
    assert product.mean() == pytest.approx(np.exp(-lag), abs=4 * error)


def test_a_single_realisation_has_nearly_the_same_autocorrelation_and_variance_one():
    """Averages over 40,000 places of one field, in 8 directions; a realisation deviates by up to 0.05 (rms)."""
    rng = np.random.default_rng(3)
    one_field = SpatialField([5], "shadowing", 1, DISTANCE_M)
    here = rng.uniform(0, 2e5, (1, 5000, 2))
    values = one_field.at(here)[..., 0]
    assert values.var() == pytest.approx(1.0, abs=4 * (2 / 5000) ** 0.5)
    for lag in (0.25, 1.0, 2.0):
        angles = np.arange(8) * np.pi / 4
        steps = lag * DISTANCE_M * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        average = np.mean([np.mean(values * one_field.at(here + step)[..., 0]) for step in steps])
        assert average == pytest.approx(np.exp(-lag), abs=4 * 0.02 + 4 / 5000**0.5)


def test_the_field_is_normal_at_a_point(field):
    values = field.at(np.full((1000, 1, 2), 321.0)).ravel()
    assert kolmogorov(values, ndtr) < 2.23 + 0.001 * 20_000**0.5  # the second term is that of a finite sum
    fourth = 3 - 1.5 / WAVES  # of cosines of independent phases
    assert np.mean(values**4) == pytest.approx(fourth, abs=4 * np.std(values**4) / 20_000**0.5)
    uniform = field.uniform_at(np.full((1000, 1, 2), 321.0)).ravel()
    np.testing.assert_allclose(uniform, ndtr(values))


def test_stations_purposes_and_seeds_have_independent_fields(field):
    values = field.at(np.zeros((1000, 1, 2)))[:, 0]
    bound = 4 / 1000**0.5
    assert abs(np.mean(values[:, 0] * values[:, 1])) < bound
    assert abs(np.mean(values[1:, 0] * values[:-1, 0])) < bound
    other = SpatialField(range(1000), "line-of-sight", 1, DISTANCE_M).at(np.zeros((1000, 1, 2)))[:, 0, 0]
    assert abs(np.mean(values[:, 0] * other)) < bound


def test_line_of_sight_has_its_probability_and_is_consistent_in_space():
    """At 60 m UMi has line of sight with probability 0.3 + exp(-60 / 36) x 0.7 = 0.4322; a metre changes it rarely."""
    seen = SpatialField(range(2000), "line-of-sight", 10, UMI.los_distance_m)
    here, step = np.full((2000, 1, 2), 60.0), np.array([1.0, 0.0])
    probability = los_probability(UMI, 60.0)
    los, near = seen.uniform_at(here) < probability, seen.uniform_at(here + step) < probability
    assert los.mean() == pytest.approx(0.4322, abs=4 * (0.25 / 20_000) ** 0.5 + 0.001)
    # Two normals of correlation r are on different sides of 0 with probability arccos(r) / pi, of a quantile with less.
    assert np.mean(los != near) < np.arccos(np.exp(-1 / 50)) / np.pi + 4 * (0.07 / 20_000) ** 0.5
    assert np.mean(los != near) > 0.04


def test_places_may_be_asked_for_in_any_order_and_seeds_alone_or_together():
    rng = np.random.default_rng(0)
    together, alone = (SpatialField(seeds, "shadowing", 3, 20.0) for seeds in (range(50), [7]))
    places, station = rng.uniform(0, 5000, (50, 9, 2)), rng.integers(-1, 3, (50, 9))
    values = together.at(places, station)
    np.testing.assert_array_equal(alone.at(places[7:8], station[7:8])[0], values[7])
    order = rng.permutation(9)
    np.testing.assert_array_equal(together.at(places[:, order], station[:, order]), values[:, order])
    np.testing.assert_array_equal(together.at(places[:, 4:5], station[:, 4:5]), values[:, 4:5])
    every = together.at(places)
    np.testing.assert_array_equal(np.take_along_axis(every, np.maximum(station, 0)[..., None], 2)[..., 0], values)


def test_sums_by_halves():
    values = np.random.default_rng(0).normal(size=(3, 4, 32))
    np.testing.assert_allclose(halved_sum(values), values.sum(axis=-1))


def test_a_correlation_distance_of_zero_is_refused():
    with pytest.raises(InputError, match=r"network\.shadowing_distance_m must be greater than 0, got 0"):
        SpatialField([0], "shadowing", 1, 0.0)
