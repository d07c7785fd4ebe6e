"""`lane`'s latent places: the sweep against plain loops, what they predict, when they are used, and saved states."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedlane.scheduling import make_policy
from fedlane.scheduling.lane import location, observations, places
from fedlane.scheduling.lane.beliefs import beliefs, predicted
from support import placed_networks
from support.placed_networks import after_first_looks, factors, geometric, played, problem_with, unrelated

CELLS = places.SIDE**2
CENTRE = [((row + 0.5) / places.SIDE, (column + 0.5) / places.SIDE) for row in range(16) for column in range(16)]
SQUARE = np.array([[(a - c) ** 2 + (b - d) ** 2 for a, b in CENTRE] for c, d in CENTRE])
"""Squared distances of the cells' centres."""
DISTANCE = np.where(SQUARE > 0, SQUARE**0.5, 0.52 / 16)
"""In the same cell, the mean distance of two of its points."""


def posterior(rng, number, sharpness):
    """Random probabilities of the cells, around a random point each."""
    point = rng.uniform(size=(number, 1, 2))
    return places._normalised(-sharpness * ((places.CENTRES - point) ** 2).sum(axis=-1) + rng.normal(size=CELLS))


def slow_moments(q, p):
    """E|y - z| and E|y - z|^2 of two points with these probabilities, summed over all pairs of cells."""
    both = q.astype(float)[:, None] * p.astype(float)
    first = (both * DISTANCE).sum()
    return first, max((both * SQUARE).sum(), first**2)


def slow_posterior(other, tau, rest, slope):
    """The posterior of one point, given the posteriors of those to which it has the distances ``rest`` / slope."""
    log = np.zeros(CELLS)
    for c, k in itertools.product(range(CELLS), np.flatnonzero(tau)):
        log[c] += tau[k] * (slope * rest[k] * (other[k] @ DISTANCE[c]) - slope**2 * (other[k] @ SQUARE[c]) / 2)
    weight = np.exp(log - log.max())
    return weight / weight.sum()


@pytest.fixture(scope="module")
def tiny():
    """Places of 4 clients and 9 channels, the pairs' means and the errors of the means, infinite for some pairs."""
    rng = np.random.default_rng(0)
    error = rng.uniform(0.02, 0.3, (4, 9))
    error[rng.uniform(size=error.shape) < 0.4] = np.inf
    mean = np.where(np.isfinite(error), rng.normal(0.3, 0.8, error.shape), 0.0)
    before = places.Places(posterior(rng, 4, 3.0), posterior(rng, 9, 8.0), (-1.5, 3.0, 0.25))
    return before, mean, error


def test_a_sweep_is_that_of_plain_loops(tiny):
    before, mean, error = tiny
    after = places._swept(before, mean, error)
    level, slope, psi = before.line
    tau = np.where(np.isfinite(error), 1.0 / (psi + error), 0.0)
    client = np.array([slow_posterior(before.channel, tau[i], mean[i] - level, slope) for i in range(4)])
    np.testing.assert_allclose(after.client, client, rtol=1e-3, atol=1e-8)
    channel = np.array([slow_posterior(client, tau[:, j], mean[:, j] - level, slope) for j in range(9)])
    np.testing.assert_allclose(after.channel, channel, rtol=1e-3, atol=1e-8)
    tried = [(i, j) for i, j in itertools.product(range(4), range(9)) if tau[i, j] > 0]
    moments = {(i, j): slow_moments(client[i], channel[j]) for i, j in tried}
    # least squares for level and slope, with the prior that the slope is 5 (weight 4)
    matrix, right = np.array([[0.0, 0.0], [0.0, 4.0]]), np.array([0.0, 4.0 * 5.0])
    for (i, j), (first, second) in moments.items():
        matrix += tau[i, j] * np.array([[1.0, first], [first, second]])
        right += tau[i, j] * mean[i, j] * np.array([1.0, first])
    a, s = np.linalg.solve(matrix, right)
    bound, total = 0.0, 10.0 * 0.6
    for (i, j), (first, second) in moments.items():
        square = (mean[i, j] - a) ** 2 - 2 * s * (mean[i, j] - a) * first + s**2 * second
        bound += np.log(tau[i, j]) / 2 - tau[i, j] * square / 2
        k = psi * tau[i, j]  # of the residual; the rest is the error of the mean
        total += k**2 * square + psi * (1 - k)
    bound -= sum((q * np.log(q)).sum() for q in (*client, *channel))
    np.testing.assert_allclose(after.line, [a, s, total / (len(tried) + 10.0)], rtol=1e-4)
    assert after.bound == pytest.approx(bound, rel=1e-4)


def test_the_slope_is_never_too_small(tiny, monkeypatch):
    monkeypatch.setattr(places, "PRIOR_SLOPE", -50.0)
    assert places._swept(*tiny).line[1] == places.SMALLEST_SLOPE


def model_of(fit):
    """The arrays of a state with the places of one replica."""
    return {
        "client_place": fit.client[None],
        "channel_place": fit.channel[None],
        "place_line": np.array([fit.line]),
        "restarts": np.ones(1, np.int64),
        "place_score": np.ones(1),
    }


def test_moments_are_sums_over_all_pairs_of_cells(tiny):
    model = model_of(tiny[0])
    mean, variance = places.moments(model, 0)
    pair = tuple(index.ravel() for index in np.indices((1, 4, 9)))
    some = places.moments_at(model, pair)
    np.testing.assert_allclose(some[0], mean.ravel(), atol=3e-6)
    np.testing.assert_allclose(some[1], variance.ravel(), rtol=1e-4, atol=1e-5)
    for i, j in ((0, 0), (1, 5), (3, 8)):
        first, second = slow_moments(model["client_place"][0, i], model["channel_place"][0, j])
        assert mean[i, j] == pytest.approx(-1.5 + 3.0 * first, rel=1e-5)
        assert variance[i, j] == pytest.approx(9.0 * (second - first**2), rel=1e-4, abs=1e-5)
    assert np.all(variance > 0)


def test_two_points_in_the_same_cell_have_the_mean_distance_of_random_points():
    rng = np.random.default_rng(1)
    y, z = rng.uniform(size=(2, 400_000, 2))
    mean = np.hypot(*(y - z).T).mean() / places.SIDE
    assert places.DISTANCES[7, 7] == pytest.approx(mean, rel=0.005)
    sure = np.zeros((1, CELLS), np.float32)
    sure[0, 7] = 1.0
    distance, square = places._distance_moments(sure, sure)
    assert square[0, 0] == distance[0, 0] ** 2  # and not less, which would be a negative variance


def many(network, looks, replicas=8):
    """The state of `lane` after first looks at 120 clients and 12 channels, and the pairs' locations."""
    where = np.array([network(np.random.default_rng(seed), 120, 12) for seed in range(replicas)])
    return after_first_looks(make_policy("lane"), problem_with(120, 12, replicas), where, looks), where


def error_ratio(state, where):
    """RMSE of untried pairs from places, in units of that from the factor model, in each replica."""
    untried, of_factors = state["count"] == 0, location.model_moments(state)[0]
    pairs = [(places.moments(state, r)[0], of_factors[r], where[r], untried[r]) for r in range(len(where))]
    return np.array([np.sqrt(((a - x)[u] ** 2).sum() / ((b - x)[u] ** 2).sum()) for a, b, x, u in pairs])


@pytest.mark.slow
def test_places_predict_untried_pairs_better_if_delays_follow_distances():
    """After 5 looks of 12 at each client, by 10% to 43% on 16 networks, and by a quarter on average."""
    ratio = error_ratio(*many(geometric, looks=5))
    assert np.all(ratio < 0.95)
    assert ratio.mean() < 0.8


@pytest.mark.slow
def test_places_are_used_if_delays_follow_distances():
    """The scores of 16 networks were between 2 and 59 after 7 looks at each client, with a mean of 35."""
    state, _ = many(geometric, looks=7)
    assert places.used(state).sum() >= 7
    assert state["place_score"].mean() > 15


@pytest.mark.slow
def test_places_are_not_used_if_delays_follow_more_properties_than_distances():
    """The scores of 16 networks were between -104 and -46 after 7 looks at each client."""
    state, where = many(factors, looks=7)
    assert not places.used(state).any()
    assert state["place_score"].max() < -20
    assert np.all(error_ratio(state, where) > 1.3)


@pytest.mark.slow
def test_places_do_no_harm_if_delays_follow_nothing():
    """Both models then predict little more than the mean of all pairs, so it does not matter which one is used.

    On 16 networks, the places' errors were 0 to 6% smaller, and the scores of 600 looks between -5 and 9: a hundredth
    of a unit for each look.
    """
    state, where = many(unrelated, looks=7)
    assert np.all(error_ratio(state, where) < 1.03)
    assert np.all(np.abs(state["place_score"]) < 15)


def test_the_score_is_a_sum_of_log_densities_that_forgets(tiny):
    """First looks only; a late upload counts with the probability of being late."""
    from scipy import stats

    rng, problem = np.random.default_rng(4), problem_with(4, 9)
    model = {**location.empty_location(problem), **model_of(tiny[0]), "place_score": np.array([2.5])}
    model["factor"] = rng.normal(size=model["factor"].shape)
    pair = tuple(np.array(index) for index in ([0, 0, 0, 0], [0, 1, 2, 3], [4, 2, 8, 0]))
    value, cut, spread = np.array([0.2, -0.3, 1.9, 0.4]), np.full(4, 1.3), np.array([0.1, 0.2, 0.15, 0.1])
    punctual, first = np.array([True, True, False, True]), np.array([True, True, True, False])
    seen = observations.Observed(value, cut, np.ones(4), np.ones(4))
    total = 2.5
    for k in range(3):
        at = tuple(index[[k]] for index in pair)
        log = []
        for moments, psi in ((places.moments_at(model, at), 0.25), (location.moments_at(model, at), 0.6)):
            normal = stats.norm(moments[0][0], np.sqrt(moments[1][0] + psi + spread[k]))
            log.append(normal.logpdf(value[k]) if punctual[k] else normal.logsf(cut[k]))
        assert abs(log[0] - log[1]) < places.LARGEST_DIFFERENCE
        total += log[0] - log[1]
    score = places.scored(model, pair, seen, punctual, spread, first)
    assert score[0] == pytest.approx(total * places.MEMORY / (places.MEMORY + 3), rel=1e-5)
    extreme = observations.Observed(np.full(4, -60.0), cut, np.ones(4), np.ones(4))
    limited = places.scored(model, pair, extreme, np.ones(4, bool), spread, np.array([True, False, False, False]))
    assert abs(limited[0] * (places.MEMORY + 1) / places.MEMORY - 2.5) == pytest.approx(places.LARGEST_DIFFERENCE)
    for nothing in ({**model, "restarts": np.zeros(1, np.int64)}, model):  # no fit yet, or no first look
        none = first if nothing is not model else np.zeros(4, bool)
        assert places.scored(nothing, pair, seen, punctual, spread, none).tolist() == [2.5]


def test_with_few_channels_nothing_is_fitted():
    policy, problem = make_policy("lane"), problem_with(14, 7)
    where = geometric(np.random.default_rng(0), 14, 7)[None]
    _, state = played(policy, problem, where, range(25), [0])
    first = policy.init(problem)
    assert state["client_place"].shape == (1, 14, 0)
    assert state["channel_place"].shape == (1, 7, 0)
    for name in ("place_line", "restarts", "place_score"):
        np.testing.assert_array_equal(state[name], first[name])
    assert not places.used(state).any()
    policy.check_state(state, problem)


def test_nothing_is_fitted_until_there_are_enough_looks_and_then_posteriors_are_probabilities():
    policy, problem = make_policy("lane"), problem_with(24, 8)
    where = geometric(np.random.default_rng(0), 24, 8)[None]
    before = after_first_looks(policy, problem, where, 1)
    assert before["restarts"][0] == 0
    np.testing.assert_array_equal(before["client_place"], np.float32(1 / CELLS))
    state = after_first_looks(policy, problem, where, 4)
    assert state["restarts"][0] == sum(share <= 4 for share in places.RESTARTS)
    for name in ("client_place", "channel_place"):
        np.testing.assert_allclose(state[name].sum(axis=-1), 1.0, atol=1e-4)
        assert state[name].max() > 5 / CELLS


def restarted(state, problem, **changed):
    """The places after a sweep in which a restart is due, the two candidates, and what is kept."""
    policy_state = {**state, **changed, "restarts": np.array([1])}
    spread = beliefs(policy_state).spread
    count, mean = (policy_state[name].astype(float) for name in ("information", "mean"))
    error = np.where(count[0] > 0, spread[0] / np.where(count[0] > 0, count[0], 1.0), np.inf)
    line = tuple(policy_state["place_line"][0])
    going_on = places._swept(
        places.Places(policy_state["client_place"][0], policy_state["channel_place"][0], line), mean[0], error
    )
    again = places._started(policy_state, 0)
    for _ in range(places.START_SWEEPS):
        again = places._swept(again, mean[0], error)
    return places.fitted(policy_state, count, mean, spread), going_on, again


def test_a_restart_keeps_the_start_with_the_larger_bound():
    policy, problem = make_policy("lane"), problem_with(48, 12)
    where = geometric(np.random.default_rng(3), 48, 12)[None]
    state = after_first_looks(policy, problem, where, 6)
    due = sum(share <= 6 for share in places.RESTARTS)
    kept, going_on, again = restarted(state, problem)
    assert going_on.bound > again.bound + 1.0  # 72 sweeps with what was learned, against 5
    np.testing.assert_array_equal(kept["client_place"][0], going_on.client)
    np.testing.assert_array_equal(kept["place_line"][0], going_on.line)
    assert kept["restarts"][0] == due
    corner = np.zeros((1, 12, CELLS), np.float32)
    corner[:, :, :2] = 0.5  # all channels at one place, from which sweeps hardly get away
    kept, going_on, again = restarted(state, problem, channel_place=corner)
    assert again.bound > going_on.bound + 1.0
    np.testing.assert_array_equal(kept["channel_place"][0], again.channel)
    np.testing.assert_array_equal(kept["place_line"][0], again.line)


@pytest.mark.parametrize("channels", [8, 12])
def test_replicas_with_places_do_not_depend_on_each_other(channels):
    """To the bit: neither the number of pairs of a round nor another replica's first look may change anything."""
    policy, seeds, rounds = make_policy("lane"), (5, 6, 7), range(12)
    problem, alone = (problem_with(3 * channels, channels, replicas) for replicas in (3, 1))
    where = np.array([geometric(np.random.default_rng(seed), 3 * channels, channels) for seed in seeds])
    start = in_use(after_first_looks(policy, problem, where, 4))
    singles = [{name: array[r : r + 1].copy() for name, array in start.items()} for r in range(3)]
    assignments, state = played(policy, problem, where, rounds, seeds, start)
    assert places.used(state).all()
    for r in range(3):
        chosen, single = played(policy, alone, where[r : r + 1], rounds, seeds[r : r + 1], singles[r])
        np.testing.assert_array_equal(chosen[:, 0], assignments[:, r])
        for name, array in single.items():
            together = state[name][r : r + 1]
            if name == "history":  # its number of spare rows is not part of what it means
                rows = int(single["slots"][0])
                array, together = array[:, :rows], together[:, :rows]
            np.testing.assert_array_equal(array, together, err_msg=name)


def in_use(state):
    """The state with scores with which the places are used in every replica."""
    assert np.all(state["restarts"] > 0)
    return {**state, "place_score": np.full_like(state["place_score"], 50.0)}


def test_a_run_with_places_continues_from_a_saved_state_to_the_bit(tmp_path):
    policy, problem, seeds = make_policy("lane"), problem_with(27, 9, 2), (1, 2)
    where = np.array([geometric(np.random.default_rng(seed), 27, 9) for seed in seeds])
    start = in_use(after_first_looks(policy, problem, where, 3))
    np.savez(tmp_path / "state.npz", **start)
    expected = played(policy, problem, where, range(20), seeds, start)
    with np.load(tmp_path / "state.npz") as stored:
        restored = policy.check_state(dict(stored), problem)
    found = played(policy, problem, where, range(20), seeds, restored)
    assert places.used(found[1]).any()
    np.testing.assert_array_equal(found[0], expected[0])
    for name, array in expected[1].items():
        np.testing.assert_array_equal(found[1][name], array, err_msg=name)


def test_clients_join_while_places_are_used():
    policy, problem = make_policy("lane"), problem_with(36, 12)
    where = geometric(np.random.default_rng(8), 48, 12)[None]
    state = in_use(after_first_looks(policy, problem, where[:, :36], 5))
    before = beliefs(state)
    more = replace(problem, clients=48, quotas=np.full((1, 48), 0.2))
    joined = policy.resize({name: array.copy() for name, array in state.items()}, problem, more)
    policy.check_state(joined, more)
    after = beliefs(joined)
    np.testing.assert_allclose(after.mean[:, :36], before.mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(joined["client_place"][0, 36:], np.float32(1 / CELLS))
    # Nothing is known about where the new clients are, so that a channel promises the same to all of them ...
    np.testing.assert_allclose(after.mean[0, 36:], np.broadcast_to(after.mean[0, 36], (12, 12)), rtol=1e-5)
    # ... and rounds go on, in which they find their places.
    assignments, later = played(policy, more, where, range(30), [0], joined)
    assert np.all((assignments[:, 0, 36:] >= 0).any(axis=0))
    assert np.all(later["client_place"][0, 36:].max(axis=-1) > 2 / CELLS)


def test_predictions_for_some_pairs_are_those_for_all_pairs_with_places():
    """One replica uses places, the other the factor model."""
    policy, problem = make_policy("lane"), problem_with(18, 9, 2)
    where = np.array([geometric(np.random.default_rng(seed), 18, 9) for seed in (1, 2)])
    state = {**after_first_looks(policy, problem, where, 3), "place_score": np.array([1.0, -1.0])}
    pair = tuple(index.ravel() for index in np.indices((2, 18, 9)))
    some, every = predicted(state, pair, placed_networks.DEADLINE_S), beliefs(state)
    np.testing.assert_allclose(some.mean, every.mean.ravel(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(some.location_variance, every.variance.ravel(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(some.spread, every.spread.ravel(), rtol=1e-4)
    by_factors = beliefs({**state, "place_score": np.full(2, -1.0)})
    np.testing.assert_array_equal(every.mean[1], by_factors.mean[1])
    assert np.abs(every.mean[0] - by_factors.mean[0]).max() > 0.1
