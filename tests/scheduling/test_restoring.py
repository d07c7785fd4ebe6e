"""States from files: compiled code uses some entries as indices, so a state is checked before it is used."""

import itertools

import numpy as np
import pytest

from fedlane import check_policy
from fedlane.records import Problem
from fedlane.rounds import PolicyError, Rounds, check
from fedlane.scheduling import BatchPolicy, Policy, lift, make_policy, policies
from fedlane.scheduling.lane import places
from fedlane.scheduling.lane.spread import LINE
from fedlane.validate import InputError

CLIENTS, CHANNELS, ROUNDS, SEEDS = 12, 7, 20, (0, 7)
SHAPE = (len(SEEDS), CLIENTS)
PROBLEM = Problem(CLIENTS, CHANNELS, ROUNDS, 4.0, np.full(SHAPE, 0.3), np.full(SHAPE, 100.0))


MORE_CHANNELS = Problem(CLIENTS, places.MIN_CHANNELS, ROUNDS, 4.0, np.full(SHAPE, 0.3), np.full(SHAPE, 100.0))
"""A network on which `lane` fits latent places."""


def played(policy, rounds=ROUNDS, problem=PROBLEM):
    """The state of a run after some rounds on a small network."""
    going = Rounds(policy, problem, SEEDS)
    for _ in check._run(going, range(rounds)):
        pass
    return dict(going.state)


SIGNED = frozenset({"mean", "factor", "factor_cov", "loading", "loading_cov", "centre", "place_line", "place_score"})
SIGNED |= frozenset(LINE)
"""Arrays of `lane` of which some entries are logarithms or coefficients, or covariances of them."""


def wrong_entries(key, array):
    """Numbers that no entry of a state may have: far outside, just below, and not finite."""
    if array.dtype.kind == "i":
        limits = np.iinfo(array.dtype)
        return (limits.min, -(2**20), -2, 1000, 2**20, limits.max)
    return (np.nan, np.inf, -np.inf, -1e6 if key in SIGNED else -1e-3, 1e6, 1e30)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        *(pytest.param(name, PROBLEM, id=name) for name in sorted(policies())),
        pytest.param("lane", MORE_CHANNELS, id="lane with places"),
    ],
)
def test_numbers_that_no_run_can_reach_are_refused(name, problem):
    policy, state = make_policy(name), played(make_policy(name), problem=problem)
    restored = policy.check_state(state, problem)
    assert all(restored[key].dtype == array.dtype for key, array in policy.init(problem).items())
    for key, array in state.items():
        for wrong, everywhere in itertools.product(wrong_entries(key, array) if array.size else (), (False, True)):
            forged = array.copy()
            forged[... if everywhere else (0,) * array.ndim] = wrong
            with pytest.raises(InputError, match=rf"^state\.{key} must "):
                policy.check_state({**state, key: forged}, problem)
        for forged in (array[:1], array[..., None], array.astype(str), array.astype(complex)):
            with pytest.raises(InputError, match=rf"^state\.{key} must "):
                policy.check_state({**state, key: forged}, problem)
        with pytest.raises(InputError, match=f"state.{key} is missing"):
            policy.check_state({other: state[other] for other in state if other != key}, problem)


def test_places_that_are_no_probabilities_and_lines_that_fall_are_refused():
    policy, state = make_policy("lane"), played(make_policy("lane"), problem=MORE_CHANNELS)
    assert state["restarts"].min() > 0
    for key, place, value, message in (
        ("client_place", (1, 3), 0.0, r"client_place \(sum\) must lie in 0.99..1.01, got 0"),
        ("client_place", (1, 3), 2.0 / places.SIDE**2, r"client_place \(sum\) must .* got 2"),
        ("channel_place", (0, 7), 1.0, r"channel_place \(sum\) must .* got 256"),
        ("channel_place", (0, 7, 200), 1.01, "channel_place must lie in 0..1.0001, got 1.01"),
        ("place_line", (1, 1), -1e-3, "place_line must lie in 0.5..1000, got -0.001"),
        ("place_line", (1, 2), -1e-3, "place_line must lie in 1e-06..1000, got -0.001"),
        ("place_line", (0, 2), np.nan, "place_line must lie in 1e-06..1000, got nan"),
        ("restarts", 1, len(places.RESTARTS) + 1, f"restarts must lie in 0..{len(places.RESTARTS)}"),
    ):
        forged = state[key].copy()
        forged[place] = value
        with pytest.raises(InputError, match=rf"^state\.{message}"):
            policy.check_state({**state, key: forged}, MORE_CHANNELS)


@pytest.mark.parametrize(("key", "value"), [("place_score", 1.0), ("restarts", 1)])
def test_places_in_use_are_refused_on_a_network_with_few_channels(key, value):
    policy, state = make_policy("lane"), played(make_policy("lane"))
    with pytest.raises(InputError, match=rf"^state\.{key} must "):
        policy.check_state({**state, key: np.full_like(state[key], value)}, PROBLEM)


def test_entries_that_are_one_too_large_or_used_twice_are_refused():
    policy, state = make_policy("lane-2026"), played(make_policy("lane-2026"), rounds=11)
    assert state["history"].shape[1] > 64  # it has grown, and is accepted
    policy.check_state(state, PROBLEM)
    tried = np.argwhere(state["count"] > 0)
    untried = tuple(np.argwhere(state["count"] == 0)[0])
    first, second = (tuple(place) for place in tried[tried[:, 0] == tried[0, 0]][:2])
    for key, place, value in (
        ("slots", (0,), state["history"].shape[1] + 1),
        ("slots", (0,), state["slots"][0] - 1),
        ("slot", first, state["slots"][first[0]]),
        ("slot", first, state["slot"][second]),
        ("slot", first, -1),
        ("slot", untried, 0),
        ("count", untried, 1),
        ("count", first, 0),
        ("count", first, ROUNDS + 1),
        ("success", first, state["count"][first] + 1),
        ("reward", first, state["count"][first] + 0.5),
        ("history", (0, 0, 0), ROUNDS + 1.0),
    ):
        forged = state[key].copy()
        forged[place] = value
        with pytest.raises(InputError, match=r"^state\."):
            policy.check_state({**state, key: forged}, PROBLEM)


def test_types_that_wrap_around_are_refused_and_others_are_converted():
    policy, state = make_policy("lane-2026"), played(make_policy("lane-2026"))
    with pytest.raises(InputError, match="a number that does not fit"):
        policy.check_state({**state, "count": state["count"] + np.int64(2**32)}, PROBLEM)
    foreign = {key: np.asfortranarray(array).astype(array.dtype.newbyteorder(">")) for key, array in state.items()}
    restored = policy.check_state(foreign, PROBLEM)
    for key, array in state.items():
        assert restored[key].dtype == array.dtype
        assert restored[key].flags.c_contiguous
        np.testing.assert_array_equal(restored[key], array)


def test_a_lifted_policy_checks_each_replica():
    class Counting(Policy):
        name = "counting"

        def init(self, problem):
            return {"seen": np.zeros(problem.clients, np.int64)}

        def select(self, state, context, rng):
            return np.full(len(context.available), -1)

        def check_state(self, state, problem):
            if state["seen"].max() > 9:
                raise InputError("state.seen must be at most 9")
            return super().check_state(state, problem)

    policy = lift(Counting())
    state = dict(policy.init(PROBLEM))
    assert policy.check_state(state, PROBLEM)["seen"].shape == (2, CLIENTS)
    forged = state["seen"].copy()
    forged[1, 3] = 10
    for wrong, message in ((forged, "at most 9"), (forged[:1], "2 replicas"), (np.array(3), "2 replicas")):
        with pytest.raises(InputError, match=message):
            policy.check_state({"seen": wrong}, PROBLEM)


def test_a_policy_that_refuses_its_own_state_breaks_its_contract():
    class Growing(BatchPolicy):
        name = "growing"

        def init(self, problem):
            return {"delays": np.zeros((problem.replicas, 0))}

        def select(self, state, context, rng):
            return np.full(context.available.shape, -1)

        def update(self, state, feedback):
            return {"delays": np.zeros((len(state["delays"]), state["delays"].shape[1] + 1))}

    with pytest.raises(PolicyError, match="check_state refuses a state of the run"):
        check_policy(Growing())
