"""How much `lane` learns from a late upload: against numerical integration, and in whole runs."""

import numpy as np
import pytest

from fedlane import Scenario, Simulation
from fedlane.records import Context, Delays, Feedback, Problem
from fedlane.scheduling import make_policy
from fedlane.scheduling.lane import observations
from fedlane.scheduling.lane.observations import LEAST, LOST, Prediction, late_information
from support.distributions import normal_density, normal_tail
from support.policy_rounds import network_delays, of_pairs, rounds_of, run

DEADLINE_S, COMPUTE_S = 4.0, 0.2
CUT = np.log(DEADLINE_S - COMPUTE_S)

CASES = np.array(
    [
        # mean, variance of the mean, variance from round to round
        (0.3, 1.0, 0.16),  # an untried pair
        (1.2, 1.0, 0.16),
        (2.5, 0.8, 0.3),  # late nearly always
        (0.9, 0.05, 0.2),  # a tried pair
        (0.4, 0.3, 0.3),
        (-1.0, 1.5, 0.1),
    ]
).T


def slow_posterior(mean, variance, spread, lost):
    """Mean and variance of a pair's location, given that an upload was late or lost, on a fine grid."""
    location = mean + np.sqrt(variance) * np.linspace(-12.0, 12.0, 40_001)
    likelihood = lost + normal_tail(CUT, location, np.sqrt(spread))
    weight = normal_density(location, mean, np.sqrt(variance)) * likelihood
    weight /= weight.sum()
    where = (weight * location).sum()
    return where, (weight * (location - where) ** 2).sum()


def with_pseudo_value(mean, variance, spread, value, information):
    """Mean and variance of a location after a value whose error has the variance ``spread`` / ``information``."""
    precision = 1.0 / variance + information / spread
    return (mean / variance + value * information / spread) / precision, 1.0 / precision


def prediction(mean, variance, spread):
    """What is expected of uploads, and the probability w that a late one was slow and not lost."""
    late = normal_tail(CUT, mean, np.sqrt(variance + spread))
    return Prediction(mean, variance, spread, 1.0 - late), late / (late + LOST)


def pull_and_curvature(mean, variance, spread, slow):
    """w h and w h - a."""
    a = (CUT - mean) / np.sqrt(variance + spread)
    pull = slow * normal_density(a) / normal_tail(a)
    return pull, pull - a


@pytest.mark.parametrize("lost", [0.0, LOST])
def test_a_late_upload_says_as_much_as_its_pseudo_value(lost):
    """The posterior's mean and variance are exact, whatever w is, where `LEAST` does not act."""
    expected, slow = prediction(*CASES)
    slow = np.ones(len(slow)) if lost == 0.0 else slow
    value, information = late_information(expected, np.full(len(slow), CUT), slow)
    exact = pull_and_curvature(*CASES, slow)[1] >= LEAST
    assert exact.sum() >= 4
    for k in range(len(slow)):
        where, variance = slow_posterior(*CASES[:, k], lost)
        found = with_pseudo_value(*CASES[:, k], value[k], information[k])
        assert found[0] == pytest.approx(where, abs=1e-5)  # the mean is exact in any case
        if exact[k]:
            assert found[1] == pytest.approx(variance, rel=1e-5)
        else:  # more is learned than there is to learn, so that repeated late uploads add up
            assert found[1] < variance


def test_where_the_lower_limit_acts():
    """On fast pairs, which were late with a probability of less than 9%: there, the upload may well have been lost."""
    mean = np.linspace(-3.0, 3.0, 61)
    variance, spread = np.full(61, 0.3), np.full(61, 0.15)
    expected, slow = prediction(mean, variance, spread)
    _, curvature = pull_and_curvature(mean, variance, spread, slow)
    clamped = curvature < LEAST
    assert clamped[0]
    assert not clamped[-1]
    assert np.all(np.diff(clamped.astype(int)) <= 0)  # it acts on fast pairs, up to some mean
    assert 0.07 < 1.0 - expected.punctual[clamped].min() < 0.09
    value, information = late_information(expected, np.full(61, CUT), slow)
    np.testing.assert_allclose(value[clamped], mean[clamped] + np.sqrt(0.45) / LEAST)
    assert np.all(information[clamped] < information[~clamped].max())
    assert information[0] < 1e-4


def test_a_late_upload_never_says_more_than_a_punctual_one():
    grid = [axis.ravel() for axis in np.meshgrid(np.linspace(-6, 6, 49), [1e-4, 0.05, 0.5, 5.0], [0.01, 0.2, 2.0])]
    expected, slow = prediction(*grid)
    for weight in (slow, np.ones(len(slow)), slow + 1e-3):
        value, information = late_information(expected, np.full(len(slow), CUT), weight)
        assert np.isfinite(value).all()
        assert np.all((information >= 0) & (information <= 1 + 1e-12))  # rounding
        assert np.all(value >= expected.mean - 1e-12)


def after_upload(expected, log_network):
    """The empty statistics after an upload of client 0 on channel 1, and what it showed."""
    problem, pair = Problem(2, 2, 10, DEADLINE_S, np.full((1, 2), 0.5)), tuple(np.array([k]) for k in (0, 0, 1))
    state = observations.empty_observations(problem)
    state["compute"][0, 0, :] = COMPUTE_S
    state["compute"][0, 1, :] = COMPUTE_S
    network = np.array([[np.exp(log_network), np.nan]])
    delays = Delays(0.5 * network, np.array([[COMPUTE_S, np.nan]]), 0.5 * network)
    punctual = np.nan_to_num(delays.total_s, nan=np.inf) <= DEADLINE_S
    feedback = Feedback(Context.first(problem), np.array([[1, -1]]), delays, punctual).observed()
    seen = observations.observe(state, feedback, pair, expected, DEADLINE_S)
    return {name: state[name][pair][0] for name in ("count", "information", "mean", "variance")}, seen


def test_a_punctual_upload_counts_as_one_and_a_late_one_as_what_it_says():
    expected, _ = prediction(*(np.array([v]) for v in (0.3, 1.0, 0.16)))
    punctual, _ = after_upload(expected, 0.7)
    assert (punctual["count"], punctual["information"]) == (1.0, 1.0)
    assert punctual["mean"] == pytest.approx(0.7)
    late, seen = after_upload(expected, 3.0)
    late_share = 1.0 - expected.punctual[0]
    assert late["count"] == pytest.approx(late_share / (late_share + LOST) + 1e-3)
    value, information = late_information(expected, np.array([CUT]), seen.weight)
    assert late["information"] == pytest.approx(information[0], rel=1e-5)
    assert late["mean"] == pytest.approx(value[0], rel=1e-5)
    # the first upload of an unknown pair, if it is late, says much less than a punctual one, but is a look
    assert observations.TRIED < late["information"] < 0.5
    assert late["mean"] > seen.value[0] > CUT


def test_late_uploads_one_after_the_other_agree_with_integration():
    """Four late uploads: each is weighed with the normal posterior of those before it (assumed-density filtering)."""
    mean, variance, spread = 0.3, 1.0, 0.16
    location = mean + np.linspace(-8.0, 8.0, 8001)
    weight = normal_density(location, mean, 1.0)
    for _ in range(4):
        expected, slow = prediction(*(np.array([v]) for v in (mean, variance, spread)))
        value, information = late_information(expected, np.array([CUT]), slow)
        mean, variance = with_pseudo_value(mean, variance, spread, value[0], information[0])
        weight = weight * (LOST + normal_tail(CUT, location, np.sqrt(spread)))
    weight /= weight.sum()
    where = (weight * location).sum()
    # The posterior is skew, so that normal ones cannot be exact: its mean has risen by 1.78 (here 1.85), and its
    # variance has fallen from 1 to 0.21 (here 0.17).
    assert mean == pytest.approx(where, abs=0.1)
    assert variance == pytest.approx((weight * (location - where) ** 2).sum(), rel=0.25)


def tries_after_a_late_first_look(replicas, rounds):
    """How often client 0 is tried on its only fast channel, on which its first upload happens to be late (R,)."""
    problem = Problem(10, 4, rounds, DEADLINE_S, np.full((replicas, 10), 0.3))
    rng = np.random.default_rng(0)
    where = rng.uniform(-0.8, 1.0, (replicas, 10, 4))
    where[:, 0], where[:, 0, 2] = 1.25, -0.3
    tries = np.zeros(replicas, int)

    def attempt(t, channel):
        log = of_pairs(where, channel) + 0.35 * rng.standard_normal(channel.shape)
        log[(channel[:, 0] == 2) & (tries == 0), 0] = CUT + 0.3
        tries[:] += channel[:, 0] == 2
        return network_delays(channel, log, COMPUTE_S)

    run(rounds_of(make_policy("lane"), problem, range(replicas)), rounds, attempt)
    return tries


@pytest.mark.slow
def test_a_late_first_look_does_not_always_lock_a_client_out_of_its_best_channel():
    """Client 0 needs 3.5 s and more elsewhere, and 0.7 s there, but its first look was late.

    When the late look counted as a full upload, none of these 16 clients tried the channel again. With the information
    that it has, 11 do, and then they stay. A late look is still some evidence, so that not all of them do.
    """
    tries = tries_after_a_late_first_look(replicas=16, rounds=250)
    assert np.all(tries >= 1)
    again = tries > 1
    assert again.sum() >= 6
    assert np.all(tries[again] >= 20)


@pytest.mark.slow
def test_client_6_tries_channel_2_again():
    """Seed 23, in which a late first look once kept client 6 from its best channel for all of 500 rounds."""
    scenario = Scenario.load("paper-fmnist").with_values({"privacy.mechanism": "none", "rounds": 500})
    simulation = Simulation(scenario, "lane", [23])
    simulation.play()
    tries = [(simulation.trace.client[0, :, channel] == 6).sum() for channel in range(4)]
    assert tries[2] > 100
    assert tries[2] > 10 * max(tries[0], tries[1], tries[3])
