"""Fading against Clarke's formulas: autocorrelation J0, exponential power, and independence of the pairs."""

import numpy as np
import pytest
from scipy.special import j0

from fedlane.network.fading import DIRECTIONS_OF_ARRIVAL, BlockFading, ClarkeFading, coherence_s, doppler_hz
from fedlane.network.mobility import WaypointWalk
from fedlane.validate import InputError
from support.distributions import exponential_cdf, kolmogorov

LINKS = 20_000


def coefficient(fading, wavelengths):
    real, imaginary = fading.amplitude(wavelengths)
    return real + 1j * imaginary


@pytest.mark.parametrize("wavelengths", [0.0, 0.05, 0.2, 0.383, 0.6, 1.1, 3.0, 20.3])
def test_the_autocorrelation_is_clarke_s(wavelengths):
    """The mean of 20,000 independent products at an instant far from 0, against four of their standard errors."""
    fading = ClarkeFading(range(100), 20)
    start = np.full((100, 10), 4567.8)
    product = coefficient(fading, start) * coefficient(fading, start + wavelengths).conj()
    error = product.real.std() / LINKS**0.5
    assert product.real.mean() == pytest.approx(j0(2 * np.pi * wavelengths), abs=4 * error + 1e-9)
    assert product.imag.mean() == pytest.approx(0.0, abs=4 * product.imag.std() / LINKS**0.5 + 1e-9)
    assert error < 0.009


@pytest.mark.slow
def test_a_single_link_has_clarke_s_autocorrelation_over_time():
    """An average over 2,000 places of one link's path; up to 3.5 wavelengths the only error is that of the average."""
    fading, places = ClarkeFading([11], 1), np.random.default_rng(0).uniform(0, 1e6, 2000)

    def path(shift):
        return np.array([coefficient(fading, np.array([[w]]))[0, 0, 0] for w in places + shift])

    base = path(0.0)
    assert np.mean(np.abs(base) ** 2) == pytest.approx(1.0, abs=4 / 2000**0.5)
    for lag in (0.1, 0.25, 0.383, 0.61, 1.5):
        assert np.mean(base * path(lag).conj()).real == pytest.approx(j0(2 * np.pi * lag), abs=4 / 2000**0.5)


def test_the_power_is_exponential_with_mean_one():
    power = ClarkeFading(range(100), 20).power(np.full((100, 10), 321.0)).ravel()
    assert power.mean() == pytest.approx(1.0, abs=4 / LINKS**0.5)
    second = 2 - 1 / DIRECTIONS_OF_ARRIVAL
    assert np.mean(power**2) == pytest.approx(second, abs=4 * np.std(power**2) / LINKS**0.5)
    assert kolmogorov(power, exponential_cdf) < 2.23 + 0.0036 * LINKS**0.5  # the second term is that of a finite sum


def test_pairs_fade_independently():
    values = coefficient(ClarkeFading(range(1000), 2), np.full((1000, 2), 99.0)).reshape(1000, 4)
    for other in range(1, 4):
        assert abs(np.mean(values[:, 0] * values[:, other].conj())) < 4 / 1000**0.5


def test_paths_may_be_asked_for_in_any_order_and_seeds_alone_or_together():
    rng = np.random.default_rng(0)
    together, alone = ClarkeFading(range(50), 3), ClarkeFading([7], 3)
    path, channel = rng.uniform(0, 1e7, (50, 9)), rng.integers(-1, 3, (50, 9))
    power = together.power(path, channel)
    np.testing.assert_array_equal(alone.power(path[7:8], channel[7:8])[0], power[7])
    client = np.stack([rng.permutation(9)[:4] for _ in range(50)])  # some of the clients, in another order
    some_path, some_channel = (np.take_along_axis(x, client, 1) for x in (path, channel))
    np.testing.assert_array_equal(together.power(some_path, some_channel, client), np.take_along_axis(power, client, 1))
    every = together.power(path)
    np.testing.assert_array_equal(np.take_along_axis(every, np.maximum(channel, 0)[..., None], 2)[..., 0], power)


def test_fading_along_a_walk_decorrelates_with_the_doppler_frequency():
    """At 1.5 m/s and 3.5 GHz the Doppler shift is 17.5 Hz: after 10 ms the correlation is J0(2 pi 0.175) = 0.7205."""
    walk = WaypointWalk(range(100), 10, 2000.0, (1.5, 1.5))
    shift_hz = doppler_hz(np.array(1.5), 3.5e9)
    assert shift_hz == pytest.approx(17.5)
    assert coherence_s(shift_hz) == pytest.approx(0.4231 / 17.5, rel=1e-4)
    assert coherence_s(np.array(0.0)) == np.inf
    fading, per_metre = ClarkeFading(range(100), 20), 3.5e9 / 3e8
    first, later = (
        coefficient(fading, walk.travelled_m(np.full(100, clock_s)) * per_metre) for clock_s in (600.0, 600.01)
    )
    product = (first * later.conj()).real
    assert product.mean() == pytest.approx(0.7205, abs=4 * product.std() / LINKS**0.5 + 1e-4)


def test_block_fading_is_exponential_constant_over_a_block_and_independent_between_blocks():
    fading = BlockFading(range(100), 20, coherence_s=0.5)
    power = fading.power(np.full(100, 10.0), 10)
    assert kolmogorov(power, exponential_cdf) < 2.23
    np.testing.assert_array_equal(fading.power(np.full(100, 10.49), 10), power)
    later = fading.power(np.full(100, 10.5), 10)
    assert abs(np.mean((power - 1) * (later - 1))) < 4 / LINKS**0.5
    channel = np.random.default_rng(0).integers(0, 20, (100, 10))
    chosen = fading.power(np.full((100, 10), 10.2), 10, channel)
    np.testing.assert_array_equal(chosen, np.take_along_axis(power, channel[..., None], 2)[..., 0])
    np.testing.assert_array_equal(BlockFading([7], 20, 0.5).power(np.array([10.1]), 10)[0], power[7])
    with pytest.raises(InputError, match="coherence time must be greater than 0"):
        BlockFading([0], 1, 0.0)
