"""Rivals that require losses, worked by hand: Oort, power of choice and TiFL."""

import numpy as np
import pytest

from fedlane.scheduling.rivals.oort import Oort, statistical_utility
from fedlane.scheduling.rivals.power_of_choice import PowerOfChoice
from fedlane.scheduling.rivals.tifl import Tifl, changed_probabilities, tier_accuracy
from support.policy_rounds import context_of, feedback_of, losses_of, problem_with, selected, served, state_with

FLEET = losses_of([1.0, 1.0, 1.0, np.nan], rms=[4.0, 2.0, 1.0, np.nan])
"""Four clients, the last of which has not reported a loss."""


def test_oort_s_statistical_utility_is_records_times_root_mean_square_loss():
    sizes = np.array([[100.0, 300.0, 200.0, 200.0]])
    np.testing.assert_allclose(statistical_utility(FLEET, sizes), [[2.0, 3.0, 1.0, np.nan]])


def test_oort_s_utility_of_a_toy_fleet_by_hand():
    """u = 4, 2, 1: normalised (u - 0.999) / 3.001; t = 10, last uploads in rounds 9, 4 and 1.

    sqrt(0.1 ln 10 / L) = 0.15995, 0.23993 and 0.47985.
    """
    policy, problem = Oort(), problem_with(4, 2)
    state = state_with(policy, problem, 0.5, last=[[8, 3, 0, -1]])
    eligible = np.array([[True, True, True, False]])
    score = policy.score(state, FLEET, problem.sizes, 10, eligible)
    np.testing.assert_allclose(score, [[1.15995, 0.33356 + 0.23993, 0.00033 + 0.47985, 0.0]], atol=2e-5)
    clipped = Oort(clip=0.5).score(state, FLEET, problem.sizes, 10, eligible)  # at the second of three
    assert clipped[0, 0] == pytest.approx(0.33356 + 0.15995, abs=2e-5)


def test_oort_s_penalty_for_stragglers_by_hand():
    """Delays 0.2, 0.4 and 0.8 d_max; T is the 30th percentile, 0.2: factors (T / d)^2."""
    policy, problem = Oort(), problem_with(4, 1)
    state = state_with(policy, problem, [[0.2], [0.4], [0.8], [0.9]])
    state["count"][0, 3] = 0  # never tried, so nothing is known about its delay
    np.testing.assert_allclose(policy.slowness(state), [[1.0, 0.25, 0.0625, 1.0]])
    relaxed = {**state, "pace": np.array([100.0])}
    np.testing.assert_allclose(policy.slowness(relaxed), np.ones((1, 4)))


def test_oort_s_pacer_by_hand():
    """Flat utilities raise the percentile by 5, at most to 100; a sharp change lowers it."""
    pace, before = np.array([30.0, 30.0, 30.0, 98.0]), np.array([10.0, 10.0, 1.0, 10.0])
    now = np.array([10.5, 12.0, 7.0, 10.0])
    np.testing.assert_allclose(Oort().paced(pace, before, now), [35.0, 30.0, 25.0, 100.0])


def test_oort_s_pacer_compares_windows_of_20_rounds():
    policy, problem = Oort(), problem_with(4, 2)
    state, paces = policy.init(problem), []
    for t in range(60):
        state = policy.update(state, feedback_of(problem, [0, 1, -1, -1], [1.0] * 4, t, FLEET))
        paces.append(float(state["pace"][0]))
    assert paces[:39] == [30.0] * 39
    assert paces[39:59] == [35.0] * 20  # the mean utility is 3 in every round
    assert paces[59] == 40.0


def test_oort_explores_first_and_exploits_everything_once_all_have_reported():
    """Four channels: int(4 x 0.9 x 0.98^2) = 3 explore in round 1, int(4 x 0.3) = 1 in round 200."""
    policy, problem = Oort(), problem_with(9, 4, replicas=200)
    state, reported = policy.init(problem), np.tile([1.0] * 5 + [np.nan] * 4, (200, 1))
    for losses, round, exploring in (
        (np.full((200, 9), np.nan), 0, 4),
        (reported, 1, 3),
        (reported, 200, 1),
        (np.ones((200, 9)), 200, 0),
    ):
        context = context_of(problem, round, losses=losses_of(losses))
        chosen = selected(policy, state, context, range(200)) >= 0
        assert np.all(chosen.sum(axis=1) == 4)
        assert np.all((chosen & np.isnan(losses)).sum(axis=1) == exploring)
    present = np.arange(9) < 5  # nobody is left to explore, so that all channels exploit
    without = context_of(problem, 1, present, losses=losses_of(reported))
    assert np.all((selected(policy, state, without, range(200)) >= 0).sum(axis=1) == 4)


def test_oort_draws_from_the_first_ten_per_channel_and_from_those_above_the_cut_off():
    """Of 40 clients with scores 40 ... 1, one channel: 5% of the second score is 1.95, so that all but the last count.

    With a cut-off of 0.9, 35.1, the first eleven are drawn all the same. A share of 40 / 819 goes to the first of 39.
    """
    score, everyone = np.tile(np.arange(40.0, 0.0, -1.0), (20_000, 1)), np.ones((20_000, 40), bool)
    uniform = np.random.default_rng(2).random((20_000, 40))
    share = np.ones(20_000, int)
    wide = Oort().sampled(score, everyone, share, uniform).mean(axis=0)
    narrow = Oort(cut_off=0.9).sampled(score, everyone, share, uniform).mean(axis=0)
    assert np.flatnonzero(wide).tolist() == list(range(39))
    assert np.flatnonzero(narrow).tolist() == list(range(11))
    first = 40 / 819
    assert wide[0] == pytest.approx(first, abs=5 * np.sqrt(first * (1 - first) / 20_000))


def test_power_of_choice_serves_the_largest_stale_losses():
    policy, problem = PowerOfChoice(candidates=4.0), problem_with(4, 1)
    state = policy.init(problem)
    assert served(selected(policy, state, context_of(problem, losses=losses_of([1.0, 3.0, 2.0, 0.5])))) == [1]
    assert served(selected(policy, state, context_of(problem, losses=losses_of([1.0, 3.0, np.nan, 0.5])))) == [2]
    gone = context_of(problem, available=[True, False, True, True], losses=losses_of([1.0, 3.0, 2.0, 0.5]))
    assert served(selected(policy, state, gone)) == [2]


def test_power_of_choice_draws_candidates_in_proportion_to_their_records():
    policy, problem = PowerOfChoice(candidates=1.0), problem_with(2, 1, replicas=4000, sizes=[300.0, 100.0])
    losses = losses_of(np.tile([1.0, 9.0], (4000, 1)))
    chosen = selected(policy, policy.init(problem), context_of(problem, losses=losses), range(4000)) >= 0
    assert chosen[:, 0].mean() == pytest.approx(0.75, abs=5 * np.sqrt(0.1875 / 4000))


DELAYS = np.array([0.1, 0.9, 0.2, 0.8, 0.5, 0.4])[:, None] * np.ones((6, 2))
LOSSES = losses_of(np.full(6, 0.5))


def test_tifl_s_tiers_by_hand():
    """Six clients on two channels make three tiers: {0, 2}, {5, 4} and {3, 1}, from fast to slow."""
    policy, problem = Tifl(), problem_with(6, 2)
    tier, tiers = policy.tiers_of(state_with(policy, problem, DELAYS, count=3))
    assert tier.tolist() == [[0, 2, 0, 2, 1, 1]]
    assert tiers.tolist() == [3]
    new = state_with(policy, problem, DELAYS, count=3)
    new["count"][0, 4] = 1  # two uploads of five: still profiled; 5 // 2 tiers are left
    assert policy.tiers_of(new)[0].tolist() == [[0, 1, 0, 1, -1, 0]]
    assert 4 in served(selected(policy, new, context_of(problem, losses=LOSSES)))


def test_tifl_s_credits_by_hand():
    """30 rounds and three tiers: ten credits each. A tier without credits is not drawn."""
    policy, problem = Tifl(), problem_with(6, 2, rounds=30)
    state = state_with(policy, problem, DELAYS, count=3)
    assert policy.credit(problem, np.array([3])).tolist() == [10]
    state = policy.update(state, feedback_of(problem, [0, -1, 1, -1, -1, -1], [1.0] * 6, 3, LOSSES))
    assert state["used"].tolist() == [[1, 0, 0, 0, 0]]
    many = problem_with(6, 2, replicas=200, rounds=30)
    used = np.tile([10, 2, 0, 0, 0], (200, 1))
    spent = state_with(policy, many, DELAYS, count=3, used=used)
    losses = losses_of(np.full((200, 6), 0.5))
    chosen = selected(policy, spent, context_of(many, losses=losses), range(200)) >= 0
    assert not chosen[:, [0, 2]].any()
    assert np.all(chosen[:, 1] == chosen[:, 3])  # tiers are served whole
    assert chosen[:, 1].mean() == pytest.approx(0.5, abs=5 * np.sqrt(0.25 / 200))


def test_tifl_s_probabilities_by_hand():
    """Accuracies 0.9, 0.3 and 0.6: 1/6, 3/6 and 2/6; without credits for the second: 1/3, 0 and 2/3."""
    accuracy = np.array([[0.9, 0.3, 0.6]])
    np.testing.assert_allclose(changed_probabilities(accuracy, np.ones((1, 3), bool)), [[1 / 6, 1 / 2, 1 / 3]])
    np.testing.assert_allclose(changed_probabilities(accuracy, np.array([[True, False, True]])), [[1 / 3, 0, 2 / 3]])


def test_tifl_s_tier_accuracy_comes_from_reported_losses():
    losses = losses_of([np.log(2), np.log(8), np.nan, 0.0, np.nan])
    tier = np.array([[0, 0, 1, 2, 0]])
    np.testing.assert_allclose(tier_accuracy(losses, tier, 4), [[0.25, 0.0, 1.0, 0.0]])


def test_tifl_changes_probabilities_when_the_current_tier_stagnates():
    policy, problem = Tifl(), problem_with(6, 2, rounds=100)
    state = state_with(policy, problem, DELAYS, count=3)
    rounds = [0, -1, 1, -1, -1, -1], [1.0] * 6
    better = policy.update(state, feedback_of(problem, *rounds, 19, LOSSES))
    np.testing.assert_allclose(better["probability"], 0.2)
    np.testing.assert_allclose(better["accuracy"][0, :3], np.exp(-0.5))
    same = policy.update(better, feedback_of(problem, *rounds, 39, losses_of([0.5, 1.0, 0.5, 1.0, 0.8, 0.8])))
    np.testing.assert_allclose(same["probability"], [[1 / 6, 1 / 3, 1 / 2, 0, 0]])  # losses 0.5, 0.8 and 1
