"""Worlds: links that follow the simulated time, in any order of clocks, and presets in which every policy runs."""

from dataclasses import replace

import numpy as np
import pytest

from fedlane import Scenario, Simulation, policies, presets, simulate
from fedlane.network import CellNetwork, TraceNetwork
from fedlane.simulation.setup import prepare
from fedlane.validate import InputError
from support.parts import DATA, missing
from support.small_runs import UNPROTECTED

BUILT_IN = [name for name, policy in policies().items() if policy.__module__.startswith("fedlane.")]
"""FedLane's policies; other tests register their own."""
WITH_LOSSES = [name for name in BUILT_IN if "losses" in policies()[name].requires]
WITHOUT_LOSSES = [name for name in BUILT_IN if name not in WITH_LOSSES]

WORLDS = ("campus-5g", "cell-1000", "cell-3gpp", "churn", "city-munich", "commute-lte", "drifting", "phones")
BASE = UNPROTECTED.with_values({"rounds": 30})
CELL = {
    "network.model": "3gpp",
    "network.mobility": "waypoint",
    "network.fading": "rayleigh",
    "network.area_m": 400.0,
    "network.bandwidth_up_hz": 5e6,
    "network.bandwidth_down_hz": 5e6,
    "network.payload_bits": "model",
}
CITY = {
    "network.model": "city",
    "network.map": "munich",
    "network.mobility": "streets",
    "network.fading": "rayleigh",
    "network.shadowing_db": 4.0,
    "network.drift_s": 20.0,
    "network.bandwidth_up_hz": 5e6,
    "network.bandwidth_down_hz": 5e6,
    "network.payload_bits": "model",
}
TRACE = {"network.model": "trace", "network.trace": "5gophers", "network.payload_bits": "model"}
CHANGING = {
    "3gpp": CELL,
    "city": CITY,
    "paper-walk": {"network.mobility": "waypoint", "network.shadowing_db": 6.0, "network.shadowing_distance_m": 30.0},
    "drift": {"network.drift_s": 30.0},
    "trace": TRACE,
    "churn": {"availability.model": "markov", "availability.mean_on_s": 30.0, "availability.mean_off_s": 15.0},
}


@pytest.fixture
def commute(tmp_path, monkeypatch):
    """A folder mahimahi in FEDLANE_DATA, with two recordings in Mahimahi's format."""
    monkeypatch.setenv("FEDLANE_DATA", str(tmp_path))
    (tmp_path / "mahimahi").mkdir()
    for name, gap_ms in (("bus.down", 3), ("bus.up", 9), ("tram.down", 5), ("tram.up", 12)):
        stamps = range(0, 60_000, gap_ms)
        (tmp_path / "mahimahi" / name).write_text("\n".join(map(str, stamps)))


@pytest.mark.parametrize("world", CHANGING)
def test_clocks_may_be_asked_for_in_any_order_alone_or_among_others(world):
    scenario = BASE.with_values(CHANGING[world])
    among, alone = prepare(scenario, [2, 7, 9]).network, prepare(scenario, [7]).network
    assignment = np.array([[0, 1, 2, 3, -1, -1, -1, -1, -1, -1]] * 3)
    clocks = np.array([0.0, 12.5, 1e4, 37.0, 2.5e5])
    first = {t: among.delays(t, np.full(3, clocks[t]), assignment).total_s[1] for t in range(5)}
    for t in (3, 0, 4, 2, 1):
        again = alone.delays(t, clocks[t : t + 1], assignment[:1]).total_s[0]
        np.testing.assert_array_equal(again, first[t])


@pytest.mark.slow
@pytest.mark.parametrize("world", CHANGING)
def test_a_run_resumes_to_the_bit(world, tmp_path):
    from fedlane.simulation.results import RunFolder

    scenario = BASE.with_values(CHANGING[world])
    whole = simulate(scenario, "lane", seeds=[1, 4], learning=False)
    half = Simulation(scenario, "lane", [1, 4])
    half.play(until=13)
    RunFolder.create(tmp_path / "o").write(half.result(), checkpoint=half.checkpoint(), interrupted=True)
    resumed = Simulation.resume(tmp_path / "o")
    resumed.play()
    for name, table in resumed.result().tables.items():
        assert table.equals(whole.tables[name]), name


def test_slow_state_follows_the_time_and_not_the_round():
    network = prepare(BASE.with_values({**CELL, "network.fading": "none"}), [0]).network
    assert isinstance(network, CellNetwork)
    assignment = np.arange(10)[None] % 4
    early, late = (network._snr_at(np.array([clock]), assignment, None) for clock in (0.0, 120.0))
    assert not np.allclose(early, late, rtol=0.01)
    # The shadowing's autocorrelation is exp(-r / d), so that even 0.1 mm changes it by some hundredths of a decibel.
    close = network._snr_at(np.array([1e-4]), assignment, None)
    np.testing.assert_allclose(close, early, rtol=0.1)


def test_an_upload_begins_after_the_download_and_the_computation():
    """In a world that drifts every 10 s, an upload that begins after the change sees the new interference."""
    scenario = BASE.with_values({"network.drift_s": 10.0, "compute.seconds": 2.0})
    network = prepare(scenario, [0]).network
    assignment = np.arange(10)[None] % 4
    before = network.delays(0, np.array([0.0]), assignment)
    straddling = network.delays(0, np.array([9.0]), assignment)
    np.testing.assert_array_equal(straddling.download_s, before.download_s)
    crossed = 9.0 + straddling.download_s + 2.0 >= 10.0
    assert crossed.all()
    assert (straddling.upload_s != before.upload_s).all()


def test_without_anything_slow_the_paper_s_network_is_unchanged():
    scenario = Scenario.load("quickstart")
    network = prepare(scenario, [0]).network
    assert type(network).__name__ == "RadioNetwork"
    assignment = np.array([[0, 1, 2, 3, -1, -1, -1, -1, -1, -1]])
    at_once, later = (network.delays(5, np.array([clock]), assignment).total_s for clock in (0.0, 1e6))
    np.testing.assert_array_equal(at_once, later)


def test_a_cell_that_stands_still_has_the_delays_of_the_paper_s_network():
    """A drift that never comes in the run: the same gains, scales and draws."""
    plain = prepare(BASE, [3]).network
    drifting = prepare(BASE.with_values({"network.drift_s": 1e12}), [3]).network
    assignment = np.array([[0, 1, 2, 3, -1, -1, -1, -1, -1, -1]])
    for t in (0, 70):
        expected = plain.delays(t, np.zeros(1), assignment).total_s
        np.testing.assert_allclose(drifting.delays(t, np.zeros(1), assignment).total_s, expected, rtol=1e-9)
    assert not drifting.stationary
    assert Simulation(BASE.with_values({"network.drift_s": 9.0}), "random").feasible_scale is None


@pytest.mark.slow
@pytest.mark.parametrize("world", ["3gpp", "city", "trace", "drift"])
def test_distributions_are_averages_over_time(world):
    scenario = BASE.with_values({**CHANGING[world], "network.deadline_s": 1.0 if world != "drift" else 5.0})
    network = prepare(scenario, [5]).network
    truth = network.distributions(32)
    assert not truth.stationary
    horizon_s = 30 * network.deadline_s if world != "trace" else 1e6
    clocks = np.random.default_rng(0).uniform(0.0, horizon_s, 400)
    delays_s = np.stack([network.channel_state(t, clocks[t : t + 1])[0] for t in range(400)])
    punctual = (delays_s <= network.deadline_s).mean(axis=0)
    # Standard errors of both estimates; 40 pairs, and rounds a coherence time apart are nearly independent.
    error = np.hypot(0.5 / 400**0.5, truth.standard_error)
    assert np.abs(punctual - truth.success[0]).max() < 5 * error
    assert 0.02 < truth.success.mean() < 0.999


def test_measured_rates_are_those_of_the_client_s_recording():
    network = prepare(BASE.with_values(TRACE), [0]).network
    assert isinstance(network, TraceNetwork)
    assignment = np.full((1, 10), 2)
    delays = network.delays(0, np.array([3.0]), assignment)
    bits = 32.0 * 50_890
    np.testing.assert_array_equal(delays.download_s, network.replay.download_s(np.array([3.0]), bits, assignment))
    ready_s = 3.0 + delays.download_s + delays.compute_s
    np.testing.assert_array_equal(delays.upload_s, network.replay.upload_s(ready_s, bits, assignment))


def test_a_failed_upload_is_late_and_null():
    run = simulate(BASE.with_values({**CELL, "rounds": 100}), "random", seeds=3, learning=False)
    rows = run.assignments.to_pylist()
    failed = [row for row in rows if row["upload_s"] is None]
    assert failed
    assert not any(row["punctual"] for row in failed)
    assert all(row["delay_s"] is None for row in failed)
    assert all(row["energy_j"] > 0 for row in failed if row["download_s"] is not None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network.model": "trace"}, 'network.model "trace" needs trace'),
        ({"network.trace": "5gophers"}, 'network.trace needs model = "trace", got "paper"'),
        ({"network.model": "fixed"}, 'network.model "fixed" needs rates_mbps'),
        ({**TRACE, "network.drift_s": 3.0}, 'network.drift_s has no effect with model "trace"'),
        ({**TRACE, "network.fading": "rayleigh"}, 'network.fading has no effect with model "trace"'),
        ({"network.uplink_share": 0.5}, 'network.uplink_share has no effect with model "paper"'),
        ({"network.model": "city"}, 'network.model "city" needs map'),
        ({"network.map": "munich"}, 'network.map needs model = "city", got "paper"'),
        ({"network.mobility": "streets"}, 'network.mobility "streets" needs model "city", got "paper"'),
        ({**CITY, "network.mobility": "waypoint"}, 'network.mobility "waypoint" needs model "paper" or "3gpp"'),
        ({**CITY, "network.area_m": 400.0}, 'network.area_m has no effect with model "city"'),
        ({**CITY, "network.cell": "uma"}, 'network.cell has no effect with model "city"'),
        (
            {**CITY, "network.mobility": "static", "network.speed_m_s": [1.0, 2.0]},
            'speed_m_s has no effect with mobility "static": set mobility = "streets"',
        ),
        ({"network.cell": "uma"}, 'network.cell has no effect with model "paper": it needs "3gpp"'),
        ({"network.speed_m_s": [1.0, 2.0]}, 'network.speed_m_s has no effect with mobility "static"'),
        ({"network.mobility": "waypoint", "network.speed_m_s": [3.0, 2.0]}, "network.speed_m_s must be"),
        ({"network.shadowing_distance_m": 10.0}, "network.shadowing_distance_m has no effect without shadowing_db"),
        ({"network.model": "3gpp", "network.carrier_hz": 1e6}, "network.carrier_hz must be between 5e8 and 1e11"),
        ({"network.model": "3gpp", "network.rates_mbps": [[1.0] * 4] * 10}, 'rates_mbps needs model = "fixed"'),
        ({"network.drift_s": -1.0}, "network.drift_s must be at least 0"),
    ],
)
def test_bad_combinations_are_one_line(changes, message):
    with pytest.raises(InputError, match=message):
        BASE.with_values(changes)


def test_rates_alone_mean_fixed_links():
    rates = [[1.0] * 4] * 10
    fixed = BASE.with_values({"network.rates_mbps": rates})
    assert fixed.network.model == "fixed"
    assert BASE.network.model == "paper"
    again = Scenario.from_values({**fixed.model_dump(), "name": "again"})
    assert again.network == fixed.network


def test_a_trace_that_is_absent_is_one_line(monkeypatch):
    monkeypatch.delenv("FEDLANE_DATA", raising=False)
    with pytest.raises(InputError, match="trace mahimahi does not exist, here or in the folder FEDLANE_DATA"):
        prepare(Scenario.load("commute-lte"), [0])


def test_the_presets_are_there():
    assert set(WORLDS) <= set(presets())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:genie knows the delay distributions as averages")
@pytest.mark.parametrize("name", WORLDS)
def test_every_policy_runs_in_every_preset(name, commute):
    scenario = Scenario.load(name)
    changes = {"rounds": 4, "privacy.mechanism": "none"}
    if name == "cell-1000":  # the same cell with a twentieth of the clients and channels
        changes |= {"network.clients": 50, "network.channels": 5}
    for policy in WITHOUT_LOSSES:
        run = simulate(scenario.with_values(changes), policy, seeds=[0, 1], learning=False)
        assert run.summary["rounds"] == 4, policy
        assert run.summary["energy_j"]["mean"] > 0, policy


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_every_policy_with_losses_runs_in_every_preset(name, commute):
    """With learning, since clients report losses when they train."""
    changes = {"rounds": 3, "privacy.mechanism": "none", "network.clients": 9, "network.channels": 4}
    scenario = Scenario.load(name).with_values(changes)
    assert len(WITH_LOSSES) >= 3
    for policy in WITH_LOSSES:
        assert simulate(scenario, policy, seeds=[0, 1]).summary["final_accuracy"]["mean"] > 0, policy


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_some_of_random_s_uploads_are_late(name, monkeypatch):
    scenario = Scenario.load(name).with_values({"privacy.mechanism": "none"})
    if name == "commute-lte":
        monkeypatch.setenv("FEDLANE_DATA", str(DATA))
        try:
            prepare(scenario, [0])
        except InputError:
            missing("Mahimahi's recordings are not here (FEDLANE_DATA)")
    seeds = range(2 if name == "cell-1000" else 8)
    late = simulate(scenario, "random", seeds=seeds, learning=False).summary["late_share"]["mean"]
    assert 0.1 <= late <= 0.3


def test_bits_per_weight():
    half = BASE.with_values({"network.payload_bits": "model", "network.bits_per_weight": 16.0})
    assert prepare(half, [0]).network.radio.payload_bits == 16.0 * 50_890


def test_positions_are_those_at_the_beginning():
    setup = prepare(BASE.with_values(CELL), [0])
    np.testing.assert_array_equal(setup.topology.client_xy_m, setup.network.mobility.position_m(np.zeros(1)))
    assert setup.topology.client_xy_m.max() <= 400.0


def test_a_run_says_that_uplinks_were_not_measured():
    plain = {"privacy.mechanism": "none"}
    campus, cell = (Scenario.load(name).with_values(plain) for name in ("campus-5g", "cell-3gpp"))
    run = simulate(campus, "random", rounds=2, seeds=[0], learning=False)
    assert "have no uplink: their downlinks serve as uplinks, at another time, times 0.1" in run.summary["remark"]
    run = simulate(cell, "random", rounds=2, seeds=[0], learning=False)
    assert "remark" not in run.summary


@pytest.mark.parametrize("world", ["3gpp", "city"])
def test_the_true_distributions_count_failed_uploads_as_late(world):
    """P(punctual) = (1 - p) P(punctual if no upload failed), at the same instants and with the same fading."""
    network = prepare(BASE.with_values({**CHANGING[world], "network.clients": 3, "network.channels": 4}), [5]).network
    assert network.cell.upload_failure > 0
    parts = network.seeds, network.topology, network.radio, network.compute, network.deadline_s
    failing, perfect = (CellNetwork(*parts, replace(network.cell, upload_failure=p)) for p in (0.3, 0.0))
    success, without = (cell.distributions(8).success[0] for cell in (failing, perfect))
    assert without.max() > 0.5
    error = (0.3 * 0.7 * without / failing.max_samples) ** 0.5
    assert np.all(np.abs(success - 0.7 * without) <= 5 * error)
