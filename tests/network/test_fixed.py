"""Links of given rates against payload over rate, and their keys in a scenario."""

import numpy as np
import pytest
from typer.testing import CliRunner

from fedlane import simulate
from fedlane.cli import app
from fedlane.network import Compute, FixedLinks
from fedlane.scenario import Scenario
from fedlane.simulation.setup import prepare
from fedlane.validate import InputError

RATES = np.array([[[1e6, 4e6], [2e6, 8e6]], [[1e6, 1e6], [1e6, 1e6]]])
"""(2, 2, 2): two alternating rounds, two clients, two channels."""


def fixed(seeds=(0,), floor=(2.0, 2.0), deadline_s=20.0):
    return FixedLinks(seeds, RATES, 8e6, floor, Compute.fixed(np.full((len(seeds), 2), 0.5)), deadline_s)


def test_a_delay_is_twice_payload_over_rate_and_the_floor():
    even = fixed().delays(0, np.zeros(1), np.array([[1, 0]]))
    odd = fixed().delays(3, np.zeros(1), np.array([[-1, 0]]))
    np.testing.assert_allclose(even.total_s, [[2 * 2.0 + 2.0 + 0.5, 2 * 4.0 + 2.0 + 0.5]])
    np.testing.assert_allclose(even.download_s, even.upload_s)
    np.testing.assert_allclose(odd.total_s, [[np.nan, 2 * 8.0 + 2.0 + 0.5]])
    np.testing.assert_allclose(fixed().channel_state(0, np.zeros(1))[0], [[18.5, 6.5], [10.5, 4.5]])


def test_the_floor_is_uniform_and_depends_on_the_replica_s_seed():
    links = fixed(seeds=(5, 6), floor=(1.0, 4.0))
    floors = np.stack([links.channel_state(t, np.zeros(1))[..., 0] for t in range(0, 2000, 2)]) - 0.5 - [16.0, 8.0]
    assert floors.min() >= 1.0 - 1e-9
    assert floors.max() <= 4.0 + 1e-9
    # 4000 draws: the mean's standard error is 3 / sqrt(12) / sqrt(4000)
    assert floors.mean() == pytest.approx(2.5, abs=4 * 3 / 12**0.5 / 4000**0.5)
    alone = fixed(seeds=(6,), floor=(1.0, 4.0)).channel_state(9, np.zeros(1))
    np.testing.assert_array_equal(links.channel_state(9, np.zeros(2))[1], alone[0])


def test_the_true_distribution_is_that_of_the_rounds():
    """Client 0 on channel 1: 6.5 s in even rounds and 18.5 s in odd ones; half of them meet a deadline of 10 s."""
    links = fixed(deadline_s=10.0)
    np.testing.assert_allclose(links.success_probability(1000)[0], [[0.0, 0.5], [0.0, 0.5]])
    np.testing.assert_allclose(links.distributions(16).success[0], [[0.0, 0.5], [0.0, 0.5]])


NETWORK = {"clients": 2, "channels": 2, "payload_bits": 8e6, "deadline_s": 30.0, "rates_mbps": [[1.0, 4.0], [2.0, 8.0]]}


def test_a_scenario_with_rates_is_simulated_on_them():
    values = {"rounds": 6, "network": {**NETWORK, "floor_s": 1.0}, "compute": {"seconds": [0.25, 0.75]}}
    values |= {"data": {"dataset": "fashion-mnist-mini"}, "privacy": {"mechanism": "none"}}
    scenario = Scenario.from_values(values)
    again = Scenario._from_toml(scenario.to_toml(), "again")
    assert again.network == scenario.network
    assert again.compute == scenario.compute
    assert isinstance(prepare(scenario, [0]).network, FixedLinks)
    table = simulate(scenario, policy="lane", learning=False).assignments.to_pydict()
    rates = np.array(NETWORK["rates_mbps"])[table["client"], table["channel"]]
    np.testing.assert_allclose(table["delay_s"], 16.0 / rates + 1.0 + np.array([0.25, 0.75])[table["client"]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rates_mbps": [[1.0, 4.0]]}, r"rates_mbps must be clients x channels \(2 x 2\)"),
        ({"rates_mbps": [[1.0], [2.0, 3.0]]}, "rates_mbps must be clients x channels"),
        ({"rates_mbps": [[1.0, 0.0], [1.0, 1.0]]}, "rates_mbps must be greater than 0"),
        ({"floor_s": -1.0}, "floor_s must be at least 0"),
        ({"floor_s": [3.0, 2.0]}, "floor_s must be .low, high."),
        ({"rates_mbps": None, "floor_s": 1.0}, "floor_s needs rates_mbps"),
    ],
)
def test_invalid_rates_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        Scenario.from_values({"network": {**NETWORK, **changes}})


TURNS = {
    "rounds": 30,
    "network": {**NETWORK, "rates_mbps": [NETWORK["rates_mbps"], [[8.0, 2.0], [4.0, 1.0]]]},
    "compute": {"seconds": 0.5},
    "data": {"dataset": "fashion-mnist-mini"},
    "privacy": {"mechanism": "none"},
}
"""A scenario whose links change from round to round."""


def test_rates_in_turn_are_not_stationary():
    turns = Scenario.from_values(TURNS)
    same = turns.with_values({"network.rates_mbps": [NETWORK["rates_mbps"]] * 2})
    radio = Scenario.load("quickstart")
    assert [prepare(scenario, [0]).network.stationary for scenario in (turns, same, radio)] == [False, True, True]
    assert not prepare(turns, [0]).network.distributions(4).stationary


def test_feasibility_is_unknown_where_the_network_changes_with_time():
    """Averages would call quotas infeasible that a policy which follows the changes can serve."""
    setup = prepare(Scenario.from_values(TURNS), [0])
    assert setup.feasible_scale(setup.problem.quotas) is None
    summary = simulate(Scenario.from_values(TURNS), "lane", rounds=3, learning=False).summary
    assert summary["feasible_scale"] == {"mean": None, "low": None, "high": None}
    assert summary["infeasible_seeds"] == {}


def test_genie_warns_where_the_network_changes_with_time(tmp_path):
    scenario = Scenario.from_values(TURNS)
    with pytest.warns(UserWarning, match="averages over time") as raised:
        run = simulate(scenario, "genie", learning=False)
    assert len(raised) == 1
    assert run.summary["caution"] == str(raised[0].message)
    for policy, settings in (("lane", scenario), ("genie", Scenario.load("quickstart"))):
        assert "caution" not in simulate(settings, policy, rounds=2, learning=False).summary


def test_the_commands_print_genies_warning_in_one_line(tmp_path):
    (tmp_path / "turns.toml").write_text(Scenario.from_values(TURNS).to_toml())
    arguments = ("run", tmp_path / "turns.toml", "--policy", "genie", "--no-learning", "--out", tmp_path / "run")
    started = CliRunner().invoke(app, [str(argument) for argument in arguments])
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")])
    for result in (started, shown):
        assert result.exit_code == 0, result.output
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("Warning: genie")]
        assert "averages over time" in line
        assert "not what a round will bring" in line
