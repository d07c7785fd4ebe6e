"""What `lane` learns from late uploads: seldom punctual clients, pairs that become late, and uploads that were lost."""

import numpy as np
import pytest
from scipy.special import ndtri

from fedlane.records import Context, Feedback, Problem
from fedlane.rng import RoundStreams
from fedlane.scheduling import make_policy
from fedlane.scheduling.lane import forgetting, looking, observations
from support.distributions import midpoints, normal_density, normal_tail
from support.policy_rounds import network_delays, of_pairs, rounds_of, run

DEADLINE_S, COMPUTE_S = 4.0, 0.2
CUT = np.log(DEADLINE_S - COMPUTE_S)
"""Log of the network time from which on an upload is late."""


def feedback_of(problem, t, assignment, log_network):
    """The feedback of a round with these log network times (R, U); +inf for an upload that was lost."""
    delays = network_delays(assignment, log_network, COMPUTE_S)
    punctual = (assignment >= 0) & (delays.total_s <= problem.deadline_s)
    return Feedback(Context.first(problem, round=t), assignment, delays, punctual).observed()


def play(policy, problem, location_at, deviation):
    """Play all rounds; ``location_at(t)`` is the mean log network time of every pair.

    Returns the assignments (T, R, U) and the rounds after the last one.
    """
    rng, rounds = np.random.default_rng(0), rounds_of(policy, problem, range(problem.replicas))

    def attempt(t, channel):
        noise = deviation * rng.standard_normal(channel.shape)
        return network_delays(channel, of_pairs(location_at(t), channel) + noise, COMPUTE_S)

    return run(rounds, problem.rounds, attempt), rounds


def test_the_optimistic_probability_by_hand():
    punctual, count = np.array([0.2, 0.5, 0.9, 0.0, 1.0]), np.array([3.0, 99.0, 1.0, 5.0, 5.0])
    # n = 9: (0.2 + 1/18 + sqrt(0.16 / 9 + 1/324)) / (1 + 1/9) = (0.2 + 1/18 + sqrt(6.76) / 18) / (10/9) = 0.36;
    # n = 11 and p = 0: 2 z^2 / 2n / (1 + z^2 / n) = 1/12; n = 11 and p = 1: 1
    raised = observations.optimistic(punctual, count)
    np.testing.assert_allclose(raised[[0, 3, 4]], [0.36, 1 / 12, 1.0])
    for p, n, upper in zip(punctual, count + observations.PRIOR_UPLOADS, raised, strict=True):
        # the bound is the probability q whose own standard error is its distance from p
        assert (upper - p) ** 2 == pytest.approx(observations.OPTIMISM**2 * upper * (1 - upper) / n, abs=1e-12)


def test_the_optimistic_probability_of_an_untried_pair_is_the_predicted_one():
    punctual = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    np.testing.assert_array_equal(observations.optimistic(punctual, np.zeros(5)), punctual)
    assert np.all(observations.optimistic(punctual, np.full(5, 1e-3))[:4] > punctual[:4])


def test_the_optimistic_probability_rises_with_the_predicted_one_and_falls_with_the_count():
    punctual, count = np.linspace(0.0, 1.0, 1001)[:, None], np.array([0.5, 1.0, 2.0, 5.0, 20.0, 500.0])
    raised = observations.optimistic(punctual, count)
    assert np.all(np.diff(raised, axis=0) >= -1e-15)  # rounding
    assert np.all(np.diff(raised, axis=1) <= 1e-15)
    assert np.all(raised >= punctual - 1e-15)
    assert np.all(raised[0] > 0)  # all uploads were late
    np.testing.assert_allclose(raised[-1], 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("probability", [0.12, 0.17])
def test_a_client_that_is_seldom_punctual_anywhere_is_not_given_up(probability):
    """Client 0 is punctual with a small probability p on both channels, however often it is late at first.

    If p were known, client 0 would be worth a round until the deadline, which costs at most V N, as soon as its queue
    exceeds V N / p. From then on its quota beta is served. Its T beta owed uploads take (T beta - V N / p) / p
    assignments. Half of these assignments and twice that queue are required, because p must be learned. At most one
    of the 8 clients may miss both by bad luck: 19 late uploads in a row have a probability of 0.88^19 = 0.09. No client
    may be given up earlier than that.
    """
    policy, deviation, replicas = make_policy("lane:V=1"), 0.4, 8
    quotas = np.full((replicas, 4), 0.4)
    quotas[:, 0] = 0.1
    problem = Problem(4, 2, 600, DEADLINE_S, quotas)
    location = np.random.default_rng(1).uniform(-1.2, 0.2, (replicas, 4, 2))
    location[:, 0] = CUT - deviation * ndtri(probability)
    assignments, rounds = play(policy, problem, lambda t: location, deviation)
    tries, queue = (assignments[:, :, 0] >= 0).sum(axis=0), rounds.queue[:, 0]
    needed = policy.V * problem.channels / probability
    owed = policy.quotas(problem)[0, 0] * problem.rounds
    assert tries.min() >= 19
    served = (tries >= (owed - needed) / probability / 2) & (queue <= 2 * needed)
    assert served.sum() >= replicas - 1


def test_a_late_upload_s_surprise_is_the_log_likelihood_ratio_of_a_change(monkeypatch):
    """A change makes the pair useless, or moves it: the probability of being late, integrated over the step."""
    monkeypatch.setattr(forgetting, "LARGEST_LATE_SURPRISE", forgetting.LARGEST_SURPRISE)
    mean, cut = np.array([0.3, 0.3, 1.0, 1.6]), np.array([1.3, 0.8, 1.3, 1.3])
    location_variance, spread = np.array([0.1, 0.02, 0.05, 0.3]), np.array([0.2, 0.05, 0.1, 0.2])
    punctual = np.array([0.95, 0.999, 0.7, 0.3])
    expected = observations.Prediction(mean, location_variance, spread, punctual)
    step, width = midpoints(-8.0, 8.0)
    for k, ratio in enumerate(forgetting.late_surprise(cut, expected)):
        late_after = normal_tail(cut[k] - step, mean[k], (location_variance[k] + spread[k]) ** 0.5)
        late = width * np.sum(normal_density(step, 0.0, forgetting.STEP**0.5) * late_after)
        changed, unchanged = 0.1 + 0.9 * late, 1.0 - punctual[k] + observations.LOST
        assert ratio == pytest.approx(np.log(changed / unchanged), abs=1e-6)


def test_a_late_upload_s_surprise_is_limited_on_both_sides(monkeypatch):
    """However fast a pair was, a change may make it useless: a late upload is then a surprise, but a limited one."""
    fast, slow = (
        observations.Prediction(*(np.array([v]) for v in (mean, 0.1, 0.1, punctual)))
        for mean, punctual in ((-8.0, 1.0), (-8.0, 0.0))
    )
    cut = np.array([CUT])
    assert forgetting.late_surprise(cut, fast)[0] == forgetting.LARGEST_LATE_SURPRISE < np.log(0.1 / 0.01)
    assert forgetting.late_surprise(cut, slow)[0] == pytest.approx(np.log(forgetting.USELESS / 1.01), abs=1e-6)
    monkeypatch.setattr(forgetting, "USELESS", 0.0)
    assert forgetting.late_surprise(cut, slow)[0] == -forgetting.LARGEST_SURPRISE


@pytest.mark.slow
def test_a_pair_that_becomes_permanently_late_is_soon_abandoned():
    """Client 0 is fast on channel 0 for 200 rounds. Then all of its uploads there are late.

    Without detection, the late uploads must outweigh the 60 or more punctual ones (49 to 70 late uploads in 300
    rounds). With it, 5 late uploads raise the alarm, which leaves the pair the weight of one upload, and about 4 more
    make it slower than the client's other channels. A quarter of the number of punctual uploads is allowed.
    """
    problem, change = Problem(6, 3, 500, DEADLINE_S, np.full((8, 6), 0.4)), 200
    before = np.random.default_rng(0).uniform(-1.2, 0.2, (8, 6, 3))
    before[:, 0] = [0.2, 1.0, 1.0]
    after = before.copy()
    after[:, 0, 0] = CUT + 5.0
    assignments, _ = play(make_policy("lane"), problem, lambda t: before if t < change else after, 0.3)
    used = assignments[:, :, 0] == 0
    punctual, late = used[:change].sum(axis=0), used[change:].sum(axis=0)
    assert np.all(punctual >= 60)
    assert np.all(late <= punctual / 4)


CLIENTS, UNTRIED = 12, (0, 2)
"""Client 0 was never tried on channel 2, which is fast for all the others."""


def with_an_untried_pair(policy):
    """A state, and its problem, in which the untried pair is predicted to be fast and certain to be punctual."""
    problem, rng = Problem(CLIENTS, 3, 400, DEADLINE_S, np.full((1, CLIENTS), 0.2)), np.random.default_rng(3)
    location, state = np.array([0.6, 0.6, -1.5]), policy.init(problem)
    for t in range(4 * CLIENTS):
        assignment = np.full((1, CLIENTS), -1)
        for channel in range(3):
            client = (t + 4 * channel) % CLIENTS
            if (client, channel) != UNTRIED:
                assignment[0, client] = channel
        log_network = location[assignment] + 0.2 * rng.standard_normal(assignment.shape)
        state = policy.update(state, feedback_of(problem, t, assignment, log_network))
    return state, problem


def after_upload(policy, state, problem, log_network):
    """The state after a round in which only the untried pair is used; in which no pair is used if there is no time."""
    assignment = np.full((1, CLIENTS), -1)
    if log_network is not None:
        assignment[0, UNTRIED[0]] = UNTRIED[1]
    copy = {name: array.copy() for name, array in state.items()}
    return policy.update(copy, feedback_of(problem, 50, assignment, np.full((1, CLIENTS), log_network or 0.0)))


def value_of_looking(policy, state, problem, monkeypatch):
    """The value of looking at the untried pair that enters the search."""
    values = []
    with monkeypatch.context() as patch:
        original = looking.looking
        patch.setattr(looking, "looking", lambda *args: values.append(original(*args)) or values[-1].copy())
        policy.select(state, Context.first(problem, round=51), RoundStreams([0], "policy").at(51))
    return values[0][0, *UNTRIED]


def test_a_lost_first_upload_is_no_look(monkeypatch):
    """A client that leaves in mid-round says nothing about its channel: the pair is as untried as before.

    Its weight is 1e-3, so that the value of looking changes by about 1%. Its squared error is (m - c)^2 / v, about 33
    predicted variances: as a full look, it would raise the factor by a quarter.
    """
    policy = make_policy("lane")
    state, problem = with_an_untried_pair(policy)
    lost, unused = (after_upload(policy, state, problem, time) for time in (np.inf, None))
    assert 0 < lost["count"][0, *UNTRIED] < 0.01
    values = [value_of_looking(policy, played, problem, monkeypatch) for played in (lost, unused)]
    assert values[1] > 10.0
    assert values[0] == pytest.approx(values[1], rel=0.02)
    assert lost["doubt"][0] == pytest.approx(unused["doubt"][0], rel=1e-3)


def test_the_upload_after_a_lost_first_upload_is_the_first_look():
    policy = make_policy("lane")
    state, problem = with_an_untried_pair(policy)
    lost, unused = (after_upload(policy, state, problem, time) for time in (np.inf, None))
    after_lost, after_unused = (after_upload(policy, played, problem, 0.5) for played in (lost, unused))
    # 2 log units above the prediction, with a predicted variance of 0.24: the squared error is about 16.
    assert after_unused["doubt"][0] > 1.1 * unused["doubt"][0]
    assert after_lost["doubt"][0] > 1.07 * lost["doubt"][0]
