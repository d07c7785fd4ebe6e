"""Clients join: rounds that have grown equal those of a run which had the clients from the start."""

from dataclasses import replace

import numpy as np
import pytest

from fedlane import check_policy
from fedlane.records import ClientLosses, DelayDistributions, Problem
from fedlane.rounds import Arrivals, PolicyError, check
from fedlane.scheduling import BatchPolicy, Policy, lift, make_policy, policies
from fedlane.validate import InputError
from support.policy_rounds import delays_of, of_pairs, rounds_of, run

BEFORE, AFTER, CHANNELS, JOINED = 4, 6, 2, 12
DEADLINE_S = 4.0
SEEDS = (3, 8)


def problem(clients, quota=0.3):
    shape = (len(SEEDS), clients)
    return Problem(clients, CHANNELS, 40, DEADLINE_S, np.full(shape, quota), np.full(shape, 100.0))


def losses(clients):
    """What the first clients have reported; those who join have not."""
    mean = np.where(np.arange(clients) < BEFORE, 1.0 + np.arange(clients), np.nan)
    reported = np.tile(mean, (len(SEEDS), 1))
    return ClientLosses(reported, reported, protected=False)


def delays_s(round):
    """(R, AFTER, CHANNELS): what every pair would take in a round."""
    return np.random.default_rng(round).exponential(2.0, (len(SEEDS), AFTER, CHANNELS))


def attempt(round, channel):
    """The delays of a round, those of the first clients of `delays_s`."""
    return delays_of(channel, of_pairs(delays_s(round)[:, : channel.shape[1]], channel))


def matching(round):
    """(R, AFTER): two of the first `BEFORE` clients on the two channels."""
    assignment = np.full((len(SEEDS), AFTER), -1)
    for r in range(len(SEEDS)):
        clients = np.random.default_rng([round, r]).permutation(BEFORE)[:CHANNELS]
        assignment[r, clients] = np.arange(CHANNELS)
    return assignment


def learned(policy, played):
    """`JOINED` rounds in which only the first `BEFORE` clients were assigned."""
    rounds = rounds_of(policy, played, SEEDS)
    everybody = np.ones(played.quotas.shape, np.bool_)
    for round in range(JOINED):
        rounds.context(everybody, losses=losses(played.clients))
        orders = rounds.order(matching(round)[:, : played.clients])
        rounds.start(orders)
        rounds.settle(Arrivals(attempt(round, orders.channel), everybody, np.zeros(everybody.shape)))
    return rounds


def continued(rounds):
    """Assignments of the rounds from `JOINED` on, all clients available."""
    scale = np.linspace(0.5, 2.0, AFTER * CHANNELS).reshape(1, AFTER, CHANNELS).repeat(len(SEEDS), axis=0)
    cells = (np.arange(32) + 0.5) / 32
    truth = DelayDistributions(1 - np.exp(-cells / scale[..., None]), 1 - np.exp(-1 / scale), 0.0)
    return run(
        rounds,
        40 - JOINED,
        attempt,
        losses=lambda round: losses(rounds.problem.clients),
        channel_state=delays_s,
        distributions=lambda round: truth,
    )


@pytest.mark.parametrize("name", sorted(set(policies()) - {"round-robin"}))
def test_resized_is_as_if_the_clients_had_been_there_from_the_start(name):
    """Those who join later had no quota until then and were never assigned.

    Round-robin's turn counts groups, of which more clients have more: the two runs are different by definition.
    """
    policy = make_policy(name)
    old, new = problem(BEFORE), problem(AFTER)
    absent = new.quotas.copy()
    absent[:, BEFORE:] = 0.0
    from_the_start, grown = learned(policy, replace(new, quotas=absent)), learned(policy, old)
    for rounds in (from_the_start, grown):
        rounds.grow(new)
    expected, found = from_the_start.arrays(), grown.arrays()
    assert set(found) == set(expected)
    # the number of spare rows of a history is not part of what it means; everybody was present, but some not yet there
    for key in set(found) - {"state.history", "present_rounds"}:
        np.testing.assert_array_equal(found[key], expected[key], err_msg=key)
    chosen = continued(from_the_start)
    np.testing.assert_array_equal(continued(grown), chosen)
    assert (chosen[:, :, BEFORE:] >= 0).any()


def test_the_number_of_channels_cannot_change():
    old = problem(BEFORE)
    with pytest.raises(InputError, match="number of channels cannot change, got 2 and 3"):
        make_policy("lane").resize(make_policy("lane").init(old), old, replace(old, channels=3))


class Undeclared(Policy):
    """Counts rounds per client and per pair, keeps its quotas in the state, and declares nothing."""

    name = "undeclared"

    def init(self, problem):
        pairs = np.full((problem.channels, problem.clients), -1.0)
        return {"waited": np.zeros(problem.clients), "pairs": pairs, "quota": problem.quotas.copy()}

    def select(self, state, context, rng):
        chosen = np.full(len(context.available), -1)
        chosen[np.flatnonzero(context.available)[:1]] = 0
        return chosen

    def update(self, state, feedback):
        pairs = state["pairs"].copy()
        client = np.flatnonzero(feedback.channel >= 0)
        pairs[feedback.channel[client], client] += 1
        return {**state, "waited": state["waited"] + 1, "pairs": pairs}


def test_the_shapes_of_init_decide_which_arrays_grow():
    check_policy(Undeclared())
    new, rounds = problem(AFTER, quota=0.2), learned(lift(Undeclared()), problem(BEFORE))
    state = rounds.state
    rounds.grow(new)
    resized = rounds.state
    np.testing.assert_array_equal(resized["waited"][0], [JOINED] * BEFORE + [0] * (AFTER - BEFORE))
    np.testing.assert_array_equal(resized["pairs"][..., :BEFORE], state["pairs"])
    assert np.all(resized["pairs"][..., BEFORE:] == -1)
    np.testing.assert_array_equal(resized["quota"], new.quotas)


class Waits(BatchPolicy):
    """Rounds since each client was served."""

    name = "waits"

    def init(self, problem):
        return {"waited": np.zeros(problem.quotas.shape), "round": np.zeros(problem.replicas)}

    def select(self, state, context, rng):
        return np.full(context.available.shape, -1)

    def update(self, state, feedback):
        return {"waited": state["waited"] + 1, "round": state["round"] + 1}


def test_the_checker_accepts_the_resize_that_every_policy_has():
    check_policy(Waits())


def forgets(self, state, old, new):
    return state if old is new else self.init(new)


def spreads(self, state, old, new):
    extra = np.ones((new.replicas, new.clients - old.clients))
    return {**state, "waited": np.concatenate([state["waited"], extra], axis=1)}


def loses(self, state, old, new):
    return state if old is new else {"waited": self.init(new)["waited"]}


def keeps(self, state, old, new):
    return state


def restarts(self, state, old, new):
    return self.init(new)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"resize": forgets}, r"state\['waited'\] lost what was learned about the remaining clients"),
        ({"resize": spreads}, r"state\['waited'\] of the new clients must be as in init"),
        ({"resize": loses}, r"must have the arrays \['round', 'waited'\], got \['waited'\]"),
        ({"resize": restarts}, "changes the state although the problem stays the same"),
        ({"resize": keeps}, "must have 7 clients"),
    ],
)
def test_the_checker_refuses_a_wrong_resize(parts, message, monkeypatch):
    monkeypatch.setattr(check, "_SIZES", ())  # nothing but resize
    with pytest.raises(PolicyError, match=message):
        check_policy(type("Broken", (Waits,), parts)())
