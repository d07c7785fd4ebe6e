"""Random waypoint walks against the model's known stationary laws, at any instant and in any order."""

import numpy as np
import pytest

from fedlane.network.mobility import StaticPlaces, WaypointWalk
from fedlane.validate import InputError
from support.distributions import chi_square_limit

LOW, HIGH = 0.5, 2.0
CELLS = 5
MEAN_DISTANCE = 0.5214054331647207  # of two uniform points of the unit square: (2 + sqrt 2 + 5 asinh 1) / 15


def stationary_density(x, y):
    """The density of a random waypoint walk at a point of the unit square, by numerical integration.

    Hyytia, Lassila and Virtamo, IEEE Trans. Mobile Computing 5(6), 2006: the integral over all directions
    of a1 a2 (a1 + a2) / (2 mean distance), where a1 and a2 are the distances to the border ahead and behind.
    """
    angle = (np.arange(720) + 0.5) * (np.pi / 720)
    cosine, sine = np.cos(angle), np.sin(angle)

    def to_border(cosine, sine):
        ahead_x = np.where(cosine > 0, (1 - x) / cosine, -x / cosine)
        ahead_y = np.where(sine > 0, (1 - y) / sine, -y / sine)
        return np.minimum(ahead_x, ahead_y)

    ahead, behind = to_border(cosine, sine), to_border(-cosine, -sine)
    return np.mean(ahead * behind * (ahead + behind)) * np.pi / MEAN_DISTANCE


@pytest.fixture(scope="module")
def cell_probability():
    """The probability of each of 5 x 5 cells, from the density at 12 x 12 points of each."""
    middle = (np.arange(12 * CELLS) + 0.5) / (12 * CELLS)
    density = np.array([[stationary_density(x, y) for y in middle] for x in middle])
    return density.reshape(CELLS, 12, CELLS, 12).mean(axis=(1, 3)) / CELLS**2


def test_the_density_of_the_formula_integrates_to_one(cell_probability):
    assert pytest.approx((2 + 2**0.5 + 5 * np.arcsinh(1)) / 15) == MEAN_DISTANCE
    assert cell_probability.sum() == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize(("clock_s", "legs"), [(0.0, 64), (1.0, 2), (777.7, 3), (123_456.7, 64), (3e8, 5)])
def test_positions_follow_the_stationary_law_at_every_instant(clock_s, legs, cell_probability):
    """Chi-square of 20,000 independent walks over 25 cells; the uniform law is far outside."""
    walk = WaypointWalk(range(20), 1000, 300.0, (LOW, HIGH), legs=legs)
    cell = (walk.position_m(np.full(20, clock_s)) / 300.0 * CELLS).astype(int).reshape(-1, 2)
    counts = np.bincount(cell[:, 0] * CELLS + cell[:, 1], minlength=CELLS**2)
    expected = 20_000 * cell_probability.ravel() / cell_probability.sum()
    bound = chi_square_limit(CELLS**2 - 1)
    assert np.sum((counts - expected) ** 2 / expected) < bound
    assert np.sum((counts - 800) ** 2 / 800) > 10 * bound


@pytest.mark.parametrize(("clock_s", "legs"), [(0.0, 64), (50.0, 2), (123_456.7, 64)])
def test_speeds_follow_the_stationary_law_at_every_instant(clock_s, legs):
    """A density proportional to 1 / v: ln v is uniform, and the mean (high - low) / ln(high / low), not the middle."""
    walk = WaypointWalk(range(20), 1000, 300.0, (LOW, HIGH), legs=legs)
    speed = walk.speed_m_s(np.full(20, clock_s)).ravel()
    counts = np.bincount((np.log(speed / LOW) / np.log(HIGH / LOW) * 20).astype(int), minlength=20)
    assert np.sum((counts - 1000) ** 2 / 1000) < chi_square_limit(19)
    mean = (HIGH - LOW) / np.log(HIGH / LOW)
    variance = (HIGH**2 - LOW**2) / 2 / np.log(HIGH / LOW) - mean**2
    assert speed.mean() == pytest.approx(mean, abs=4 * (variance / 20_000) ** 0.5)
    assert abs(mean - (LOW + HIGH) / 2) > 20 * (variance / 20_000) ** 0.5


def test_a_walk_is_continuous_and_its_path_is_the_integral_of_its_speed():
    walk, step_s = WaypointWalk([3], 20, 100.0, (LOW, HIGH), legs=4), 0.25
    clocks = np.arange(0, 1500, step_s)  # several tours
    places = np.stack([walk.position_m(np.array([t]))[0] for t in clocks])
    travelled = np.stack([walk.travelled_m(np.array([t]))[0] for t in clocks])
    speed = np.stack([walk.speed_m_s(np.array([t]))[0] for t in clocks])
    assert places.min() >= 0.0
    assert places.max() <= 100.0
    jump = np.hypot(*np.moveaxis(np.diff(places, axis=0), -1, 0))
    path = np.diff(travelled, axis=0)
    assert np.all(jump <= path + 1e-9)
    assert np.all((path >= LOW * step_s - 1e-9) & (path <= HIGH * step_s + 1e-9))
    same_leg = speed[1:] == speed[:-1]
    assert same_leg.mean() > 0.9
    np.testing.assert_allclose(path[same_leg], step_s * speed[1:][same_leg], atol=1e-9)
    np.testing.assert_allclose(jump[same_leg], path[same_leg], atol=1e-9)  # legs are straight
    np.testing.assert_array_equal(travelled[0], 0.0)


def test_clocks_may_be_asked_for_in_any_order_and_seeds_alone_or_together():
    walk, rng = WaypointWalk(range(50), 6, 2000.0, (LOW, HIGH)), np.random.default_rng(0)
    clocks = rng.uniform(0, 1e7, (20, 50))
    in_order = [(walk.position_m(c), walk.speed_m_s(c), walk.travelled_m(c)) for c in clocks]
    for t in rng.permutation(20):
        alone = WaypointWalk([7], 6, 2000.0, (LOW, HIGH))
        for result, method in zip(in_order[t], ("position_m", "speed_m_s", "travelled_m"), strict=True):
            np.testing.assert_array_equal(getattr(walk, method)(clocks[t]), result)
            np.testing.assert_array_equal(getattr(alone, method)(clocks[t, 7:8])[0], result[7])
    own_clocks = np.repeat(clocks[:1].T, 6, axis=1)  # (R, U)
    np.testing.assert_array_equal(walk.position_m(own_clocks), in_order[0][0])
    fewer = WaypointWalk([7], 4, 2000.0, (LOW, HIGH))  # a client's walk does not depend on the number of clients
    np.testing.assert_array_equal(fewer.position_m(clocks[0, 7:8])[0], in_order[0][0][7, :4])


def test_clients_that_do_not_move():
    places = StaticPlaces(np.array([[[1.0, 2.0], [3.0, 4.0]]]))
    np.testing.assert_array_equal(places.position_m(np.array([1e6])), [[[1.0, 2.0], [3.0, 4.0]]])
    np.testing.assert_array_equal(places.speed_m_s(np.array([1e6])), [[0.0, 0.0]])
    np.testing.assert_array_equal(places.travelled_m(np.array([1e6])), [[0.0, 0.0]])


@pytest.mark.parametrize("speeds", [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0), (np.nan, 1.0), (1.0, np.inf)])
def test_speeds_without_a_steady_state_are_refused(speeds):
    with pytest.raises(InputError, match=r"network\.speed_m_s must be two numbers with 0 < low <= high, got \["):
        WaypointWalk([0], 2, 100.0, speeds)
