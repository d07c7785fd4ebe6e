"""Joules by hand."""

import numpy as np
import pytest

from fedlane.network.energy import EnergyModel, compute_energy_j, powered_energy_j, watts
from fedlane.validate import InputError


def test_computing_costs_kappa_cycles_f_squared():
    """1e-28 x 2e9 cycles x (1.5e9 Hz)^2 = 1e-28 x 2e9 x 2.25e18 = 0.45 J."""
    assert compute_energy_j(1e-28, 2e9, 1.5e9) == pytest.approx(0.45)
    np.testing.assert_allclose(compute_energy_j(1e-28, [[1e9], [4e9]], [1e9, 2e9]), [[0.1, 0.4], [0.4, 1.6]])


def test_a_device_costs_its_power_times_the_time():
    np.testing.assert_allclose(powered_energy_j(2.5, np.array([0.0, 4.0])), [0.0, 10.0])


def test_levels_in_dbm():
    assert watts(30.0) == pytest.approx(1.0)
    assert watts(23.0) == pytest.approx(0.199526, rel=1e-5)  # 10^(-0.7)
    assert watts(0.0) == pytest.approx(1e-3)


def test_transmitting_costs_the_power_over_the_efficiency_times_the_time():
    """20 dBm is 0.1 W; at an efficiency of 0.25 the transmitter draws 0.4 W: 1.2 J in 3 s."""
    np.testing.assert_allclose(EnergyModel(efficiency=0.25).transmit_energy_j(20.0, np.array([3.0, 0.5])), [1.2, 0.2])


def test_a_round_by_hand():
    """0.45 J of computing, 0.2 W x 5 s = 1 J of waiting, 1.2 J of transmitting: 2.65 J; without a channel 0."""
    model = EnergyModel(efficiency=0.25, idle_w=0.2)
    compute_j = np.array([[0.45, 0.45]])
    download_s, upload_s = np.array([[5.0, np.nan]]), np.array([[3.0, np.nan]])
    np.testing.assert_allclose(model.round_energy_j(compute_j, 20.0, download_s, upload_s), [[2.65, 0.0]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kappa": -1.0}, r"energy\.kappa must be at least 0, got -1"),
        ({"idle_w": -1.0}, r"energy\.idle_w must be at least 0, got -1"),
        ({"efficiency": 0.0}, r"energy\.efficiency must be greater than 0 and at most 1, got 0"),
        ({"efficiency": 1.5}, r"energy\.efficiency must be greater than 0 and at most 1, got 1\.5"),
        ({"efficiency": float("nan")}, r"energy\.efficiency must be"),
        ({"battery_j": 0.0}, r"energy\.battery_j must be greater than 0, got 0"),
    ],
)
def test_values_out_of_range_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        EnergyModel(**values)
