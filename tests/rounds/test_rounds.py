"""The one round: what is charged and when, who is on time, how long it takes, and how it continues after a crash."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from fedlane import BatchPolicy
from fedlane.records import Delays, Problem
from fedlane.rounds import Arrivals, Orders, PolicyError, Rounds
from fedlane.validate import InputError

DEADLINE_S = 4.0


@dataclass(frozen=True)
class Fixed(BatchPolicy):
    """Gives client i channel i, if it is available and the channel exists; keeps what it was told."""

    name: ClassVar[str] = "fixed"

    def init(self, problem):
        return {"late": np.zeros(problem.quotas.shape, np.int64)}

    def select(self, state, context, rng):
        channel = np.broadcast_to(np.arange(context.problem.clients), context.available.shape)
        return np.where(context.available & (channel < context.problem.channels), channel, -1)

    def update(self, state, feedback):
        return {"late": state["late"] + np.isinf(feedback.delays.total_s)}


def problem(clients=3, channels=2, quota=0.5, rounds=10):
    return Problem(clients, channels, rounds, DEADLINE_S, np.full((1, clients), quota))


def everybody(rounds):
    return np.ones(rounds.queue.shape, np.bool_)


def arrivals(*total_s, usable=True):
    """Arrivals of one replica by client; None where nothing is known."""
    third_s = np.array([[np.nan if value is None else value / 3 for value in total_s]])
    return Arrivals(Delays(third_s, third_s, third_s), np.full(third_s.shape, usable), np.full(third_s.shape, 2.0))


def settled(rounds, *total_s, usable=True):
    """Run one round with everybody present."""
    rounds.start(rounds.decide(everybody(rounds)))
    return rounds.settle(arrivals(*total_s, usable=usable))


def test_a_round_by_hand():
    """Client 0 is on time after 3 s, client 1 is late, client 2 gets no channel."""
    rounds = Rounds(Fixed(), problem(), [0])
    outcome = settled(rounds, 3.0, 6.0, None)
    assert outcome.orders.channel.tolist() == [[0, 1, -1]]
    assert outcome.punctual.tolist() == [[True, False, False]]
    assert outcome.delay_s.tolist() == [DEADLINE_S]  # the late one is waited for until the deadline
    assert rounds.queue.tolist() == [[0.0, 0.5, 0.5]]
    assert rounds.uploads.tolist() == [[1, 1, 0]]  # a late upload is charged
    assert rounds.context(everybody(rounds)).previous.tolist() == [[0, 1, -1]]  # the next choice knows this one
    assert rounds.state["late"].tolist() == [[0, 1, 0]]  # and its delay is infinite for the policy
    assert (outcome.start_s.tolist(), rounds.clock_s.tolist()) == ([0.0], [DEADLINE_S])
    assert settled(rounds, 1.5, 3.0, None).delay_s == pytest.approx(3.0)  # the slowest client ends the round
    assert rounds.clock_s == pytest.approx(DEADLINE_S + 3.0)


def test_an_update_that_may_not_be_used_counts_as_late():
    rounds = Rounds(Fixed(), problem(), [0])
    assert not settled(rounds, 1.0, 2.0, None, usable=False).punctual.any()
    assert rounds.state["late"].tolist() == [[1, 1, 0]]


def test_the_charge_comes_before_anything_is_sent_and_knows_the_orders():
    told = []
    rounds = Rounds(Fixed(), problem(), [0], charge=lambda round, orders: told.append((round, orders.channel.tolist())))
    orders = rounds.decide(everybody(rounds))
    assert told == []
    assert rounds.uploads.sum() == 0
    rounds.start(orders)
    assert told == [(0, [[0, 1, -1]])]
    assert rounds.uploads.tolist() == [[1, 1, 0]]


def test_a_charge_that_fails_starts_nothing():
    def full(round, orders):
        raise OSError("no space left on device")

    rounds = Rounds(Fixed(), problem(), [0], charge=full)
    with pytest.raises(OSError, match="no space"):
        rounds.start(rounds.decide(everybody(rounds)))
    assert rounds.uploads.sum() == 0
    with pytest.raises(RuntimeError, match="start must be called"):
        rounds.settle(arrivals(1.0, 1.0, None))


def test_a_round_that_was_not_sent_is_late_and_not_charged():
    told = []
    rounds = Rounds(Fixed(), problem(), [0], charge=lambda *order: told.append(order))
    outcome = rounds.void(rounds.decide(everybody(rounds)))
    assert (told, rounds.uploads.sum()) == ([], 0)
    assert outcome.delay_s.tolist() == [DEADLINE_S]
    assert rounds.queue.tolist() == [[0.5, 0.5, 0.5]]
    assert rounds.state["late"].tolist() == [[1, 1, 0]]


def test_a_round_that_a_crash_cut_off_is_late_and_was_charged_before():
    told = []
    rounds = Rounds(Fixed(), problem(), [0], charge=lambda *order: told.append(order))
    outcome = rounds.replay(np.array([[-1, 0, 1]]))
    assert told == []
    assert rounds.uploads.tolist() == [[0, 1, 1]]
    assert rounds.state["late"].tolist() == [[0, 1, 1]]
    assert outcome.available.tolist() == [[False, True, True]]
    assert rounds.round == 1


def test_a_budget_that_is_spent_makes_a_client_unavailable():
    rounds = Rounds(Fixed(), problem(), [0], max_uploads=np.array([1, 2, 2]))
    ordered = [settled(rounds, 1.0, 1.0, 1.0).orders.given[0].tolist() for _ in range(3)]
    assert ordered == [[True, True, False], [False, True, False], [False, False, False]]


def test_time_passes_only_where_absent_clients_are_waited_for():
    """Two replicas without orders: in the first all are present, in the second one is absent."""
    two = Problem(2, 1, 5, DEADLINE_S, np.full((2, 2), 0.5))
    present, ready = np.array([[True, True], [False, True]]), np.zeros((2, 2), np.bool_)
    for wait_s in (0.0, DEADLINE_S):
        rounds = Rounds(Fixed(), two, [0, 1], wait_s=wait_s)
        rounds.start(rounds.decide(present, ready))
        assert rounds.settle(Arrivals.none((2, 2))).delay_s.tolist() == [0.0, wait_s]
    assert rounds.queue.tolist() == [[0.5, 0.5], [0.0, 0.5]]  # an absent client is owed nothing
    assert rounds.present_rounds.tolist() == [[1, 1], [0, 1]]


@pytest.mark.parametrize(
    ("channel", "message"),
    [
        (np.array([[0.0, 1.0, -1.0]]), "must return an integer array"),
        (np.array([0, 1, -1]), "must return shape"),
        (np.array([[0, 2, -1]]), "channels must lie in -1..1"),
        (np.array([[0, 0, -1]]), "channel 0 was given to 2 clients"),
        (np.array([[-1, -1, 0]]), "an unavailable client was assigned"),
        (None, "must return an integer array"),
    ],
)
def test_an_impossible_choice_is_refused(channel, message):
    rounds = Rounds(Fixed(), problem(), [0])
    rounds.context(everybody(rounds), np.array([[True, True, False]]))
    with pytest.raises(PolicyError, match=message):
        rounds.order(channel)


def test_clients_that_join_start_from_nothing_and_the_others_keep_theirs():
    rounds = Rounds(Fixed(), problem(2), [0])
    settled(rounds, 1.0, 9.0)
    rounds.grow(problem(4))
    assert rounds.queue.tolist() == [[0.0, 0.5, 0.0, 0.0]]
    assert rounds.uploads.tolist() == [[1, 1, 0, 0]]
    assert rounds.state["late"].tolist() == [[0, 1, 0, 0]]
    assert settled(rounds, 1.0, 1.0, None, None).round == 1


def test_rounds_continue_from_their_arrays_as_if_nothing_had_happened():
    straight, first = Rounds(Fixed(), problem(), [0]), Rounds(Fixed(), problem(), [0])
    times = [(1.0, 9.0, None), (2.5, 0.3, None), (None, 3.9, None), (0.1, 0.2, None)]
    for total_s in times:
        settled(straight, *total_s)
    for total_s in times[:2]:
        settled(first, *total_s)
    second = Rounds(Fixed(), problem(), [0])
    second.restore(first.arrays())
    for total_s in times[2:]:
        settled(second, *total_s)
    expected, continued = straight.arrays(), second.arrays()
    assert set(expected) == set(continued)
    for name, array in expected.items():
        np.testing.assert_array_equal(continued[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("round", 11), ("round", -1), ("clock_s", np.nan), ("queue", -1.0), ("queue", np.inf), ("uploads", 3)),
        *(("uploads", -1), ("present_rounds", 3), ("spent_j", -1.0)),
        *(("previous", 2), ("previous", -2), ("previous", 0)),
    ],
)
def test_arrays_that_no_run_can_have_written_are_refused(name, value):
    rounds = Rounds(Fixed(), problem(), [0])
    for _ in range(2):
        settled(rounds, 1.0, 1.0, None)
    arrays = rounds.arrays()
    arrays[name] = np.full_like(arrays[name], value)
    with pytest.raises(InputError, match=name):
        Rounds(Fixed(), problem(), [0]).restore(arrays)


def test_an_order_is_a_channel():
    assert Orders(np.array([[2, -1]])).given.tolist() == [[True, False]]
