"""Rivals that learn pairs: Thompson sampling, windows and discounts, GLR-CUCB; and `clairvoyant`."""

import itertools

import numpy as np
import pytest

from fedlane.rng import RoundStreams
from fedlane.scheduling import make_policy
from fedlane.scheduling.estimates import mean
from fedlane.scheduling.rivals.glr_cucb import GlrCucb, likelihood_ratio
from fedlane.scheduling.rivals.mamab_discounted import MamabDiscounted
from fedlane.scheduling.rivals.mamab_sw import MamabSw
from fedlane.scheduling.rivals.recent_rounds import recent_statistics
from fedlane.scheduling.rivals.thompson import Thompson, posterior_draw
from support.policy_rounds import (
    DEADLINE_S,
    context_of,
    delays_of,
    feedback_of,
    problem_with,
    rounds_of,
    run,
    selected,
    served,
    state_with,
)


@pytest.mark.slow
def test_thompson_draws_from_the_posterior():
    """3 of 10: Beta(4, 8) has mean 1/3 and variance 4 x 8 / (12^2 x 13)."""
    replicas = 4000
    total, count = np.full((replicas, 1, 1), 3.0), np.full((replicas, 1, 1), 10)
    draws = posterior_draw(total, count, RoundStreams(range(replicas), "policy").at(0)).ravel()
    variance = 32 / (144 * 13)
    assert draws.mean() == pytest.approx(1 / 3, abs=5 * np.sqrt(variance / replicas))
    assert draws.var() == pytest.approx(variance, rel=0.15)
    prior = posterior_draw(0 * total, 0 * count, RoundStreams(range(replicas), "policy").at(0)).ravel()
    assert prior.mean() == pytest.approx(0.5, abs=5 * np.sqrt(1 / 12 / replicas))  # uniform
    assert np.mean(prior < 0.1) == pytest.approx(0.1, abs=5 * np.sqrt(0.09 / replicas))


def test_thompson_weighs_queues_against_rewards():
    """With a sharp posterior the draws are the means: 5 x 0.9 against 5 x 0.1 + Q x 0.99..."""
    policy, problem = Thompson(), problem_with(2, 1)
    delay = [[0.1], [0.9]]
    for queue, client in ((0.0, 0), (3.0, 0), (5.0, 1)):
        state = state_with(policy, problem, delay, count=100_000)
        assert served(selected(policy, state, context_of(problem, queue=np.array([[0.0, queue]])))) == [client]


def test_thompson_prefers_the_faster_pair_in_the_end():
    rounds = rounds_of(Thompson(quota_slack=0.0), problem_with(4, 2, quota=0.0, rounds=300))
    chosen = run(rounds, 300, lambda t, channel: delays_of(channel, [0.4, 0.4, 3.6, 3.6]))
    assert np.mean(chosen[150:, 0, :2] >= 0) > 0.9


def test_the_published_window_and_discount():
    """T = 500: 4 sqrt(500 ln 500) = 222.97 rounds, and 1 - 1 / (4 sqrt(500)) = 0.98882."""
    problem = problem_with(10, 4, rounds=500)
    assert MamabSw().rows(problem) == 223
    assert MamabSw(window=50).rows(problem) == 50
    assert MamabSw(window=1000).rows(problem) == 500
    assert MamabDiscounted().factor(problem) == pytest.approx(0.98882, abs=5e-6)
    assert MamabDiscounted(discount=0.9).factor(problem) == 0.9


def test_a_window_of_three_rounds_by_hand():
    """Rewards 0.75, 0.5, 0.25, late and 0.75: the last three sum to 1, of two successes."""
    policy, problem = MamabSw(window=3), problem_with(2, 1)
    state = policy.init(problem)
    for t, delay_s in enumerate((1.0, 2.0, 3.0, 9.0, 1.0)):
        state = policy.update(state, feedback_of(problem, [0, -1], [delay_s, 1.0], t))
    totals = recent_statistics(state, 2)
    assert [totals[key][0, :, 0].tolist() for key in ("count", "reward", "success")] == [[3, 0], [1.0, 0.0], [2.0, 0.0]]
    for t in (5, 6, 7):
        state = policy.update(state, feedback_of(problem, [-1, 0], [1.0, 2.0], t))
    assert recent_statistics(state, 2)["count"][0, :, 0].tolist() == [0, 3]


def test_a_discount_of_one_half_by_hand():
    """Rewards 0.75 and 0.5, then a round without the pair: counts 1, 1.5 and 0.75, sums 0.75, 0.875 and 0.4375."""
    policy, problem = MamabDiscounted(discount=0.5), problem_with(2, 1)
    state = policy.init(problem)
    for t, (assignment, delay_s) in enumerate((([0, -1], 1.0), ([0, -1], 2.0), ([-1, 0], 1.0))):
        state = policy.update(state, feedback_of(problem, assignment, [delay_s, 1.0], t))
    assert (state["count"][0, 0, 0], state["reward"][0, 0, 0]) == (0.75, 0.4375)
    assert mean(state["reward"], state["count"])[0, 0, 0] == pytest.approx(0.875 / 1.5)


def test_the_bonus_of_a_discounted_pair_by_hand():
    """Counts 3 and 0.5 on one channel: 3.5 discounted rounds, 0.2 sqrt(4 ln 3.5 / n)."""
    counts = np.array([[[3.0], [0.5]]])
    expected = 0.2 * np.sqrt(4 * np.log(3.5) / counts)
    np.testing.assert_allclose(MamabDiscounted(exploration=0.2).bonus(counts), expected)
    assert np.isposinf(MamabDiscounted().bonus(0 * counts)).all()


def test_with_all_rounds_in_the_window_it_is_mamab_om():
    problem, chosen = problem_with(5, 2, replicas=3, rounds=60), []
    for name in ("mamab-om:T0=2", "mamab-sw:window=1000,T0=2"):
        rounds = rounds_of(make_policy(name), problem, range(3))
        drawn_s = np.random.default_rng(1).exponential(2.0, (60, 3, 5))
        chosen.append(run(rounds, 60, lambda t, channel, drawn_s=drawn_s: delays_of(channel, drawn_s[t])))
    np.testing.assert_array_equal(*chosen)


@pytest.mark.parametrize("name", ["mamab-sw:window=20,T0=0.1", "mamab-discounted:discount=0.9,T0=0.1", "glr-cucb"])
def test_who_forgets_follows_a_step(name):
    """One channel: client 0 takes 0.4 s for 100 rounds, then 3.6 s, and client 1 the other way around."""
    rounds = rounds_of(make_policy(name), problem_with(2, 1, quota=0.0, rounds=400))
    channels = run(rounds, 400, lambda t, channel: delays_of(channel, [0.4, 3.6] if t < 100 else [3.6, 0.4]))
    chosen = np.argmax(channels[:, 0] >= 0, axis=1)
    assert np.mean(chosen[50:100]) < 0.5
    assert np.mean(chosen[200:]) > 0.5


def slow_ratio(rewards):
    """The likelihood ratio of a sequence, split by split."""

    def kl(p, q):
        p, q = min(max(p, 1e-10), 1 - 1e-10), min(max(q, 1e-10), 1 - 1e-10)
        return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))

    n, whole = len(rewards), np.mean(rewards)
    splits = (s * kl(np.mean(rewards[:s]), whole) + (n - s) * kl(np.mean(rewards[s:]), whole) for s in range(1, n))
    return max(splits, default=0.0)


def test_likelihood_ratio_by_hand_and_against_a_loop():
    """1, 1, 0, 0 split in the middle: 2 ln 2 + 2 ln 2."""
    used = np.ones((1, 4), bool)
    assert likelihood_ratio(np.array([[1.0, 1.0, 0.0, 0.0]]), used)[0] == pytest.approx(4 * np.log(2), rel=1e-6)
    assert likelihood_ratio(np.array([[1.0, 0.0, 0.0, 0.0]]), np.array([[True, False, False, False]]))[0] == 0
    rng = np.random.default_rng(1)
    rewards, mask = rng.random((30, 25)), rng.random((30, 25)) < 0.6
    expected = [slow_ratio(row[chosen]) for row, chosen in zip(rewards, mask, strict=True)]
    np.testing.assert_allclose(likelihood_ratio(rewards, mask), expected, rtol=1e-9)


def test_glr_detects_a_step_as_soon_as_the_threshold_allows():
    """Reward 0.9 for 100 rounds, then 0.2: by hand, the ratio is 11.5 after 10 rounds, with a threshold of 12.8."""
    policy, problem = GlrCucb(delta=0.01), problem_with(2, 1, rounds=200)
    state, rewards, restarted = policy.init(problem), [], None
    for t in range(130):
        rewards.append(0.9 if t < 100 else 0.2)
        delay_s = (1.0 - rewards[-1]) * DEADLINE_S
        state = policy.update(state, feedback_of(problem, [0, -1], [delay_s, 1.0], t))
        detected = slow_ratio(np.array(rewards)) >= np.log(3 * len(rewards) ** 1.5 / 0.01)
        assert (state["start"][0] == t + 1) == detected
        if detected:
            restarted = t
            break
    assert restarted is not None
    assert 110 <= restarted <= 113
    assert state["count"].sum() == 0
    assert np.all(state["recent_client"] == -1)


def test_glr_forces_every_pair_in_turn():
    """Two clients on one channel, one forced pair in two rounds: pairs 0 and 1 in rounds 0 and 1 of 4."""
    policy = GlrCucb(forced_share=0.5)
    turns = [policy._forced(np.array([t]), (1, 2, 1))[0, :, 0].tolist() for t in range(6)]
    assert turns == [[True, False], [False, True], [False] * 2, [False] * 2, [True, False], [False, True]]


def best_value(delay, queue, weight, available):
    """The largest objective over all matchings of as many clients as possible, delays in units of the deadline."""
    channels = delay.shape[1]
    size = min(channels, int(available.sum()))
    values = []
    for clients in itertools.permutations(np.flatnonzero(available), size):
        for used in itertools.combinations(range(channels), size):
            values.append(objective(dict(zip(clients, used, strict=True)), delay, queue, weight))
    return max(values)


def objective(channel_of, delay, queue, weight):
    drift = sum(queue[i] for i, j in channel_of.items() if delay[i, j] <= 1)
    return drift - weight * max(min(delay[i, j], 1.0) for i, j in channel_of.items())


@pytest.mark.parametrize(("clients", "channels"), [(5, 3), (6, 2), (3, 3), (2, 4), (4, 1)])
def test_clairvoyant_finds_the_best_of_all_matchings(clients, channels):
    rng = np.random.default_rng(clients + 10 * channels)
    problem = problem_with(clients, channels)
    for trial in range(60):
        policy = make_policy(f"clairvoyant:V={rng.choice([0.0, 0.2, 1.0, 5.0])}")
        # Some networks are slow, so that late uploads cannot be avoided; some delays are equal.
        delay = np.round(rng.uniform(0.05, rng.choice([0.9, 1.5, 4.0]), (clients, channels)), 1 + trial % 3)
        delay[rng.random(delay.shape) < 0.05] = np.inf
        queue = rng.exponential(3.0, clients) * (rng.random(clients) < 0.8)
        available = rng.random(clients) < 0.8
        context = context_of(problem, trial, available, queue=queue[None], channel_state=delay[None] * DEADLINE_S)
        chosen = selected(policy, {}, context)[0]
        channel_of = {i: j for i, j in enumerate(chosen) if j >= 0}
        assert len(channel_of) == min(channels, available.sum())
        if channel_of:
            expected = best_value(delay, queue, policy.V * channels, available)
            assert objective(channel_of, delay, queue, policy.V * channels) == pytest.approx(expected)


def test_clairvoyant_by_hand():
    """Two channels, V N = 10. The fastest pair takes 0.3 of the deadline, and client 2 makes it 0.6: 3 of its queue."""
    policy, problem = make_policy("clairvoyant"), problem_with(3, 2)
    delay = np.array([[[0.2, 0.9], [0.9, 0.3], [0.6, 0.6]]]) * DEADLINE_S
    for waiting, is_served in ((0.0, False), (2.9, False), (3.1, True)):
        queue = np.array([[0.0, 0.0, waiting]])
        assignment = selected(policy, {}, context_of(problem, queue=queue, channel_state=delay))
        assert (2 in served(assignment)) == is_served
        assert len(served(assignment)) == 2
