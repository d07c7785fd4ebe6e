"""Interference that drifts: the paper's at first, then redrawn at fixed intervals from (seed, time) alone."""

import numpy as np
import pytest

from fedlane.network.channel import Radio, interference_scales
from fedlane.network.drift import InterferenceDrift
from fedlane.validate import InputError
from support.distributions import kolmogorov, uniform_cdf

RADIO = Radio(15e3, 15e3, 23.0, 23.0, -107.0, 128.1, 37.6, 10.0, False, (-5.0, 10.0), 5000.0)


def drift(seeds, drift_s=60.0):
    return InterferenceDrift(seeds, 5, 4, RADIO, drift_s)


def test_the_first_interval_has_the_paper_s_scales_to_the_bit():
    down, up = interference_scales(range(9), 5, 4, RADIO)
    for clock_s, drift_s in ((0.0, 60.0), (59.99, 60.0), (1e9, 0.0)):  # 0: never
        np.testing.assert_array_equal(drift(range(9), drift_s).down(np.full(9, clock_s)), down)
        np.testing.assert_array_equal(drift(range(9), drift_s).up(np.full(9, clock_s)), up)


def test_scales_are_constant_in_an_interval_and_redrawn_after_it():
    world = drift(range(500))
    early, late, after = (world.up(np.full(500, clock_s)) for clock_s in (120.0, 179.9, 180.0))
    np.testing.assert_array_equal(early, late)
    assert not np.any(early == after)
    db = [10 * np.log10(scales).ravel() for scales in (early, after)]
    for values in db:  # uniform between -5 and 10 dB
        assert kolmogorov((values + 5.0) / 15.0, uniform_cdf) < 2.23
    assert abs(np.corrcoef(*db)[0, 1]) < 4 / 10_000**0.5
    assert abs(np.corrcoef(db[0], np.log10(world.down(np.full(500, 120.0))).ravel())[0, 1]) < 4 / 10_000**0.5


def test_clocks_may_be_asked_for_in_any_order_and_seeds_alone_or_together():
    world, rng = drift(range(50)), np.random.default_rng(0)
    clock_s, channel = rng.uniform(0, 300, (50, 5)), rng.integers(-1, 4, (50, 5))
    every, chosen = world.down(clock_s), world.down(clock_s, channel)
    np.testing.assert_array_equal(np.take_along_axis(every, np.maximum(channel, 0)[..., None], 2)[..., 0], chosen)
    np.testing.assert_array_equal(drift([7]).down(clock_s[7:8], channel[7:8])[0], chosen[7])
    for client in rng.permutation(5):
        np.testing.assert_array_equal(world.down(clock_s[:, client])[:, client], every[:, client])


def test_a_negative_interval_is_refused():
    with pytest.raises(InputError, match=r"network\.drift_s must be at least 0, got -1"):
        drift([0], -1.0)
