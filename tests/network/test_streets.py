"""People in the streets: never in a building, at their speed, at any instant and in any order, and the city's gains."""

import numpy as np
import pytest

from fedlane import Scenario
from fedlane.city_map import CityMap
from fedlane.network.cell_gain import CityGain
from fedlane.network.streets import StreetWalk, place_in_city, street_ways
from fedlane.simulation.setup import prepare
from support.distributions import chi_square_limit
from support.small_city import small_city

LOW, HIGH = 0.5, 1.5


@pytest.fixture(scope="module")
def munich():
    return CityMap.load("munich")


def shortest_by_hand(streets, start, cell_m):
    """Distances from a cell by relaxation over all cells until nothing changes: slow and obvious."""
    distance = np.full(streets.shape, np.inf)
    distance[start] = 0.0
    while True:
        before = distance.copy()
        for row, column in np.argwhere(streets):
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    r, c = row + down, column + right
                    if not (0 <= r < streets.shape[0] and 0 <= c < streets.shape[1]) or not streets[r, c]:
                        continue
                    if streets[row, c] and streets[r, column]:
                        there = distance[r, c] + cell_m * np.hypot(down, right)
                        distance[row, column] = min(distance[row, column], there)
        if (distance == before).all():
            return distance


def test_ways_are_the_shortest_ways_around_the_buildings():
    city = small_city()
    ways = street_ways(city)
    places = len(ways.first)
    assert places == city.streets.sum()  # fewer cells than places
    for a in range(places):
        row, column = city.cell(ways.xy_m[ways.first[a, a]])
        expected_m = shortest_by_hand(city.streets, (int(row), int(column)), city.cell_m)
        for b in range(places):
            last = city.cell(ways.xy_m[ways.last[b, a]])
            assert last == (row, column)
            length_m = ways.along_m[ways.last[b, a]] - ways.along_m[ways.first[b, a]]
            assert length_m == pytest.approx(expected_m[city.cell(ways.xy_m[ways.first[b, a]])])


@pytest.mark.parametrize("city", [small_city(), CityMap.load("munich")], ids=["small", "munich"])
def test_nobody_is_ever_in_a_building_and_all_move_at_their_speed(city):
    walk, step_s = StreetWalk([3, 8], 20, city, (LOW, HIGH)), 0.5
    clocks = np.arange(0.0, 1000.0, step_s)
    places = np.stack([walk.position_m(np.full(2, t)) for t in clocks])
    row, column = city.cell(places)
    assert city.streets[row, column].all()
    travelled = np.stack([walk.travelled_m(np.full(2, t)) for t in clocks])
    speed = np.stack([walk.speed_m_s(np.full(2, t)) for t in clocks])
    assert speed.min() >= LOW
    assert speed.max() <= HIGH
    np.testing.assert_array_equal(travelled[0], 0.0)
    path = np.diff(travelled, axis=0)
    jump = np.hypot(*np.moveaxis(np.diff(places, axis=0), -1, 0))
    assert (jump <= path + 1e-9).all()
    assert (path >= LOW * step_s - 1e-9).all()
    assert (path <= HIGH * step_s + 1e-9).all()
    same_leg = speed[1:] == speed[:-1]
    np.testing.assert_allclose(path[same_leg], step_s * speed[1:][same_leg], atol=1e-9)
    straight = np.isclose(jump, path, atol=1e-9)  # elsewhere the way turns
    assert straight[same_leg].mean() > 0.8


def test_where_people_are_has_the_same_distribution_at_every_instant(munich):
    """Chi-square of 4,000 independent people at two distant instants over 25 blocks."""
    counts = []
    for seeds, clock_s in ((range(40), 0.0), (range(40, 80), 54_321.0)):
        xy_m = StreetWalk(seeds, 100, munich, (LOW, HIGH)).position_m(np.full(40, clock_s))
        block = (5 * (xy_m - munich.origin_m) / munich.size_m).astype(int)
        counts.append(np.bincount((5 * block[..., 0] + block[..., 1]).ravel(), minlength=25))
    both = np.array(counts)[:, np.sum(counts, axis=0) > 20]
    expected = both.sum(axis=1, keepdims=True) * both.sum(axis=0) / both.sum()
    assert np.sum((both - expected) ** 2 / expected) < chi_square_limit(both.shape[1] - 1)
    assert both.sum() > 7900


def test_instants_in_any_order_and_seeds_alone_or_among_others(munich):
    walk, rng = StreetWalk(range(50), 6, munich, (LOW, HIGH)), np.random.default_rng(0)
    alone, clocks = StreetWalk([7], 6, munich, (LOW, HIGH)), rng.uniform(0, 1e7, (20, 50))
    methods = ("position_m", "speed_m_s", "travelled_m")
    in_order = [[getattr(walk, method)(clock) for method in methods] for clock in clocks]
    for t in rng.permutation(20):
        for result, method in zip(in_order[t], methods, strict=True):
            np.testing.assert_array_equal(getattr(walk, method)(clocks[t]), result)
            np.testing.assert_array_equal(getattr(alone, method)(clocks[t, 7:8])[0], result[7])


def test_a_seed_among_fifty_has_the_delays_that_it_has_alone():
    scenario = Scenario.load("city-munich").with_values({"privacy.mechanism": "none"})
    among, alone = prepare(scenario, range(50)).network, prepare(scenario, [7]).network
    assignment = np.random.default_rng(0).permuted(np.tile([0, 1, 2, 3, *[-1] * 6], (50, 1)), axis=1)
    for t, clock_s in ((3, 1e5), (0, 0.0), (199, 612.5)):
        together = among.delays(t, np.full(50, clock_s), assignment)
        single = alone.delays(t, np.array([clock_s]), assignment[7:8])
        np.testing.assert_array_equal(single.total_s[0], together.total_s[7])
        state = alone.channel_state(t, np.array([clock_s]))[0]
        np.testing.assert_array_equal(among.channel_state(t, np.full(50, clock_s))[7], state)


def test_people_who_stand_are_spread_evenly_over_the_streets(munich):
    topology = place_in_city(range(40), 100, 6, munich)
    row, column = munich.cell(topology.client_xy_m)
    assert munich.streets[row, column].all()
    cells = np.argwhere(munich.streets)
    upper = (cells[:, 0] > np.median(cells[:, 0])).mean()
    share = (row > np.median(cells[:, 0])).mean()
    assert share == pytest.approx(upper, abs=4 * (0.25 / 4000) ** 0.5)
    expected = munich.station_xyz_m[[0, 1, 2, 3, 0, 1], :2]
    np.testing.assert_array_equal(topology.channel_xy_m[5], expected)


def test_gains_are_those_of_the_cell_and_of_the_channel_s_station():
    city = small_city()
    gain = CityGain([0], city, channels=5, shadowing_db=0.0, shadowing_distance_m=50.0)
    xy_m = np.array([[[-15.0, 105.0], [59.0, 101.0], [25.0, 154.0]]])  # cells (0, 0), (0, 7) and (5, 4)
    near, far = np.array([80.0, 80.07, 85.04]), np.array([100.0, 100.07, 105.04])
    np.testing.assert_allclose(gain.gain_db(xy_m)[0], -np.stack([near, far, near, far, near], axis=1))
    np.testing.assert_allclose(gain.gain_db(xy_m, np.array([[1, 4, -1]]))[0], [-100.0, -80.07, -85.04])


def test_shadowing_is_added_and_shared_by_the_channels_of_a_station(munich):
    plain = CityGain(range(30), munich, 8, 0.0, 50.0)
    shadowed = CityGain(range(30), munich, 8, 6.0, 50.0)
    xy_m = place_in_city(range(30), 100, 8, munich).client_xy_m
    before, after = plain.gain_db(xy_m), shadowed.gain_db(xy_m)
    np.testing.assert_array_equal(np.isinf(before), np.isinf(after))
    np.testing.assert_array_equal(after[..., :4], after[..., 4:])
    np.testing.assert_array_equal(shadowed.gain_db(xy_m, np.full((30, 100), 6)), after[..., 6])
    reached = np.isfinite(before)
    shadow_db = after[reached] - before[reached]
    assert shadow_db.std() == pytest.approx(6.0, rel=0.1)  # 120 fields of 100 correlated places


def test_where_nothing_arrives_a_transfer_never_ends(tmp_path):
    city = small_city()
    small_city(gain_db=np.where(np.arange(2)[:, None, None] == 1, -np.inf, city.gain_db)).save(tmp_path / "half.npz")
    changes = {"network.map": str(tmp_path / "half.npz"), "network.fading": "none", "privacy.mechanism": "none"}
    network = prepare(Scenario.load("city-munich").with_values(changes), [0]).network
    state = network.channel_state(0, np.zeros(1))[0]
    assert np.isinf(state[:, [1, 3]]).all()
    assert np.isfinite(state[:, [0, 2]]).mean() > 0.9  # one upload in a hundred fails
