"""Urban cells against points computed by hand from TR 38.901's tables, and rates against TR 36.942's formula."""

import numpy as np
import pytest

from fedlane.network.link_rate import LTE_DOWNLINK, LTE_UPLINK, UploadFailures
from fedlane.network.tr38901 import (
    SCENARIOS,
    UMA,
    UMI,
    breakpoint_m,
    check_link,
    los_probability,
    path_loss_db,
    thermal_noise_dbm,
    urban_scenario,
)
from fedlane.validate import InputError

POINTS = [  # scenario, d2D in m, line of sight, carrier in GHz, height of the client in m, path loss in dB
    # d3D 13.1244, d'BP 210: 32.4 + 21 x 1.118080 + 20 x 0.544068 = 66.7610
    ("umi", 10, True, 3.5, 1.5, 66.7610),
    # d3D 50.7174, d'BP 210: 32.4 + 21 x 1.705157 + 20 x 0.544068 = 79.0896
    ("umi", 50, True, 3.5, 1.5, 79.0896),
    # d3D 100.3606, d'BP 1680: 32.4 + 21 x 2.001563 + 20 x 1.447158 = 103.3760
    ("umi", 100, True, 28, 1.5, 103.3760),
    # d3D 200.1805, d'BP 120: 32.4 + 40 x 2.301422 + 20 x 0.301030 - 9.5 x 4.160536 = 90.9524
    ("umi", 200, True, 2.0, 1.5, 90.9524),
    # d3D 500.0722, d'BP 210: 32.4 + 40 x 2.699033 + 20 x 0.544068 - 9.5 x 4.645150 = 107.1138
    ("umi", 500, True, 3.5, 1.5, 107.1138),
    # d3D 1000.0245, d'BP 168: 32.4 + 40 x 3.000011 + 20 x -0.154902 - 9.5 x 4.451372 = 107.0144
    ("umi", 1000, True, 0.7, 3.0, 107.0144),
    # 22.4 + 35.3 x 1.118080 + 21.3 x 0.544068 = 73.4569, LOS 66.7610
    ("umi", 10, False, 3.5, 1.5, 73.4569),
    # 22.4 + 35.3 x 2.001563 + 21.3 x 0.544068 = 104.6438, LOS 85.3142
    ("umi", 100, False, 3.5, 1.5, 104.6438),
    # 22.4 + 35.3 x 2.698970 + 21.3 x 1.447158 - 0.3 x 8.5 = 145.9481, LOS 118.0215
    ("umi", 500, False, 28.0, 10.0, 145.9481),
    # 22.4 + 35.3 x 1.204332 + 21.3 x 2.000000 - 0.3 x 21 = 101.2129, LOS 97.6910
    ("umi", 10, False, 100, 22.5, 101.2129),
    # d3D 42.1574, d'BP 560: 28 + 22 x 1.624874 + 20 x 0.544068 = 74.6286
    ("uma", 35, True, 3.5, 1.5, 74.6286),
    # d3D 102.7241, d'BP 320: 28 + 22 x 2.011673 + 20 x 0.301030 = 78.2774
    ("uma", 100, True, 2.0, 1.5, 78.2774),
    # d3D 300.9190, d'BP 560: 28 + 22 x 2.478450 + 20 x 0.544068 = 93.4073
    ("uma", 300, True, 3.5, 1.5, 93.4073),
    # d3D 1000.2761, d'BP 560: 28 + 40 x 3.000120 + 20 x 0.544068 - 9 x 5.497140 = 109.4119
    ("uma", 1000, True, 3.5, 1.5, 109.4119),
    # d3D 5000.0552, d'BP 112: 28 + 40 x 3.698975 + 20 x -0.154902 - 9 x 4.117147 = 135.8066
    ("uma", 5000, True, 0.7, 1.5, 135.8066),
    # 13.54 + 39.08 x 1.193695 + 20 x 0.544068 - 0.6 x 11.5 = 64.1710, LOS 65.1426
    ("uma", 10, False, 3.5, 13.0, 65.1426),
    # 13.54 + 39.08 x 2.011673 + 20 x 0.544068 = 103.0375, LOS 83.1382
    ("uma", 100, False, 3.5, 1.5, 103.0375),
    # 13.54 + 39.08 x 2.699449 + 20 x 0.301030 = 125.0551, LOS 96.8848
    ("uma", 500, False, 2.0, 1.5, 125.0551),
    # 13.54 + 39.08 x 3.000049 + 20 x 0.778151 - 0.6 x 8.5 = 141.2449, LOS 109.5641
    ("uma", 1000, False, 6.0, 10.0, 141.2449),
    # 13.54 + 39.08 x 3.301060 + 20 x -0.154902 = 139.4474, LOS 119.8900
    ("uma", 2000, False, 0.7, 1.5, 139.4474),
]

LINE_OF_SIGHT = [  # scenario, d2D in m, probability; 1 up to 18 m
    ("umi", 5, 1.000000),
    # 18 / 18 + exp(-18 / 36) x (1 - 18 / 18) = 1.000000 + 0.606531 x 0.000000 = 1.000000
    ("umi", 18, 1.000000),
    # 18 / 50 + exp(-50 / 36) x (1 - 18 / 50) = 0.360000 + 0.249352 x 0.640000 = 0.519585
    ("umi", 50, 0.519585),
    # 18 / 100 + exp(-100 / 36) x (1 - 18 / 100) = 0.180000 + 0.062177 x 0.820000 = 0.230985
    ("umi", 100, 0.230985),
    # 18 / 300 + exp(-300 / 36) x (1 - 18 / 300) = 0.060000 + 0.000240 x 0.940000 = 0.060226
    ("umi", 300, 0.060226),
    ("uma", 5, 1.000000),
    # 18 / 18 + exp(-18 / 63) x (1 - 18 / 18) = 1.000000 + 0.751477 x 0.000000 = 1.000000
    ("uma", 18, 1.000000),
    # 18 / 50 + exp(-50 / 63) x (1 - 18 / 50) = 0.360000 + 0.452191 x 0.640000 = 0.649402
    ("uma", 50, 0.649402),
    # 18 / 100 + exp(-100 / 63) x (1 - 18 / 100) = 0.180000 + 0.204477 x 0.820000 = 0.347671
    ("uma", 100, 0.347671),
    # 18 / 300 + exp(-300 / 63) x (1 - 18 / 300) = 0.060000 + 0.008549 x 0.940000 = 0.068036
    ("uma", 300, 0.068036),
]


@pytest.mark.parametrize(("scenario", "distance_m", "los", "carrier_ghz", "height_m", "loss_db"), POINTS)
def test_path_loss_at_twenty_points(scenario, distance_m, los, carrier_ghz, height_m, loss_db):
    loss = path_loss_db(SCENARIOS[scenario], distance_m, np.array(los), carrier_ghz * 1e9, height_m)
    assert loss == pytest.approx(loss_db, abs=1e-4)


@pytest.mark.parametrize(("scenario", "distance_m", "probability"), LINE_OF_SIGHT)
def test_the_probability_of_line_of_sight_at_ten_points(scenario, distance_m, probability):
    assert los_probability(SCENARIOS[scenario], distance_m) == pytest.approx(probability, abs=1e-6)


def test_the_two_slopes_meet_at_the_breakpoint():
    """d'BP = 4 x 9 x 0.5 x 3.5e9 / 3e8 = 210 m in UMi, and 4 x 24 x 0.5 x 3.5e9 / 3e8 = 560 m in UMa."""
    for scenario, distance_m in ((UMI, 210.0), (UMA, 560.0)):
        assert breakpoint_m(scenario, 3.5e9) == pytest.approx(distance_m)
        around = path_loss_db(scenario, distance_m + np.array([-1e-6, 1e-6]), np.array(True), 3.5e9)
        # 40 - 21 = 2 x 9.5 and 40 - 22 = 2 x 9: the slopes' difference is the breakpoint's coefficient
        assert around[1] - around[0] == pytest.approx(0.0, abs=1e-5)


def test_distances_below_ten_metres_count_as_ten_and_arrays_keep_their_shape():
    distance_m = np.array([[0.0, 3.0, 10.0], [20.0, 300.0, 4000.0]])
    los = np.array([[True, True, True], [False, True, False]])
    loss = path_loss_db(UMI, distance_m, los, 3.5e9)
    assert loss.shape == (2, 3)
    np.testing.assert_array_equal(loss[0], loss[0, 0])
    assert loss[1, 2] == path_loss_db(UMI, 4000.0, np.array(False), 3.5e9)


def test_the_constants_of_shadow_fading_are_those_of_the_tables():
    assert (UMI.shadowing_db, UMA.shadowing_db) == ((4.0, 7.82), (4.0, 6.0))
    assert (UMI.shadowing_distance_m, UMA.shadowing_distance_m) == ((10.0, 13.0), (37.0, 50.0))


def test_the_noise_of_20_mhz_with_a_figure_of_9_db():
    assert thermal_noise_dbm(20e6, 9.0) == pytest.approx(-174 + 73.0103 + 9, abs=1e-4)  # 10 log10(2e7) = 73.0103


def test_a_link_that_the_report_does_not_cover_is_refused():
    check_link(UMI, 3.5e9)
    with pytest.raises(
        InputError, match=r"network\.carrier_hz must be between 5e8 and 1e11 for TR 38\.901, got 1e\+08"
    ):
        check_link(UMI, 1e8)
    with pytest.raises(InputError, match=r"client_height_m must be between 1\.5 and 13 m for uma, got 20"):
        check_link(UMA, 3.5e9, 20.0)
    with pytest.raises(InputError, match="unknown 3GPP scenario 'umx'"):
        urban_scenario("umx")
    assert urban_scenario("uma") is UMA


@pytest.mark.parametrize(
    ("link", "sinr_db", "efficiency"),
    [
        (LTE_DOWNLINK, -10.01, 0.0),  # below the smallest ratio
        (LTE_DOWNLINK, -9.99, 0.0827),  # 0.6 x log2(1.1002) = 0.6 x 0.1378
        (LTE_DOWNLINK, 0.0, 0.6),  # 0.6 x log2(2)
        (LTE_DOWNLINK, 10.0, 2.0757),  # 0.6 x log2(11) = 0.6 x 3.4594
        (LTE_DOWNLINK, 30.0, 4.4),  # 0.6 x log2(1001) = 5.98: capped
        (LTE_UPLINK, 0.0, 0.4),
        (LTE_UPLINK, 10.0, 1.3838),  # 0.4 x 3.4594
        (LTE_UPLINK, 20.0, 2.0),  # 0.4 x log2(101) = 2.66: capped
    ],
)
def test_the_rate_is_attenuated_and_capped(link, sinr_db, efficiency):
    sinr = np.array(10 ** (sinr_db / 10))
    assert link.efficiency(sinr) == pytest.approx(efficiency, abs=1e-4)
    assert link.rate_bps(20e6, sinr) == pytest.approx(20e6 * efficiency, abs=2e3)
    assert link.goodput_bps(20e6, sinr) == pytest.approx(0.9 * 20e6 * efficiency, abs=2e3)


def test_uploads_fail_with_the_stated_probability_from_seed_and_round_alone():
    failed = np.stack([UploadFailures(range(50), 20, 0.05).at(t) for t in range(40)], axis=1)
    # 40,000 draws: standard error sqrt(0.05 x 0.95 / 40000)
    assert failed.mean() == pytest.approx(0.05, abs=4 * (0.05 * 0.95 / 40_000) ** 0.5)
    np.testing.assert_array_equal(UploadFailures([7], 20, 0.05).at(31)[0], failed[7, 31])
    assert UploadFailures(range(50), 200).at(0).mean() == pytest.approx(0.01, abs=4 * (0.01 * 0.99 / 10_000) ** 0.5)
