"""`lane` with what a real base station sees: late uploads are cut off, clients come and go, parts have errors."""

import numpy as np
import pytest

from fedlane.delay_predictions import NAMES
from fedlane.flower.server.scheduler import MeasuredDelay, Scheduler
from fedlane.scheduling import make_policy

DEADLINE_S, LANES, CLIENTS, ROUNDS = 4.0, 3, 6, 160


class Cell:
    """A radio cell: the network time of each pair has its own pace; compute time belongs to the client."""

    def __init__(self, clients=CLIENTS, seed=0):
        self.rng = np.random.default_rng(seed)
        self.pace = self.rng.lognormal(-0.3, 0.8, (clients, LANES))
        self.compute = self.rng.uniform(0.1, 0.6, clients)

    def measured(self, client, lane, error=0.0):
        """One upload; None if it is cut off at the deadline. The client's own clock is wrong by some share."""
        compute = self.compute[client] * self.rng.uniform(0.8, 1.2)
        total = compute + self.pace[client, lane] * self.rng.lognormal(0.0, 0.3)
        told = max(compute * (1.0 + error * self.rng.normal()), 0.0)
        return None if total > DEADLINE_S else MeasuredDelay(total, told)

    def round(self, lanes, error=0.0, lost=None):
        """What a server measures in a round, by client; the update of client ``lost`` does not arrive."""
        ordered = [client for client in np.flatnonzero(lanes >= 0).tolist() if client != lost]
        measured = {client: self.measured(client, lanes[client], error) for client in ordered}
        return {client: delay for client, delay in measured.items() if delay is not None}


def scheduler(policy="lane", clients=CLIENTS, quota=0.4):
    result = Scheduler(make_policy(policy), lanes=LANES, deadline_s=DEADLINE_S, rounds=ROUNDS, seed=3)
    result.set_quotas(np.full((1, clients), quota))
    return result


def play(server, cell, until, present=None, error=0.0):
    """Play rounds with the clients that are present, and return the assignments."""
    chosen = []
    while server.round < until:
        there = np.ones(server.problem.clients, np.bool_) if present is None else present
        orders = server.decide(there, there)
        lanes = orders.channel[0]
        assert (lanes[~there] == -1).all()
        server.rounds.start(orders)
        server.settle(cell.round(lanes, error))
        chosen.append(lanes)
    return np.array(chosen)


def mean_round_s(server, first):
    return server.trace.delay_s[0, first : server.round].mean()


def test_pairs_whose_uploads_are_cut_off_are_given_up():
    cell = Cell()
    cell.pace[:, 2] = 0.5
    cell.pace[:3, 0] = 50.0  # never in time, so that the server learns nothing but that
    server = scheduler()
    chosen = play(server, cell, ROUNDS)
    on_lane = chosen[ROUNDS // 2 :, :3] == 0
    assert on_lane.mean() < 0.05
    assert server.trace.punctual[0, ROUNDS // 2 :].mean() > 0.95
    assert np.all(server.trace.counts()[1][0] > 0.25 * ROUNDS)


def test_clients_join_and_leave_in_mid_run():
    cell = Cell(clients=8)
    server = scheduler(quota=0.35)
    play(server, cell, 60)
    server.set_quotas(np.full((1, 8), 0.3))
    joined = play(server, cell, 100)
    assert (joined[:12, 6:] >= 0).any(axis=0).all()  # newcomers are looked at soon
    assert ((joined[:, 6:] >= 0).mean(axis=0) > 0.15).all()
    present = np.ones(8, np.bool_)
    present[[0, 7]] = False
    before = server.rounds.queue[0, [0, 7]].copy()
    play(server, cell, 130, present)
    np.testing.assert_array_equal(server.rounds.queue[0, [0, 7]], before)  # nobody falls behind while absent
    back = play(server, cell, ROUNDS)
    assert (back[:, [0, 7]] >= 0).any(axis=0).all()
    assert server.trace.rounds == ROUNDS


def test_an_absent_client_that_never_answers_does_not_spoil_what_is_known():
    """An upload that is lost says little about a pair that was never expected to be late."""
    cell, server = Cell(), scheduler()
    play(server, cell, 80)
    everybody = np.ones(CLIENTS, np.bool_)
    orders = server.decide(everybody, everybody)
    lanes = orders.channel[0]
    client = int(np.flatnonzero(lanes >= 0)[0])
    before = server.rounds.state["mean"][0, client, lanes[client]]
    server.rounds.start(orders)
    server.settle(cell.round(lanes, lost=client))
    assert server.rounds.state["mean"][0, client, lanes[client]] < before + 0.3


@pytest.mark.slow
@pytest.mark.parametrize("error", [0.5, 3.0])
def test_parts_that_are_measured_with_error_cost_little(error):
    """Over four cells; the ratio of a single cell has a standard error of about 0.12."""
    means = np.zeros(3)
    for seed in range(4):
        exact, wrong, random = scheduler(), scheduler(), scheduler("random")
        play(exact, Cell(seed=seed), ROUNDS)
        play(wrong, Cell(seed=seed), ROUNDS, error=error)
        play(random, Cell(seed=seed), ROUNDS)
        means += [mean_round_s(server, 40) for server in (exact, wrong, random)]
    assert means[1] < 1.25 * means[0]
    assert means[1] < 0.7 * means[2]


def test_a_federation_records_what_lane_predicted():
    cell, server = Cell(), scheduler()
    play(server, cell, 60)
    trace = server.trace.played()
    assigned = trace.client >= 0
    for name in NAMES:
        assert np.isfinite(getattr(trace, name)[assigned]).all()
        assert np.isnan(getattr(trace, name)[~assigned]).all()
    assert 0.75 < trace.covered.sum() / assigned.sum() <= 1.0
    restored = scheduler()
    restored.restore({name: array.copy() for name, array in server.arrays().items()})
    np.testing.assert_array_equal(restored.trace.played().predicted_low_s, trace.predicted_low_s)
    np.testing.assert_array_equal(restored.trace.played().covered, trace.covered)
