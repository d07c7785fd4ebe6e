"""Clients that come and go, and the energy of their attempts."""

import numpy as np
import pytest

from fedlane import Simulation, simulate
from fedlane.network.availability import Availability
from fedlane.network.energy import watts
from fedlane.scheduling.policy import updated_queues
from fedlane.validate import InputError
from support.small_runs import UNPROTECTED

BASE = UNPROTECTED.with_values({"rounds": 60})
CHURN = BASE.with_values(
    {"availability.model": "markov", "availability.mean_on_s": 40.0, "availability.mean_off_s": 20.0}
)


class Script(Availability):
    """Client 0 leaves at 3 s and returns at 100 s; client 1 is never there; all others always are."""

    def __init__(self, clients):
        self.clients = clients

    def present(self, clock_s):
        clock_s = np.broadcast_to(clock_s.reshape(len(clock_s), -1), (len(clock_s), self.clients))
        present = np.ones(clock_s.shape, bool)
        present[:, 0] = (clock_s[:, 0] < 3.0) | (clock_s[:, 0] >= 100.0)
        present[:, 1] = False
        return present

    def leaves(self, start_s, end_s):
        left = np.zeros(end_s.shape, bool)
        left[:, 0] = (start_s < 3.0) & (end_s[:, 0] >= 3.0)
        return left


def scripted(scenario, policy="round-robin", seeds=(0, 1), world=Script):
    simulation = Simulation(scenario, policy, seeds)
    simulation.world._availability = world(scenario.network.clients)
    return simulation


def test_queues_grow_only_while_a_client_is_there():
    queue, quota = np.array([[1.0, 1.0, 0.25]]), np.array([[0.5, 0.5, 0.5]])
    punctual, present = np.array([[False, False, True]]), np.array([[True, False, True]])
    np.testing.assert_array_equal(updated_queues(queue, quota, punctual, present), [[1.5, 1.0, 0.0]])
    np.testing.assert_array_equal(updated_queues(queue, quota, punctual), [[1.5, 1.5, 0.0]])


@pytest.mark.parametrize("policy", ["lane", "cs-ucb-q", "random"])
def test_the_queues_that_a_policy_sees_are_those_of_the_trace(policy):
    """By their definition, from who was present and who was punctual in each round."""
    simulation = Simulation(CHURN, policy, [3])
    queue = np.zeros_like(simulation.quota)
    for t in range(CHURN.rounds):
        np.testing.assert_array_equal(simulation.rounds.queue, queue)
        outcome = simulation.step()
        np.testing.assert_array_equal(simulation.rounds.seen.queue, queue)
        queue = np.maximum(queue + simulation.quota * outcome.present - outcome.punctual, 0.0)
        np.testing.assert_array_equal(simulation.trace.queue[:, t], queue.astype(np.float32))
        np.testing.assert_array_equal(simulation.trace.present[:, t], outcome.present)
    assert not simulation.trace.present.all()


def test_an_absent_client_is_never_assigned_and_owed_nothing():
    simulation = scripted(BASE)
    simulation.play()
    clients = simulation.result().clients.to_pylist()
    absent = [row for row in clients if row["client"] == 1]
    assert [(row["uploads"], row["queue"], row["present_share"], row["shortfall"]) for row in absent] == [
        (0, 0, 0, 0)
    ] * 2
    for row in clients:
        if row["client"] > 1:
            assert row["present_share"] == 1.0
            assert row["shortfall"] == pytest.approx(max(row["quota"] - row["participation"], 0.0), abs=1e-12)
    assert not simulation.trace.available[:, :, 1].any()


def test_a_client_that_leaves_during_the_round_is_late_charged_and_has_no_delay():
    scenario = BASE.with_values(
        {"privacy.mechanism": "paper", "privacy.max_uploads": 3, "network.deadline_s": 4.0, "rounds": 3}
    )
    simulation = scripted(scenario)
    simulation.play(until=1)
    rows = [row for row in simulation.result().assignments.to_pylist() if row["client"] == 0]
    assert len(rows) == 2
    for row in rows:
        if row["punctual"]:
            assert row["delay_s"] < 3.0
        else:
            assert [row[part] for part in ("download_s", "compute_s", "upload_s", "delay_s")] == [None] * 4
            assert row["energy_j"] > 0
    assert not all(row["punctual"] for row in rows)
    assert (simulation.uploads[:, 0] == 1).all()
    left = [not row["punctual"] for row in rows]
    np.testing.assert_array_equal(simulation.trace.delay_s[left, 0], 4.0)  # the server waits until the deadline


class Nobody(Script):
    """Nobody is there before 12 s, and everybody is afterwards."""

    def present(self, clock_s):
        return np.broadcast_to(clock_s.reshape(len(clock_s), -1) >= 12.0, (len(clock_s), self.clients))


def test_time_passes_while_all_clients_are_absent():
    """A round then takes as long as the deadline; the network has no other clock that would bring them back."""
    simulation = scripted(BASE.with_values({"network.deadline_s": 5.0, "rounds": 5}), world=Nobody)
    simulation.play()
    np.testing.assert_array_equal(simulation.trace.delay_s[:, :3], 5.0)
    assert (simulation.trace.client[:, :3] == -1).all()
    assert (simulation.trace.client[:, 3:] >= 0).any(axis=2).all()


@pytest.mark.slow
def test_presence_has_the_long_run_share():
    run = simulate(CHURN.with_values({"rounds": 200}), "random", seeds=20, learning=False)
    share = run.summary["present_share"]
    assert share["low"] - 0.02 < 2 / 3 < share["high"] + 0.02
    present = np.asarray(run.clients["present_share"])
    assert present.std() > 0.0


@pytest.mark.slow
def test_a_replica_does_not_depend_on_its_neighbours_and_a_run_resumes_to_the_bit(tmp_path):
    among = simulate(CHURN, "lane", seeds=[2, 7, 9], learning=False)
    alone = simulate(CHURN, "lane", seeds=[7], learning=False)
    for table in ("rounds", "assignments", "clients", "client_rounds"):
        rows = among.tables[table].filter(np.asarray(among.tables[table]["replica"]) == 1)
        assert rows.drop_columns(["replica"]).equals(alone.tables[table].drop_columns(["replica"])), table


def test_worlds_in_which_clients_are_absent_have_no_feasible_scale():
    assert Simulation(BASE, "random").feasible_scale is not None
    for scenario in (CHURN, BASE.with_values({"energy.battery_j": 5.0})):
        assert Simulation(scenario, "random").feasible_scale is None


def test_an_empty_battery_makes_a_client_absent():
    scenario = BASE.with_values({"energy.battery_j": 0.6})
    simulation = Simulation(scenario, "random", [0])
    simulation.play()
    clients = simulation.result().clients
    energy = np.asarray(clients["energy_j"])
    empty = energy >= 0.6
    assert empty.any()
    largest = max(row["energy_j"] for row in simulation.result().assignments.to_pylist())
    assert energy.max() < 0.6 + largest  # nobody begins a round with an empty battery
    assert (np.asarray(clients["present_share"])[empty] < 1.0).all()


def test_joules_by_hand():
    scenario = BASE.with_values(
        {
            "energy.kappa": 1e-12,
            "energy.efficiency": 0.5,
            "energy.idle_w": 0.1,
            "network.deadline_s": 2.0,
            "rounds": 5,
        }
    )
    simulation = Simulation(scenario, "random", [0])
    simulation.play()
    cycles = simulation.setup.network.compute.cycles[0]
    seen = {"late": 0, "punctual": 0}
    for row in simulation.result().assignments.to_pylist():
        download, compute, upload = (row[part] for part in ("download_s", "compute_s", "upload_s"))
        frequency, download = cycles[row["client"]] / compute, min(download, 2.0)
        computed = min(compute, 2.0 - download)
        sent = min(upload, 2.0 - download - computed)
        expected = 1e-12 * cycles[row["client"]] * frequency**2 * computed / compute
        expected += 0.1 * download + watts(23.0) / 0.5 * sent
        assert row["energy_j"] == pytest.approx(expected, rel=1e-9)
        seen["punctual" if row["punctual"] else "late"] += 1
    assert min(seen.values()) > 0
    total = simulation.result().summary["energy_j"]["mean"]
    assert total == pytest.approx(sum(row["energy_j"] for row in simulation.result().assignments.to_pylist()))


def test_phones_compute_at_their_own_pace_and_power():
    scenario = BASE.with_values({"compute.model": "devices", "energy.device_w": 2.0, "rounds": 10})
    run = simulate(scenario, "round-robin", seeds=[0], learning=False)
    rows = [row for row in run.assignments.to_pylist() if row["punctual"]]
    for row in rows:
        sent = watts(23.0) / 0.35 * row["upload_s"]
        assert row["energy_j"] == pytest.approx(2.0 * row["compute_s"] + sent)
    assert len({round(row["compute_s"], 6) for row in rows}) > 10


def test_bad_combinations_are_refused_in_one_line():
    for changes, message in (
        ({"compute.model": "devices", "compute.seconds": 1.0}, "compute.seconds has no effect"),
        ({"compute.model": "devices", "learning.batch_size": [8] * 10}, "learning.batch_size must be one value"),
        ({"availability.model": "trace"}, 'availability.model "trace" needs trace'),
        ({"availability.trace": "x.csv"}, 'availability.trace needs model = "trace"'),
        ({"energy.battery_j": 0.0}, "energy.battery_j must be greater than 0"),
    ):
        with pytest.raises(InputError, match=message):
            BASE.with_values(changes)


def test_a_late_client_that_stays_until_the_deadline_has_a_delay_although_it_would_have_left_before_its_end():
    """Client 0 leaves at 3 s, after the deadline of 2.9 s; an upload that would take longer is late, and is known."""
    simulation = scripted(BASE.with_values({"network.deadline_s": 2.9}), seeds=range(6))
    simulation.play(until=1)
    delays_s = [row["delay_s"] for row in simulation.result().assignments.to_pylist() if row["client"] == 0]
    assert len(delays_s) == 6
    assert None not in delays_s
    assert max(delays_s) > 3.0
