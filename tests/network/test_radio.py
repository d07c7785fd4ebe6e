"""Radio links and computing against values worked out by hand and closed forms."""

import numpy as np
import pytest

from fedlane import Scenario
from fedlane.network import Compute, Radio, RadioNetwork, Topology, path_gain_db, place, rate_bps
from fedlane.simulation.setup import prepare

RADIO = Radio(
    bandwidth_up_hz=15e3,
    bandwidth_down_hz=15e3,
    power_up_dbm=23.0,
    power_down_dbm=23.0,
    noise_dbm=-107.0,
    path_loss_db=128.1,
    path_loss_slope_db=37.6,
    min_distance_m=10.0,
    rayleigh=False,
    interference_db=(-5.0, 10.0),
    payload_bits=5000.0,
)
SILENT = (-300.0, -300.0)
DEADLINE_S = 5.0


def radio(**changes):
    from dataclasses import replace

    return replace(RADIO, **changes)


def interface(seeds=(0,), clients=3, channels=2, radio=RADIO, sizes=6000.0):
    work = Compute.of(np.full((len(seeds), clients), sizes), np.full(clients, 3.0), 5, (10e3, 10e3), (30e3, 100e3))
    return RadioNetwork(seeds, place(seeds, clients, channels, 2000.0), radio, work, DEADLINE_S)


def at_distance(km, radio):
    """One client and one channel, ``km`` apart."""
    topology = Topology(np.zeros((1, 1, 2)), np.array([[[km * 1000.0, 0.0]]]))
    work = Compute.of(np.full((1, 1), 6000.0), np.full(1, 3.0), 5, (10e3, 10e3), (30e3, 100e3))
    return RadioNetwork((0,), topology, radio, work, DEADLINE_S)


def test_a_link_worked_out_by_hand():
    """0.2744 km: PL 106.98 dB, SNR 23.02 dB, 7.653 b/s/Hz, 5 kbit in 0.04356 s."""
    gain = path_gain_db(np.array([0.2744]), RADIO)
    assert gain[0] == pytest.approx(-106.98, abs=0.005)
    snr = 10 ** ((23.0 + gain + 107.0) / 10)
    efficiency = rate_bps(1.0, snr, np.zeros(1))[0]
    assert efficiency == pytest.approx(7.653, abs=5e-4)
    delays = at_distance(0.2744, radio(interference_db=SILENT)).delays(0, np.zeros(1), np.array([[0]]))
    assert delays.download_s[0, 0] == pytest.approx(0.04356, abs=1e-5)
    assert delays.upload_s[0, 0] == pytest.approx(0.04356, abs=1e-5)


def test_interference_enters_the_denominator():
    assert rate_bps(1.0, np.array([30.0]), np.array([9.0]))[0] == pytest.approx(2.0)


def test_power_and_bandwidth_act_on_their_own_direction():
    quiet = radio(interference_db=SILENT, power_down_dbm=33.0, bandwidth_up_hz=30e3)
    delays = at_distance(0.2744, quiet).delays(0, np.zeros(1), np.array([[0]]))
    assert delays.upload_s[0, 0] == pytest.approx(0.04356 / 2, abs=1e-5)
    assert delays.download_s[0, 0] == pytest.approx(5000 / (15e3 * np.log2(1 + 10 ** (3.302))), rel=1e-3)


def test_distances_have_a_minimum():
    near = place((0,), 50, 50, 20.0).distance_km(10.0)
    assert near.min() == pytest.approx(0.010)


def test_positions_are_uniform_in_the_square():
    points = place(range(200), 30, 20, 2000.0)
    for xy in (points.client_xy_m, points.channel_xy_m):
        assert xy.min() >= 0
        assert xy.max() <= 2000
        assert xy.mean() == pytest.approx(1000, abs=5 * 2000 / np.sqrt(12 * xy.size))


def test_compute_time_is_cycles_over_a_uniform_frequency():
    work = Compute.of(np.array([[6000.0, 3000.0]]), np.array([3.0, 2.0]), 5, (10e3, 10e3), (30e3, 100e3))
    np.testing.assert_allclose(work.cycles, [[90e3, 30e3]])
    np.testing.assert_allclose(work.time_s(np.array([[0.0, 0.0]])), [[90 / 20, 30 / 30]])
    np.testing.assert_allclose(work.time_s(np.array([[1.0, 0.5]])), [[90 / 130, 30 / 130]])


def test_parts_add_up_and_the_unassigned_have_none():
    network = interface(clients=3)
    delays = network.delays(5, np.zeros(1), np.array([[1, -1, 0]]))
    np.testing.assert_array_equal(np.isnan(delays.total_s), [[False, True, False]])
    np.testing.assert_allclose(delays.total_s, delays.download_s + delays.compute_s + delays.upload_s)
    assert np.nanmin(delays.total_s) > 0


def test_channel_state_equals_the_delays_of_the_round():
    network = interface(seeds=(3, 4), clients=4, channels=3)
    state = network.channel_state(70, np.zeros(2))
    assignment = np.array([[2, 0, -1, 1], [-1, 1, 2, 0]])
    expected = np.take_along_axis(state, np.maximum(assignment, 0)[..., None], 2)[..., 0]
    total_s = network.delays(70, np.zeros(2), assignment).total_s
    np.testing.assert_allclose(total_s, np.where(assignment >= 0, expected, np.nan))


def test_delays_do_not_depend_on_neighbours_or_on_the_order_of_rounds():
    assignment = np.array([[1, 0, -1]])
    alone, among = interface(seeds=(7,)), interface(seeds=(2, 7, 9))
    among.delays(300, np.zeros(3), np.repeat(assignment, 3, 0))
    for t in (0, 63, 64, 1000, 64):
        single = alone.delays(t, np.zeros(1), assignment)
        several = among.delays(t, np.zeros(3), np.repeat(assignment, 3, 0))
        np.testing.assert_array_equal(single.total_s[0], several.total_s[1])


def test_interference_scales_and_draws_have_their_distributions():
    """s_ij uniform in dB on [-5, 10]; |N(0, 1)| has mean sqrt(2 / pi)."""
    network = interface(clients=60, channels=60)
    for scale in (network.scale_up, network.scale_down):
        db = 10 * np.log10(scale)
        assert -5 <= db.min() < -4.9
        assert 9.9 < db.max() <= 10
        assert db.mean() == pytest.approx(2.5, abs=5 * 15 / np.sqrt(12 * db.size))
    draws, _ = network._block_of(0)
    for part in (draws.up, draws.down):
        assert part.mean() == pytest.approx(np.sqrt(2 / np.pi), abs=5 * np.sqrt((1 - 2 / np.pi) / part.size))


def test_rayleigh_fading_is_unit_mean_and_shared_by_both_directions():
    network = at_distance(0.5, radio(rayleigh=True, interference_db=SILENT))
    snr = float(network.snr_up[0, 0, 0])
    power = []
    for t in range(2000):
        delays = network.delays(t, np.zeros(1), np.array([[0]]))
        assert delays.upload_s[0, 0] == pytest.approx(delays.download_s[0, 0], rel=1e-12)
        power.append((2 ** (5000 / (15e3 * delays.upload_s[0, 0])) - 1) / snr)
    assert np.mean(power) == pytest.approx(1.0, abs=5 / np.sqrt(2000))
    assert np.var(power) == pytest.approx(1.0, abs=5 * np.sqrt(8 / 2000))  # that of an exponential, not 0


def test_true_distributions_match_independent_rounds():
    """The sampled CDF against fresh rounds of the network itself, within 5 standard errors of both."""
    network = interface(clients=4, channels=3)
    truth = network.distributions(32)
    assert truth.standard_error == pytest.approx(0.005)
    rounds = 4000
    delay = np.stack([network.channel_state(t, np.zeros(1))[0] for t in range(rounds)])
    error = np.hypot(truth.standard_error, 0.5 / np.sqrt(rounds))
    assert np.abs((delay <= DEADLINE_S).mean(0) - truth.success[0]).max() < 5 * error
    capped = np.minimum(delay, DEADLINE_S).mean(0) / DEADLINE_S
    assert np.abs((1 - truth.cdf[0].mean(-1)) - capped).max() < 5 * error
    grid = (np.arange(32) + 0.5) * DEADLINE_S / 32
    at_centre = (delay[..., None] <= grid).mean(0)
    assert np.abs(at_centre - truth.cdf[0]).max() < 5 * error + 0.05  # 0.05: the cell's mean against its centre
    success = network.success_probability(4000)
    assert np.abs(success - truth.success).max() < 5 * np.hypot(truth.standard_error, 0.5 / np.sqrt(4000))


@pytest.mark.parametrize("fading", ["none", "rayleigh"])
def test_a_large_network_gives_assigned_pairs_the_delays_of_the_whole_network(fading):
    scenario = Scenario.load("quickstart").with_values(
        {"network.clients": 2000, "network.channels": 40, "network.fading": fading}
    )
    network, complete = (prepare(scenario, [3, 9]).network for _ in range(2))
    assert network.block_rounds == 1
    rng, clock_s = np.random.default_rng(0), np.zeros(2)
    for t in range(3):
        assignment = np.full((2, 2000), -1)
        for r in range(2):
            assignment[r, rng.permutation(2000)[:40]] = rng.permutation(40)
        state = complete.channel_state(t, clock_s)  # draws every pair
        few, all_pairs = network.delays(t, clock_s, assignment), complete.delays(t, clock_s, assignment)
        for part in ("download_s", "compute_s", "upload_s"):
            np.testing.assert_array_equal(getattr(few, part), getattr(all_pairs, part))
        at = np.nonzero(assignment >= 0)
        np.testing.assert_allclose(few.total_s[at], state[(*at, assignment[at])], rtol=1e-12)
    assert "snr_up" not in vars(network)
    assert "_scales" not in vars(network)
