"""Theorems 2, 3 and 4 against brute force and hand computation, and a case where the bound is informative."""

import itertools
import math

import numpy as np
import pytest

from fedlane.theory import gaps, pseudo_regret, queue_stability, regret_bound
from fedlane.validate import InputError


def all_values(mu):
    """Return the smallest mean reward of every saturating matching."""
    clients, channels = mu.shape
    if clients >= channels:
        return {
            min(mu[i, j] for j, i in enumerate(chosen)) for chosen in itertools.permutations(range(clients), channels)
        }
    return {min(mu[i, j] for i, j in enumerate(chosen)) for chosen in itertools.permutations(range(channels), clients)}


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (4, 1), (1, 3), (6, 2)])
def test_gaps_by_brute_force(shape):
    rng = np.random.default_rng(shape)
    for trial in range(20):
        mu = rng.integers(0, 6, shape) / 5.0 if trial % 2 else rng.random(shape)
        values = sorted(all_values(mu), reverse=True)
        result = gaps(mu)
        assert result.best == values[0]
        assert result.largest == pytest.approx(values[0] - values[-1])
        second = values[1] if len(values) > 1 else -math.inf
        assert result.smallest == pytest.approx(values[0] - second)


def test_pseudo_regret_by_hand():
    """Two clients on one channel, with mean rewards 0.9 and 0.4; then on two channels, where the smaller counts."""
    one_channel = pseudo_regret([[0.9], [0.4]], np.array([[0, -1], [-1, 0], [-1, -1]]))
    np.testing.assert_allclose(one_channel, [0.0, 0.5, 1.4])
    two_channels = pseudo_regret([[0.9, 0.2], [0.8, 0.6]], np.array([[0, 1], [1, 0]]))
    np.testing.assert_allclose(two_channels, [0.0, 0.4])


def test_the_regret_bound_by_hand_where_it_is_informative():
    """Without quotas there are no queues: U = 2, N = 1, V = 1, Delta_min = 0.8."""
    bound = regret_bound(gaps([[0.9], [0.1]]), clients=2, channels=1, V=1.0, rounds=1000, largest_queue=0.0)
    assert bound.vacuous is None
    assert bound.value == pytest.approx(0.8 * (4 * 1 * 4 * math.log(1000) / 0.64 + 5))
    assert bound.value < 0.8 * 1000


def test_a_vacuous_regret_bound_gives_its_reason():
    reward_gaps = gaps([[0.9], [0.1]])
    queues = regret_bound(reward_gaps, clients=2, channels=1, V=1.0, rounds=1000, largest_queue=3.0)
    assert queues.value == math.inf
    assert "does not exceed the largest queue 3" in queues.vacuous
    large = regret_bound(reward_gaps, clients=2, channels=1, V=100.0, rounds=1000, largest_queue=0.0)
    assert large.value > 800
    assert "no policy's regret exceeds" in large.vacuous


def test_stable_and_growing_queues():
    rng = np.random.default_rng(0)
    stable = rng.random((400, 3)) * 5
    growing = stable.copy()
    growing[:, 1] += 0.5 * np.arange(400)
    assert queue_stability(stable).growth < 0.01
    assert queue_stability(stable).mean_rate < 5 / 400
    result = queue_stability(growing)
    assert result.growth == pytest.approx(0.5, abs=0.02)
    assert result.mean_rate == pytest.approx(0.5, abs=0.02)
    assert result.average == pytest.approx(0.25 * 399 + 2.5, abs=0.5)
    with pytest.raises(InputError, match="at least 4 rounds"):
        queue_stability(np.zeros((3, 2)))


def test_invalid_rewards_are_refused():
    for bad in ([1.0, 2.0], [[np.inf, 1.0]], [[np.nan]]):
        with pytest.raises(InputError, match="mean_rewards"):
            gaps(bad)
