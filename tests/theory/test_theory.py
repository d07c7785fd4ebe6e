"""Theta, quotas and feasibility against hand computation and closed forms."""

import numpy as np
import pytest

from fedlane.theory import feasible_scale, quotas, theta


def dominant(clients=10, degree=0.8):
    return np.full((clients, clients), (1 - degree) / clients) + degree * np.eye(clients)


def test_theta_by_hand():
    """Two clients of sizes 100 and 300 with two classes: the overall distribution is (0.375, 0.625)."""
    p = np.array([[0.75, 0.25], [0.25, 0.75]])
    value = theta(p, [100, 300], [1.0, 2.0], [1e-3, 1e-5], local_iterations=5, batch_size=10)
    skew = np.array([2 * 0.375, 2 * 0.125])
    noise = [
        4 * 0.1 * np.sqrt(2 * 5 * np.log(1e3)) / (np.sqrt(np.pi) * 10 * 1.0),
        4 * (1 / 30) * np.sqrt(2 * 5 * np.log(1e5)) / (np.sqrt(np.pi) * 10 * 2.0),
    ]
    np.testing.assert_allclose(value, skew + noise)


def test_batch_size_cancels_and_infinite_epsilon_means_no_noise():
    p, sizes = dominant(), np.full(10, 6000)
    small = theta(p, sizes, 25.0, 1e-3, local_iterations=5, batch_size=1)
    np.testing.assert_allclose(small, theta(p, sizes, 25.0, 1e-3, local_iterations=5, batch_size=640))
    np.testing.assert_allclose(theta(p, sizes, np.inf, 1e-3, local_iterations=5, batch_size=1), 1.44)


@pytest.mark.parametrize(
    ("size", "dimension", "low", "high", "digits"),
    [(6000, None, 0.39998, 0.40001, 5), (6000, 50890, 0.395, 0.404, 3), (5000, 930826, 0.376, 0.417, 3)],
)
def test_quotas_of_the_paper_s_non_uniform_scheme(size, dimension, low, high, digits):
    """eps_i = 5 (floor((i - 1) / 2) + 3) barely changes the literal quotas; with sqrt(d) it does (reading 21)."""
    epsilon = 5 * (np.arange(10) // 2 + 3.0)
    divergence = theta(
        dominant(), np.full(10, size), epsilon, 1e-3, local_iterations=5, batch_size=64, dimension=dimension
    )
    beta = quotas(divergence, 4)
    assert beta.sum() == pytest.approx(4)
    assert np.all(np.diff(beta) >= -1e-12)  # pairs of clients have the same epsilon
    assert beta[0] == pytest.approx(low, abs=0.6 * 10**-digits)
    assert beta[-1] == pytest.approx(high, abs=0.6 * 10**-digits)


def test_quotas_by_hand_capped_and_with_zeros():
    np.testing.assert_allclose(quotas([1.0, 2.0, 4.0], 1), np.array([4, 2, 1]) / 7)
    np.testing.assert_allclose(quotas([1.0, 100.0], 2), [1.0, 2 / 101])
    np.testing.assert_allclose(quotas([0.0, 0.0, 1.0], 1), [0.5, 0.5, 0.0])
    np.testing.assert_allclose(quotas([0.0, 0.0, 0.0, 0.0], 2), 0.5)
    np.testing.assert_allclose(quotas([[1.0, 1.0], [1.0, 3.0]], 1), [[0.5, 0.5], [0.75, 0.25]])


@pytest.mark.parametrize("bad", [[-1.0, 1.0], [np.nan, 1.0]])
def test_quotas_refuse_invalid_divergences(bad):
    with pytest.raises(ValueError, match="theta must not"):
        quotas(bad, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0, 0.0]], [0], 1.0, 1e-3), "sizes must be greater than 0"),
        (([[1.0, 0.0]], [5], -1.0, 1e-3), "epsilon must be greater than 0"),
        (([[1.0, 0.0]], [5], 1.0, 1.0), "delta between 0 and 1"),
        (([[1.0, 0.0]], [5, 5], 1.0, 1e-3), "sizes must have shape"),
    ],
)
def test_theta_refuses_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        theta(*arguments, local_iterations=1, batch_size=1)


def test_feasible_scale_closed_forms():
    assert feasible_scale(np.ones((10, 4)), np.full(10, 0.4)) == pytest.approx(1.0)
    assert feasible_scale(np.ones((10, 4)), np.full(10, 0.35)) == pytest.approx(4 / 3.5)
    assert feasible_scale(np.full((10, 4), 0.5), np.full(10, 0.4)) == pytest.approx(0.5)
    assert feasible_scale(np.eye(2), [0.5, 1.0]) == pytest.approx(1.0)  # the second client needs its whole channel
    assert feasible_scale([[1.0, 0.0], [1.0, 0.0]], [0.6, 0.6]) == pytest.approx(1 / 1.2)  # one channel for two
    assert feasible_scale([[1.0], [0.0]], [0.5, 0.5]) == pytest.approx(0.0)
    assert feasible_scale(np.ones((2, 5)), [1.0, 1.0]) == pytest.approx(1.0)  # a client uses one channel at a time
    assert feasible_scale(np.ones((2, 2)), [0.0, 0.0]) == float("inf")


def test_feasible_scale_against_enumeration_of_matchings():
    """The same program with one weight for each of the 6 matchings of 3 clients and 2 channels."""
    from scipy.optimize import linprog

    rng = np.random.default_rng(1)
    p, beta = rng.random((3, 2)), rng.random(3)
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    served = np.zeros((3, 6))
    for m, (a, b) in enumerate(pairs):
        served[a, m] += p[a, 0]
        served[b, m] += p[b, 1]
    solution = linprog(
        np.r_[np.zeros(6), -1.0],
        A_ub=np.c_[-served, beta],
        b_ub=np.zeros(3),
        A_eq=[np.r_[np.ones(6), 0.0]],
        b_eq=[1.0],
    )
    assert feasible_scale(p, beta) == pytest.approx(-solution.fun)


def test_feasible_scale_refuses_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match="success must be"):
        feasible_scale(np.ones((3, 2)), np.ones(2))
