"""Rivals that choose clients by delays, worked by hand: age of update, proportional fair, FedCS and RBCS-F."""

import itertools

import numpy as np
import pytest

from fedlane.scheduling import make_policy
from fedlane.scheduling.rivals.client_choice import largest, weighted_keys
from fedlane.scheduling.rivals.fedcs import FedCs, packed
from fedlane.scheduling.rivals.rbcs_f import RbcsF, best_prefix
from fedlane.validate import InputError
from support.policy_rounds import context_of, feedback_of, problem_with, selected, served, state_with


def test_the_largest_indices_among_eligible_clients():
    index = np.array([[3.0, np.inf, 2.0, 2.0], [1.0, 2.0, 3.0, 4.0]])
    eligible = np.array([[True, True, True, True], [True, True, False, False]])
    keys = np.array([[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]])
    assert largest(index, eligible, np.array([3, 1]), keys).tolist() == [
        [True, True, False, True],
        [False, True, *[False] * 2],
    ]


def test_weighted_keys_draw_in_proportion():
    """The largest key of weights 3 and 1 is the first client's with probability 3/4."""
    uniform = np.random.default_rng(0).random((20_000, 2))
    keys = weighted_keys(np.array([[3.0, 1.0]]), uniform)
    assert np.mean(keys[:, 0] > keys[:, 1]) == pytest.approx(0.75, abs=5 * np.sqrt(0.1875 / 20_000))


def test_channels_follow_from_a_max_min_matching_on_mean_rewards():
    """Client 0 on channel 0 and client 1 on 1: rewards 0.9 and 0.2; exchanged: 0.5 and 0.6, which is better."""
    policy, problem = make_policy("age-of-update"), problem_with(2, 2)
    state = state_with(policy, problem, [[0.1, 0.5], [0.4, 0.8]])
    assert selected(policy, state, context_of(problem)).tolist() == [[1, 0]]


def test_age_of_update_by_hand():
    """Round 4: ages 1, 4, 5 and 2. Client 1 is then late, so that its age grows on: 2, 5, 1 and 3 in round 5."""
    policy, problem = make_policy("age-of-update"), problem_with(4, 2)
    state = state_with(policy, problem, 0.5, last=[[3, 0, -1, 2]])
    assignment = selected(policy, state, context_of(problem, 4))
    assert served(assignment) == [1, 2]
    state = policy.update(state, feedback_of(problem, assignment, [1.0, 9.0, 1.0, 1.0], 4))
    assert state["last"].tolist() == [[3, 0, 4, 2]]
    assert served(selected(policy, state, context_of(problem, 5))) == [1, 3]
    assert served(selected(policy, state, context_of(problem, 5, [True, False, True, True]))) == [0, 3]


def test_proportional_fair_by_hand():
    """Mean delays 1, 2 and 4 s (always late), this round's 1, 1 and 3 s: ratios 1, 2 and 1.33."""
    policy, problem = make_policy("proportional-fair"), problem_with(3, 1)
    state = state_with(policy, problem, [[0.25], [0.5], [1.0]])
    now = np.array([[[1.0], [1.0], [3.0]]])
    assert served(selected(policy, state, context_of(problem, 5, channel_state=now))) == [1]
    without = context_of(problem, 5, [True, False, True], channel_state=now)
    assert served(selected(policy, state, without)) == [2]
    state["count"][0, 0] = 0  # never tried
    assert served(selected(policy, state, context_of(problem, 5, channel_state=now))) == [0]


def test_proportional_fair_assigns_channels_by_this_round_s_delays():
    """Slowest of (1 s, 3.9 s) or of (3 s, 2 s): the second."""
    policy, problem = make_policy("proportional-fair"), problem_with(2, 2)
    now = np.array([[[1.0, 3.0], [2.0, 3.9]]])
    state = state_with(policy, problem, 0.5)
    assert selected(policy, state, context_of(problem, channel_state=now)).tolist() == [[1, 0]]


PACKING = np.array([[[0.2, 0.5], [0.3, 0.4], [0.25, 1.0]]])
"""Delays in units of the deadline: first client 0 on channel 0, then client 1 on channel 1."""


def test_fedcs_packs_greedily():
    keys = np.array([[0.1, 0.2, 0.3]])
    assert packed(PACKING, keys).tolist() == [[True, True, False]]
    assert packed(np.where(PACKING < 0.35, PACKING, np.inf), keys).tolist() == [[True, False, False]]
    equal = np.full((1, 3, 1), 0.5)
    assert packed(equal, keys).tolist() == [[False, False, True]]  # the largest key
    assert not packed(np.full((1, 3, 2), np.inf), keys).any()


def test_fedcs_keeps_the_round_within_its_length():
    policy, problem = FedCs(), problem_with(3, 2)
    state = state_with(policy, problem, PACKING)
    assert selected(policy, state, context_of(problem)).tolist() == [[0, 1, -1]]
    assert selected(FedCs(round_share=0.35), state, context_of(problem)).tolist() == [[0, -1, -1]]
    assert served(selected(policy, state, context_of(problem, available=[False, True, True]))) == [1, 2]
    always_late = state_with(policy, problem, 1.0)
    assert len(served(selected(policy, always_late, context_of(problem)))) == 2  # a round is never empty


def test_fedcs_asks_a_random_fraction():
    """Two of four clients are candidates in each of 2,000 replicas, although the others are faster."""
    policy, problem = FedCs(fraction=0.5), problem_with(4, 2, replicas=2000)
    state = state_with(policy, problem, np.array([[0.1], [0.1], [0.9], [0.9]]) * np.ones((4, 2)))
    chosen = selected(policy, state, context_of(problem), range(2000)) >= 0
    np.testing.assert_allclose(chosen.mean(axis=0), 0.5, atol=5 * np.sqrt(0.25 / 2000))
    with pytest.raises(InputError, match="fraction must be greater than 0 and at most 1, got 0"):
        FedCs(fraction=0.0)


def test_rbcs_f_exchange_time_by_hand():
    """Three delays of 0.4 d_max: 1.2 / (1 + 3) - 0.1 / 2 = 0.25; without any: [0 - 0.1]^+ = 0."""
    policy, problem = RbcsF(), problem_with(2, 1)
    state = state_with(policy, problem, [[0.4], [0.4]], count=3)
    state["count"][0, 1], state["reward"][0, 1] = 0, 0.0
    np.testing.assert_allclose(policy.exchange_time(state), [[0.25, 0.0]])


def test_rbcs_f_set_by_hand():
    """V = 20: the sets cost 4 - 1, 6 - 3 and 18 - 32; V = 100: 20 - 1, 30 - 3 and 90 - 32."""
    tau, queue = np.array([0.1, 0.2, 0.3, 0.9]), np.array([0.0, 1.0, 2.0, 30.0])
    assert best_prefix(tau, queue, np.arange(4), 2, 20.0).tolist() == [0, 1, 2, 3]
    assert best_prefix(tau, queue, np.arange(4), 2, 100.0).tolist() == [0, 1]


def test_rbcs_f_finds_the_best_set():
    """Against all sets of 3 of 7 clients."""
    rng = np.random.default_rng(5)
    policy, problem = RbcsF(V=3.0), problem_with(7, 3)
    for _ in range(40):
        state = state_with(policy, problem, rng.random((7, 3)), count=4, queue=rng.exponential(1.0, (1, 7)))
        tau, queue = policy.exchange_time(state)[0], state["queue"][0]

        def cost(clients, tau=tau, queue=queue):
            return 3.0 * tau[list(clients)].max() - queue[list(clients)].sum()

        best = min(cost(clients) for clients in itertools.combinations(range(7), 3))
        assert cost(served(selected(policy, state, context_of(problem)))) == pytest.approx(best)


def test_rbcs_f_queue_falls_with_each_selection_and_rests_while_absent():
    policy, problem = RbcsF(), problem_with(4, 2, quota=0.5)
    state = {**policy.init(problem), "queue": np.array([[0.7, 0.7, 0.7, 0.7]])}
    late = feedback_of(problem, [0, 1, -1, -1], [1.0, 9.0, 1.0, 1.0], present=[True, True, True, False])
    np.testing.assert_allclose(policy.update(state, late)["queue"], [[0.2, 0.2, 1.2, 0.7]])
