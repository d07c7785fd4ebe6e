"""Names, node ids and counts; clients that join and leave."""

import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from fedlane.flower.server.roster import Roster, RosterError
from fedlane.flower.server.scheduler import MeasuredDelay, Scheduler
from fedlane.scheduling.baselines import RoundRobin
from fedlane.scheduling.policy import lift
from fedlane.scheduling.registry import make_policy, policies
from fedlane.theory import quotas, theta
from fedlane.validate import InputError
from support import wire_records
from support.loss_policy import LargestLoss
from support.wire_records import introduction


def report(uploads, status="trained", epsilon=1.0, reason=""):
    return wire_records.report(
        "a", uploads=uploads, status=status, epsilon=epsilon, reason=reason, max_uploads=10, round=0, lane=0
    )


def test_nodes_and_names_belong_together():
    roster = Roster(2)
    first = roster.admit(11, introduction("a"), 0)
    assert roster.admit(11, introduction("a", uploads=4), 5).index == first.index  # back again
    assert roster.of_node(11).uploads == 4
    assert roster.of_node(11).joined_round == 0
    with pytest.raises(RosterError, match="'a' belongs to node 11"):
        roster.admit(12, introduction("a"), 1)
    with pytest.raises(RosterError, match="is client 'a' and now introduces itself as 'b'"):
        roster.admit(11, introduction("b"), 1)
    assert roster.admit(12, introduction("b"), 1).index == 1
    with pytest.raises(RosterError, match="capacity 2"):
        roster.admit(13, introduction("c"), 1)
    assert roster.of_node(99) is None


def test_a_name_moves_only_if_names_are_trusted_and_its_node_is_gone():
    roster = Roster(4, trust_names=True)
    roster.put(roster.admit(11, introduction("a"), 0).ordered())
    with pytest.raises(RosterError):
        roster.admit(12, introduction("a"), 1, connected=[11, 12])
    moved = roster.admit(12, introduction("a"), 1, connected=[12])
    assert (moved.index, moved.node_id, moved.sent) == (0, 12, 1)


def test_a_new_node_cannot_claim_more_uploads_than_were_ordered():
    """The count still shows that a restored ledger is older, and only unanswered orders can be new uploads."""
    roster = Roster(4, trust_names=True)
    first = roster.put(roster.admit(11, introduction("a", uploads=3), 0).ordered().heard(report(4)).ordered())
    assert (first.uploads, first.unanswered) == (4, 1)
    moved = roster.admit(12, introduction("a", uploads=9), 1, connected=[12])
    assert moved.uploads == 5
    assert roster.admit(13, introduction("a", uploads=0), 1, connected=[13]).uploads == 5
    assert roster.put(roster.members[0].ordered().heard(report(9, "refused"))).uploads == 7
    restored = Roster(4, trust_names=True)
    restored.restore(json.loads(json.dumps(roster.values())))
    assert restored.members == roster.members
    with pytest.raises(RosterError, match="belongs to node 13"):
        restored.admit(14, introduction("a"), 1, connected=[13, 14])
    back = restored.admit(11, introduction("a", uploads=5), 1, connected=[11, 13])
    assert (back.node_id, back.uploads, back.unanswered, back.barred, back.former) == (11, 5, 1, "", ())
    for node in range(20, 60):
        moved = restored.admit(node, introduction("a"), 1, connected=[node])
    assert len(moved.former) == 16
    trusting = Roster(4)
    trusting.admit(11, introduction("a"), 0)
    assert trusting.put(trusting.members[0].ordered().heard(report(9))).uploads == 9  # its own count


def test_counts_are_never_too_small():
    member = Roster(1).admit(11, introduction("a"), 0)
    assert member.epsilon == 0.0
    member = member.ordered()
    assert (member.sent, member.uploads, member.epsilon) == (1, 0, None)  # no report yet
    member = member.heard(report(1, epsilon=1.0))
    assert (member.uploads, member.epsilon) == (1, 1.0)
    member = member.ordered().ordered()  # two orders lost, or trained without a report
    assert (member.sent, member.uploads, member.epsilon) == (3, 1, None)
    member = member.heard(report(3, epsilon=2.0))
    assert (member.uploads, member.epsilon) == (3, 2.0)
    assert member.heard(report(2, epsilon=1.0)).uploads == 3  # a ledger that goes back is not trusted
    assert Roster(1).admit(1, introduction("x", epsilon=0.0, max_uploads=0), 0).ordered().epsilon is None
    # A report from before the ledger was opened, after a failed switch, says nothing about an order that was lost.
    blind = replace(report(0, "failed", epsilon=0.0), max_uploads=0)
    lost = Roster(1).admit(11, introduction("a"), 0).ordered().ordered().heard(blind)
    assert (lost.unanswered, lost.epsilon) == (1, None)
    assert Roster(1).admit(11, introduction("a"), 0).ordered().heard(blind).epsilon == 0.0
    assert Roster(1).admit(11, introduction("a", uploads=3), 0).epsilon is None
    assert Roster(1).admit(11, introduction("a", uploads=3, epsilon_spent=2.5), 0).epsilon == 2.5


def test_clients_without_budget_stay_barred_and_others_are_asked_again():
    roster = Roster(2)
    roster.admit(1, introduction("a"), 0)
    roster.admit(2, introduction("b"), 0)
    roster.put(roster.members[0].heard(report(10, "refused", reason="budget is spent")))
    roster.put(roster.members[1].heard(report(2, "refused", reason="ledger is missing")))
    restored = Roster(2)
    restored.restore(json.loads(json.dumps(roster.values())))
    assert restored.members == roster.members
    restored.pardon()
    assert [member.barred for member in restored.members] == ["budget is spent", ""]
    assert restored.members[0].spent
    with pytest.raises(InputError, match="damaged"):
        Roster(1).restore(roster.values())
    with pytest.raises(InputError, match="damaged"):
        Roster(2).restore([{"index": 0}])


def test_quotas_are_those_of_simulation():
    roster = Roster(5)
    counts = [(90.0, 10.0), (60.0, 40.0), (20.0, 80.0)]
    for number, (labels, noise) in enumerate(zip(counts, (0.5, 0.4, 0.9), strict=True)):
        roster.admit(number, introduction(f"c{number}", labels, upload_noise=noise), 0)
    shares = np.array(counts) / 100
    expected = quotas(
        theta(shares, [100.0] * 3, 8.0, 1e-5, local_iterations=5, batch_size=32, noise=[0.5, 0.4, 0.9]), 2
    )
    np.testing.assert_allclose(roster.quotas(2)[0], expected)
    assert roster.quotas(2, {"c1": 0.25}).tolist() == [[0.0, 0.25, 0.0]]
    roster.admit(7, introduction("quiet", ()), 1)  # releases no histogram: as divergent as the median
    roster.admit(8, introduction("noisy", (-3.0, -1.0)), 1)
    served = roster.quotas(2)[0]
    assert served[3] == pytest.approx(served[4], rel=1e-12)
    assert served[:3].min() < served[3] < served[:3].max()


CLAIMS = {
    "size 1e12": {"size": 1e12, "label_counts": (1e11,) * 10, "upload_noise": 0.0},
    "size 1e12, one label": {"size": 1e12, "label_counts": (1e12,), "upload_noise": 0.0},
    "size 1e12, no labels": {"size": 1e12, "label_counts": (), "upload_noise": 0.0},
    "size 1e-12": {"size": 1e-12, "upload_noise": 1e-12},
    "average labels, no noise": {"label_counts": (60.0,) * 10, "upload_noise": 0.0},
    "noise 1e12": {"upload_noise": 1e12},
    "negative counts": {"label_counts": (-1e12,) * 10, "upload_noise": 0.0},
    "100,000 labels": {"size": 1e12, "label_counts": (0.0,) * 99_999 + (1e12,), "upload_noise": 0.0},
}


@pytest.mark.parametrize("noise", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("hostile", [1, 2])
@pytest.mark.parametrize("claim", CLAIMS)
def test_claims_of_a_minority_do_not_decide_the_quotas(claim, hostile, noise):
    """A claim gains at most 3 times the quota of the median client, and costs nobody else most of its rounds."""

    def quotas_of(first):
        roster = Roster(64)
        for number in range(5):
            counts = tuple(60.0 + 20 * ((number + k) % 5) for k in range(10)) if number < 4 else ()
            honest = introduction(
                f"c{number}", counts, size=1000.0, upload_noise=noise, batch_size=8, local_iterations=2
            )
            roster.admit(number, replace(honest, **first) if number < hostile else honest, 0)
        return roster.quotas(1)[0]

    honest, attacked = quotas_of({}), quotas_of(CLAIMS[claim])
    assert attacked[:hostile].max() <= 3 * np.median(attacked) * (1 + 1e-9)
    assert np.all(attacked[hostile:] > honest[hostile:] / 4)


def test_half_of_the_clients_cannot_claim_all_rounds_together():
    """They claim the average labels and no noise, so that their divergence would be 0."""
    roster = Roster(4)
    for number, labels in enumerate([(50.0, 50.0), (50.0, 50.0), (90.0, 10.0), (10.0, 90.0)]):
        roster.admit(number, introduction(f"c{number}", labels, upload_noise=0.0), 0)
    served = roster.quotas(1)[0]
    assert served[:2].max() <= 3 * served[2:].min() * (1 + 1e-9)


def test_a_client_without_a_histogram_does_not_take_all_rounds():
    roster = Roster(3)
    for number, labels in enumerate([(90.0, 10.0), (20.0, 80.0), ()]):
        roster.admit(number, introduction(f"c{number}", labels, upload_noise=0.0), 0)
    assert roster.quotas(1)[0].min() > 0.2


def played(policy, lanes=2, rounds=60, clients=3, start=None, until=20):
    scheduler = start or Scheduler(make_policy(policy), lanes=lanes, deadline_s=10.0, rounds=rounds, seed=3)
    scheduler.set_quotas(np.full((1, clients), 0.3))
    while scheduler.round < until:
        orders = decided(scheduler)
        chosen = orders.channel[0]
        scheduler.rounds.start(orders)
        scheduler.settle({int(c): MeasuredDelay(2.0 + c + chosen[c], 0.5) for c in np.flatnonzero(chosen >= 0)})
    return scheduler


def decided(scheduler):
    """The orders of a round in which every client is connected and idle."""
    everybody = np.ones(scheduler.problem.clients, np.bool_)
    return scheduler.decide(everybody, everybody)


BUILT_IN = sorted(name for name, policy in policies().items() if not policy.requires)


@pytest.mark.parametrize("policy", BUILT_IN)
def test_a_restored_scheduler_continues_the_same(policy):
    whole = played(policy, until=40)
    half = played(policy, until=20)
    restored = Scheduler(make_policy(policy), lanes=2, deadline_s=10.0, rounds=60, seed=3)
    restored.restore({name: array.copy() for name, array in half.arrays().items()})
    resumed = played(policy, start=restored, until=40)
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(array, resumed.arrays()[name], err_msg=name)


@pytest.mark.parametrize("policy", BUILT_IN)
def test_new_clients_join_and_nothing_learned_is_lost(policy):
    scheduler = played(policy, until=20)
    rounds = scheduler.rounds
    before = {name: np.array(array) for name, array in rounds.state.items()}
    queue, previous, uploads = rounds.queue.copy(), rounds.previous.copy(), rounds.uploads.copy()
    scheduler.set_quotas(np.array([[0.2, 0.2, 0.2, 0.4, 0.4]]))
    np.testing.assert_array_equal(rounds.queue, [[*queue[0], 0.0, 0.0]])
    np.testing.assert_array_equal(rounds.previous, [[*previous[0], -1, -1]])
    np.testing.assert_array_equal(rounds.uploads, [[*uploads[0], 0, 0]])
    assert uploads.sum() >= 30
    for name in ("count", "reward", "success", "slot", "history"):
        if name in before:
            corner = tuple(slice(size) for size in before[name].shape)
            np.testing.assert_array_equal(rounds.state[name][corner], before[name])
    assert not scheduler.trace.available[0, :20, 3:].any()
    chosen = decided(scheduler).channel[0]
    if policy in ("lane", "ucb-index"):
        assert set(np.flatnonzero(chosen >= 0)) == {3, 4}  # never tried, so they come first
    assert played(policy, clients=5, start=scheduler, until=30).round == 30


def test_mamab_tries_new_clients_first_once_it_no_longer_explores_at_random():
    scheduler = played("mamab-om:T0=0.01", until=20)
    scheduler.set_quotas(np.array([[0.2, 0.2, 0.2, 0.4, 0.4]]))
    assert set(np.flatnonzero(decided(scheduler).given[0])) == {3, 4}


class Given(RoundRobin):
    """Orders what it is told to, and keeps what it is told of it."""

    name = "given"
    told: ClassVar[list] = []
    channel: ClassVar[list] = []

    def select(self, state, context, rng):
        return np.array([self.channel])

    def update(self, state, feedback):
        self.told.append(feedback)
        return super().update(state, feedback)


@pytest.fixture
def given(monkeypatch):
    """Return a function that sets the lanes of all rounds to come, and makes a scheduler of them."""
    Given.told.clear()

    def scheduler(channel, lanes, quota):
        monkeypatch.setattr(Given, "channel", channel)
        result = Scheduler(Given(), lanes=lanes, deadline_s=10.0, rounds=5, seed=0)
        result.set_quotas(np.full((1, len(channel)), quota))
        return result

    return scheduler


def test_the_policy_learns_from_the_measured_delays(given):
    scheduler = given([2, 0, -1, 1], lanes=3, quota=0.5)
    scheduler.rounds.start(decided(scheduler))
    outcome = scheduler.settle({0: MeasuredDelay(4.0, 1.0), 3: MeasuredDelay(2.0, 99.0)})
    np.testing.assert_array_equal(outcome.orders.channel, [[2, 0, -1, 1]])
    delays = outcome.arrivals.delays
    np.testing.assert_allclose(delays.download_s[0, [0, 3]], [1.5, 0.0])
    np.testing.assert_allclose(delays.total_s[0, [0, 3]], [4.0, 2.0])
    assert np.isnan(delays.total_s[0, [1, 2]]).all()  # late by an unknown time, and not assigned
    assert np.isnan(scheduler.trace.total_s[0, 0, 0])
    np.testing.assert_array_equal(outcome.punctual, [[True, False, False, True]])
    assert scheduler.trace.delay_s[0, 0] == 10.0
    np.testing.assert_allclose(scheduler.rounds.queue, [[0.0, 0.5, 0.5, 0.0]])
    np.testing.assert_array_equal(Given.told[0].delay_s, [[4.0, np.inf, np.nan, 2.0]])


def test_absent_and_late_clients_are_what_a_policy_sees_in_a_simulation(given):
    """The queue of a client that is not connected does not grow; every part of a late client's delay is +inf."""
    scheduler = given([0, 1, -1, -1], lanes=2, quota=0.25)
    present = np.array([True, True, True, False])
    available = np.array([True, True, False, False])  # client 2 is connected and busy, client 3 is not connected
    for _ in range(3):
        scheduler.rounds.start(scheduler.decide(present, available))
        scheduler.settle({0: MeasuredDelay(4.0, 1.0)})
    Given.channel[:] = [-1] * 4
    scheduler.rounds.start(scheduler.decide(~present, available))
    scheduler.settle({})
    for feedback in Given.told[:3]:
        for part in (feedback.delays.download_s, feedback.delays.compute_s, feedback.delays.upload_s):
            assert part[0, 1] == np.inf
            assert np.isfinite(part[0, 0])
            assert np.isnan(part[0, 2:]).all()
        np.testing.assert_array_equal(feedback.context.present, [present])
    rounds = scheduler.rounds
    np.testing.assert_allclose(rounds.queue, [[0.0, 0.75, 0.75, 0.25]])
    np.testing.assert_array_equal(rounds.present_rounds, [[3, 3, 3, 1]])
    np.testing.assert_array_equal(scheduler.trace.present[0, :4], [present] * 3 + [~present])
    assert scheduler.trace.delay_s[0].tolist()[:4] == [10.0, 10.0, 10.0, 0.0]
    restored = Scheduler(make_policy("round-robin"), lanes=2, deadline_s=10.0, rounds=5, seed=0)
    restored.restore(scheduler.arrays())
    np.testing.assert_array_equal(restored.rounds.present_rounds, [[3, 3, 3, 1]])
    np.testing.assert_array_equal(restored.trace.played().present, scheduler.trace.played().present)
    restored.set_quotas(np.full((1, 5), 0.25))
    np.testing.assert_array_equal(restored.rounds.present_rounds, [[3, 3, 3, 1, 0]])
    assert not restored.trace.present[0, :4, 4].any()
    again = Scheduler(make_policy("round-robin"), lanes=2, deadline_s=10.0, rounds=5, seed=0)
    for wrong in (-1, 5):
        with pytest.raises(InputError, match="present_rounds"):
            again.restore({**scheduler.arrays(), "present_rounds": np.full((1, 4), wrong)})


def test_a_policy_that_a_federation_cannot_supply_is_refused():
    with pytest.raises(InputError, match="genie requires distributions"):
        Scheduler(make_policy("genie"), lanes=1, deadline_s=1.0, rounds=1, seed=0)
    with pytest.raises(InputError, match="largest-loss requires losses, which real clients do not report by default"):
        Scheduler(lift(LargestLoss()), lanes=1, deadline_s=1.0, rounds=1, seed=0)
    scheduler = played("lane", until=3)
    other = Scheduler(make_policy("mamab-om"), lanes=2, deadline_s=10.0, rounds=60, seed=3)
    with pytest.raises(InputError, match=r"state\.reward is missing"):
        other.restore(scheduler.arrays())
    short = Scheduler(make_policy("lane"), lanes=2, deadline_s=10.0, rounds=2, seed=3)
    with pytest.raises(InputError, match="num_rounds must be at least the 3"):
        short.restore(scheduler.arrays())


@pytest.mark.parametrize("policy", BUILT_IN)
def test_a_checkpoint_that_lacks_an_array_is_refused(policy):
    scheduler = played(policy, until=10)
    arrays = scheduler.arrays()
    for missing in (name for name in arrays if name.startswith("state.") or name in scheduler.rounds.arrays()):
        incomplete = {name: array for name, array in arrays.items() if name != missing}
        with pytest.raises((InputError, KeyError), match=missing):  # of which the server makes one line
            Scheduler(make_policy(policy), lanes=2, deadline_s=10.0, rounds=60, seed=3).restore(incomplete)


@pytest.mark.parametrize("claim", CLAIMS)
def test_half_of_the_clients_gain_no_quota_by_a_claim(claim):
    """One of two and two of four: the middle of an even number is the honest client's divergence, not the claimed."""
    for clients in (2, 4):
        roster = Roster(64)
        for number in range(clients):
            honest = introduction(f"c{number}", tuple(60.0 + 40 * (k == number) for k in range(10)))
            roster.admit(number, replace(honest, **CLAIMS[claim]) if number < clients // 2 else honest, 0)
        quotas = roster.quotas(1)[0]
        assert quotas[: clients // 2].max() <= 3 * quotas[clients // 2 :].max() * (1 + 1e-9)


def test_no_later_report_lowers_the_epsilon_that_a_client_has_reported():
    """Neither one without the ledger's figures, as after a failed switch, nor one with a smaller figure."""
    roster = Roster(1)
    member = roster.admit(0, introduction("a", uploads=1), 0).ordered()
    member = member.heard(wire_records.report("a", round=0, uploads=2, max_uploads=10, epsilon=0.75))
    assert member.epsilon == 0.75
    for uploads, limit, epsilon in ((0, 0, 0.0), (2, 10, 0.25)):
        told = {"uploads": uploads, "max_uploads": limit, "epsilon": epsilon}
        later = member.ordered().heard(wire_records.report("a", round=1, status="failed", reason="no lane", **told))
        assert (later.uploads, later.epsilon) == (2, 0.75)
