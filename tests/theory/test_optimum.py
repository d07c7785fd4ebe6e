"""The optimum against hand-solved mixtures, brute force over all vertices, its dual and a simulation."""

from itertools import combinations, permutations

import numpy as np
import pytest

from fedlane import Scenario
from fedlane.simulation.setup import prepare
from fedlane.theory import column_generation, feasible_scale, gaps, optimum, quota_benchmark
from fedlane.theory.column_generation import PricingProblem
from fedlane.theory.matching_program import MatchingProgram, full_matchings
from fedlane.validate import InputError

CELLS = 12


def fixed_delays(delay_s, deadline_s=4.0, cells=400):
    """Distribution functions of delays that do not vary; more than the deadline is late."""
    edges = np.arange(1, cells + 1) - np.asarray(delay_s)[..., None] * cells / deadline_s
    return np.clip(edges, 0.0, 1.0), (np.asarray(delay_s) <= deadline_s).astype(float)


def random_network(seed, clients, channels):
    rng = np.random.default_rng(seed)
    cdf = np.sort(rng.random((clients, channels, CELLS)), axis=2)
    success = np.minimum(cdf[:, :, -1] + 0.1, 1.0)
    quotas = rng.random(clients)
    return cdf, success, 0.7 * feasible_scale(success, quotas) * quotas


def listed(cdf, success, deadline_s):
    """Every full matching by plain loops: its cost, and each client's chance to be punctual."""
    clients, channels = success.shape
    small = min(clients, channels)
    rows = []
    for chosen in permutations(range(max(clients, channels)), small):
        pairs = [(taker, seat) if clients >= channels else (seat, taker) for seat, taker in enumerate(chosen)]
        punctual = np.zeros(clients)
        product = np.ones(cdf.shape[2])
        for i, j in pairs:
            punctual[i] = success[i, j]
            product = product * cdf[i, j]
        rows.append((deadline_s * (1 - product.mean()), punctual))
    return np.array([cost for cost, _ in rows]), np.stack([punctual for _, punctual in rows], axis=1)


def best_vertex(cost, punctual, quotas):
    """Smallest cost over all basic solutions: k matchings, of which k - 1 quotas and the sum of weights decide."""
    best = np.inf
    for k in range(1, len(quotas) + 2):
        for used in combinations(range(len(cost)), k):
            for tight in combinations(range(len(quotas)), k - 1):
                rows = np.vstack([np.ones(k), punctual[np.ix_(tight, used)]])
                if abs(np.linalg.det(rows)) < 1e-12:
                    continue
                weights = np.linalg.solve(rows, [1.0, *quotas[list(tight)]])
                if weights.min() >= -1e-12 and np.all(punctual[:, used] @ weights >= quotas - 1e-9):
                    best = min(best, float(cost[list(used)] @ weights))
    return best


def test_two_clients_share_one_channel_by_hand():
    """The slow client needs 0.2 / 0.8 of the rounds at 3 s, the fast one takes the rest at 1 s."""
    cdf, _ = fixed_delays([[1.0], [3.0]])
    best = optimum(cdf, [[1.0], [0.8]], [0.5, 0.2], 4.0)
    assert best.mean_delay_s == pytest.approx(0.75 * 1 + 0.25 * 3, abs=1e-9)
    assert best.matchings.tolist() == [[0, -1], [-1, 0]]
    np.testing.assert_allclose(best.weights, [0.75, 0.25])
    np.testing.assert_allclose(best.prices_s, [0.0, 2.0 / 0.8], atol=1e-9)


def test_three_clients_on_two_channels_by_hand():
    """Client 2 takes 3 s with anybody, clients 0 and 1 together 2 s if 0 has channel 0, otherwise 4 s.

    Client 2 is due in 0.3 of the rounds: 0.3 * 3 + 0.7 * 2. Whoever shares these rounds with it, the others' quotas of
    0.8 are met: 0.7 together, and 0.15 each with client 2.
    """
    cdf, success = fixed_delays([[2.0, 2.0], [4.0, 1.0], [3.0, 3.0]])
    best = optimum(cdf, success, [0.8, 0.8, 0.3], 4.0)
    assert best.mean_delay_s == pytest.approx(0.7 * 2 + 0.3 * 3, abs=1e-9)
    program = MatchingProgram(cdf, success, np.array([0.8, 0.8, 0.3]), 4.0)
    shares = program.punctual(best.matchings) @ best.weights
    assert np.all(shares >= np.array([0.8, 0.8, 0.3]) - 1e-9)


def test_slow_clients_are_packed_together():
    """Two clients of 3 s, each due in a quarter of the rounds, share these rounds: 0.25 * 3 + 0.75 * 1."""
    cdf, success = fixed_delays([[1.0, 1.0], [1.0, 1.0], [3.0, 3.0], [3.0, 3.0]])
    assert optimum(cdf, success, [0.5, 0.5, 0.25, 0.25], 4.0).mean_delay_s == pytest.approx(1.5, abs=1e-9)


@pytest.mark.parametrize(("clients", "channels"), [(2, 1), (3, 2), (2, 3), (3, 3)])
@pytest.mark.parametrize("seed", range(4))
def test_against_all_vertices(clients, channels, seed):
    cdf, success, quotas = random_network(seed, clients, channels)
    cost, punctual = listed(cdf, success, 2.0)
    assert optimum(cdf, success, quotas, 2.0).mean_delay_s == pytest.approx(
        best_vertex(cost, punctual, quotas), abs=1e-9
    )


def test_the_expected_maximum_of_uniform_delays_is_two_thirds():
    cells = 1000
    middle = (np.arange(cells) + 0.5) / cells
    cdf = np.broadcast_to(middle, (2, 2, cells))
    assert optimum(cdf, np.ones((2, 2)), [1.0, 1.0], 3.0).mean_delay_s == pytest.approx(2.0, abs=1e-5)


def test_late_uploads_cost_the_deadline_and_serve_nobody():
    cdf, success = fixed_delays([[9.0], [1.0]])
    assert optimum(cdf, success, [0.0, 0.5], 4.0).mean_delay_s == pytest.approx(1.0)
    with pytest.raises(InputError, match="no policy can serve these quotas: the best possible policy serves 0 of them"):
        optimum(cdf, success, [0.1, 0.5], 4.0)


@pytest.mark.parametrize(("clients", "channels"), [(5, 3), (3, 5), (6, 2)])
def test_the_dual_certifies_the_optimum(clients, channels):
    """Weak duality with the prices gives the same value, and only quotas that are just met have a price."""
    cdf, success, quotas = random_network(5, clients, channels)
    best = optimum(cdf, success, quotas, 2.0)
    cost, punctual = listed(cdf, success, 2.0)
    assert np.all(best.prices_s >= -1e-12)
    assert quotas @ best.prices_s + (cost - best.prices_s @ punctual).min() == pytest.approx(
        best.mean_delay_s, abs=1e-9
    )
    assert best.lower_bound_s == pytest.approx(best.mean_delay_s, abs=1e-9)
    assert best.gap < 1e-9
    program = MatchingProgram(cdf, success, quotas, 2.0)
    shares = program.punctual(best.matchings) @ best.weights
    assert np.all(shares >= quotas - 1e-9)
    assert np.all((best.prices_s < 1e-9) | (shares < quotas + 1e-9))
    assert best.weights.sum() == pytest.approx(1.0)
    rng = np.random.default_rng(0)
    mixtures = rng.dirichlet(np.full(len(cost), 0.05), 2000)
    serving = np.all(mixtures @ punctual.T >= quotas, axis=1)
    assert np.all(mixtures[serving] @ cost >= best.mean_delay_s - 1e-9)


def test_the_mixture_keeps_its_promise_in_a_simulation():
    """Plays the mixture for 3000 rounds of the simulator; tolerances are 4.5 standard errors."""
    setup = prepare(Scenario.load("paper-fmnist"), [4])
    network, rounds = setup.network, 3000
    truth, quotas = network.distributions(128), 0.875 * setup.problem.quotas[0]
    best = optimum(truth.cdf[0], truth.success[0], quotas, network.deadline_s)
    rng = np.random.default_rng(1)
    delay_s, punctual = np.empty(rounds), np.zeros((rounds, network.clients))
    for t, m in enumerate(rng.choice(len(best.weights), rounds, p=best.weights)):
        total_s = network.delays(t, np.zeros(1), best.matchings[m][None]).total_s[0]
        delay_s[t] = np.fmin(total_s, network.deadline_s)[best.matchings[m] >= 0].max()
        punctual[t] = total_s <= network.deadline_s
    # The distributions come from 10,000 draws of every pair; four of them decide a round's delay.
    error = np.sqrt(delay_s.var() / rounds + 4 * delay_s.var() / 10_000)
    assert error < 0.02 * best.mean_delay_s
    assert abs(delay_s.mean() - best.mean_delay_s) < 4.5 * error
    share_error = np.sqrt(quotas * (1 - quotas) / rounds) + 0.5 / 100
    assert np.all(punctual.mean(axis=0) >= quotas - 4.5 * share_error)


def test_a_mixed_matching_list_is_complete():
    for clients, channels, count in ((10, 4, 5040), (4, 10, 5040), (3, 3, 6), (1, 1, 1)):
        matchings = full_matchings(clients, channels)
        assert matchings.shape == (count, clients)
        assert len(np.unique(matchings, axis=0)) == count
        used = np.sort(np.where(matchings >= 0, matchings, channels + np.arange(clients)), axis=1)
        assert np.all(np.diff(used, axis=1) > 0)
        assert np.all((matchings >= 0).sum(axis=1) == min(clients, channels))


@pytest.mark.parametrize("clients", [20, 1000])
def test_networks_too_large_for_an_exact_solution_are_refused(clients):
    cdf, success = np.full((clients, 8, 4), 0.5), np.ones((clients, 8))
    with pytest.raises(InputError, match="matchings, more than the 200,000 that are solved exactly: ask for a gap"):
        optimum(cdf, success, np.zeros(clients), 1.0)


def test_column_generation_refuses_what_it_cannot_prove(monkeypatch):
    with pytest.raises(InputError, match="limited to 1000 pairs"):
        optimum(np.full((200, 8, 4), 0.5), np.ones((200, 8)), np.zeros(200), 1.0, gap=0.5)
    rng = np.random.default_rng(0)
    cdf = np.sort(rng.random((14, 7, 8)), axis=2)
    monkeypatch.setattr(column_generation, "THOROUGH_STEPS", 50)
    with pytest.raises(InputError, match=r"the gap that could be proved is .*, more than the 0\.0001 asked for"):
        optimum(cdf, cdf[:, :, -1], np.full(14, 0.2), 1.0, gap=1e-4)


@pytest.mark.parametrize(("clients", "channels"), [(7, 4), (4, 7), (5, 5)])
def test_column_generation_finds_the_exact_optimum(clients, channels):
    cdf, success, quotas = random_network(8, clients, channels)
    exact = optimum(cdf, success, quotas, 2.0)
    program = MatchingProgram(cdf, success, quotas, 2.0)
    for gap in (0.2, 0.0):
        found = column_generation.generate_columns(program, gap)
        assert found.gap <= gap + 1e-6
        assert found.lower_bound_s - 1e-9 <= exact.mean_delay_s <= found.mean_delay_s + 1e-9
        assert np.all(program.punctual(found.matchings) @ found.weights >= quotas - 1e-6)
    assert found.mean_delay_s == pytest.approx(exact.mean_delay_s, rel=1e-5)


@pytest.mark.parametrize("steps", [1, 5, 40, 10_000])
def test_the_bound_of_the_pricing_problem_is_valid_at_every_limit(steps):
    for seed in range(5):
        cdf, success, quotas = random_network(seed, 7, 4)
        prices = 3.0 * np.random.default_rng(seed).random(7)
        cost, punctual = listed(cdf, success, 2.0)
        smallest = (cost - prices @ punctual).min()
        priced = PricingProblem(MatchingProgram(cdf, success, quotas, 2.0)).solve(prices, steps)
        assert priced.bound_s <= smallest + 1e-9
        assert priced.value_s >= smallest - 1e-9
        if steps == 10_000:
            assert priced.bound_s == pytest.approx(smallest)
            assert priced.value_s == pytest.approx(smallest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quotas": [0.1]}, r"cdf must be \(U, N, G\), success \(U, N\) and quotas \(U,\), got"),
        ({"cdf": np.ones((2, 1))}, "cdf must be"),
        ({"success": [[2.0], [0.5]]}, "success must be between 0 and 1"),
        ({"quotas": [np.nan, 0.1]}, "quotas must be between 0 and 1"),
        ({"deadline_s": 0.0}, "deadline_s must be greater than 0 and finite, got 0"),
        ({"gap": -0.1}, "gap must be at least 0 and finite"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    arguments = {"cdf": np.ones((2, 1, 3)), "success": [[1.0], [1.0]], "quotas": [0.1, 0.1], "deadline_s": 1.0}
    with pytest.raises(InputError, match=message):
        optimum(**{**arguments, **changes})


def test_the_benchmark_with_quotas_by_hand_and_against_all_vertices():
    """Without quotas it is mu*; with quotas, the best vertex of the program over all matchings."""
    assert quota_benchmark([[0.9], [0.4]], [[1.0], [0.5]], [0.0, 0.0]) == pytest.approx(0.9)
    assert quota_benchmark([[0.9], [0.4]], [[1.0], [0.5]], [0.0, 0.2]) == pytest.approx(0.6 * 0.9 + 0.4 * 0.4)
    for seed in range(4):
        cdf, success, quotas = random_network(seed, 3, 2)
        mu = cdf.mean(axis=2)
        rewards = [min(mu[i, 0], mu[k, 1]) for i, k in permutations(range(3), 2)]
        _, punctual = listed(cdf, success, 1.0)
        expected = -best_vertex(-np.array(rewards), punctual, quotas)
        assert quota_benchmark(mu, success, quotas) == pytest.approx(expected, abs=1e-9)
        assert quota_benchmark(mu, success, np.zeros(3)) == pytest.approx(gaps(mu).best)
    with pytest.raises(InputError, match="no policy can serve"):
        quota_benchmark([[0.9], [0.4]], [[1.0], [0.5]], [0.9, 0.9])
