"""Clients join and leave: a resized state equals that of a run which had the clients from the start."""

from dataclasses import replace

import numpy as np
import pytest

from fedlane import check_policy
from fedlane.records import ClientLosses, Context, DelayDistributions, Delays, Feedback, Problem
from fedlane.rng import RoundStreams
from fedlane.rounds import PolicyError
from fedlane.scheduling import BatchPolicy, Policy, checks, lift, make_policy, policies
from fedlane.validate import InputError

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


def update(policy, played, state, round, assignment):
    """Feed a round back, with the delays of the first clients of `delays_s`."""
    pairs = delays_s(round)[:, : played.clients]
    total = np.take_along_axis(pairs, np.maximum(assignment, 0)[..., None], axis=2)[..., 0]
    total = np.where(assignment >= 0, total, np.nan)
    delays = Delays(total / 4, total / 4, total / 2)
    reported = losses(played.clients)
    return policy.update(state, Feedback(round, assignment, delays, total <= DEADLINE_S, played, losses=reported))


def matching(round):
    """(R, AFTER): two of the first `BEFORE` clients on the two channels."""
    assignment = np.full((len(SEEDS), AFTER), -1)
    for r in range(len(SEEDS)):
        clients = np.random.default_rng([round, r]).permutation(BEFORE)[:CHANNELS]
        assignment[r, clients] = np.arange(CHANNELS)
    return assignment


def learned(policy, played):
    """The state after `JOINED` rounds in which only the first `BEFORE` clients were assigned."""
    state = policy.init(played)
    for round in range(JOINED):
        state = update(policy, played, state, round, matching(round)[:, : played.clients])
    return state


def continued(policy, played, state):
    """Assignments of the rounds from `JOINED` on, all clients available."""
    streams, chosen = RoundStreams(SEEDS, "policy"), []
    scale = np.linspace(0.5, 2.0, AFTER * CHANNELS).reshape(1, AFTER, CHANNELS).repeat(len(SEEDS), axis=0)
    cells = (np.arange(32) + 0.5) / 32
    truth = DelayDistributions(1 - np.exp(-cells / scale[..., None]), 1 - np.exp(-1 / scale), 0.0)
    for round in range(JOINED, 40):
        context = Context(
            round=round,
            available=np.ones(played.quotas.shape, bool),
            losses=losses(played.clients),
            channel_state=delays_s(round),
            distributions=truth,
            problem=played,
        )
        assignment = policy.select(state, context, streams.at(round))
        chosen.append(assignment)
        state = update(policy, played, state, round, assignment)
    return np.array(chosen)


@pytest.mark.parametrize("name", sorted(set(policies()) - {"round-robin"}))
def test_resized_is_as_if_the_clients_had_been_there_from_the_start(name):
    """Those who join later had no quota until then and were never assigned.

    Round-robin's turn counts groups, of which more clients have more: the two runs are different by definition.
    """
    policy = make_policy(name)
    old, new = problem(BEFORE), problem(AFTER)
    absent = new.quotas.copy()
    absent[:, BEFORE:] = 0.0
    from_the_start = learned(policy, replace(new, quotas=absent))
    resized = policy.resize(learned(policy, old), old, new)
    assert set(resized) == set(from_the_start)
    for key in set(resized) - {"history"}:  # its number of spare rows is not part of what it means
        np.testing.assert_array_equal(resized[key], from_the_start[key], err_msg=key)
    expected = continued(policy, new, from_the_start)
    np.testing.assert_array_equal(continued(policy, new, resized), expected)
    assert (expected[:, :, BEFORE:] >= 0).any()


@pytest.mark.parametrize("name", sorted(policies()))
def test_who_joins_and_leaves_again_changes_nothing(name):
    policy = make_policy(name)
    old, new = problem(BEFORE), problem(AFTER)
    state = learned(policy, old)
    again = policy.resize(policy.resize(state, old, new), new, old)
    assert set(again) == set(state)
    for key, array in state.items():
        np.testing.assert_array_equal(again[key], array, err_msg=key)


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


def test_without_a_declaration_the_shapes_of_init_decide():
    check_policy(Undeclared())
    policy, old, new = lift(Undeclared()), problem(BEFORE), problem(AFTER, quota=0.2)
    state = learned(policy, old)
    resized = policy.resize(state, old, new)
    np.testing.assert_array_equal(resized["waited"][0], [JOINED] * BEFORE + [0] * (AFTER - BEFORE))
    np.testing.assert_array_equal(resized["pairs"][..., :BEFORE], state["pairs"])
    assert np.all(resized["pairs"][..., BEFORE:] == -1)
    np.testing.assert_array_equal(resized["quota"], new.quotas)
    again = policy.resize(resized, new, old)
    for key, array in state.items():
        np.testing.assert_array_equal(again[key], array, err_msg=key)


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


def restarts(self, state, old, new):
    return self.init(new)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"resize": forgets}, r"state\['waited'\] lost what was learned about the remaining clients"),
        ({"resize": spreads}, r"state\['waited'\] of the new clients must be as in init"),
        ({"resize": loses}, r"must have the arrays \['round', 'waited'\], got \['waited'\]"),
        ({"resize": restarts}, "changes the state although the problem stays the same"),
        ({"per_client": frozenset()}, "must have 7 clients"),
        ({"per_client": frozenset({"wait"})}, r"per_client names \['wait'\], which are not in the state"),
    ],
)
def test_the_checker_refuses_a_wrong_resize(parts, message, monkeypatch):
    monkeypatch.setattr(checks, "_SIZES", ())  # nothing but resize
    with pytest.raises(PolicyError, match=message):
        check_policy(type("Broken", (Waits,), parts)())
