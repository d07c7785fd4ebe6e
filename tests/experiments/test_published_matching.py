"""The published matchings, edge by edge and greedy, against the fast ones."""

import numpy as np
import pytest

from fedlane.experiments import published_matching
from fedlane.experiments.claims.theory import published_times
from fedlane.experiments.published_matching import edge_by_edge_matching, loop_greedy_matching
from fedlane.matching import greedy_matching, max_min_matching


@pytest.mark.parametrize(("clients", "channels"), [(10, 4), (4, 10), (5, 5), (3, 1), (1, 3), (1, 1)])
def test_both_agree_with_the_fast_matchings(clients, channels):
    rng = np.random.default_rng(clients * channels)
    for _ in range(30):
        estimates = rng.normal(size=(clients, channels))
        order = rng.permutation(clients)
        np.testing.assert_array_equal(edge_by_edge_matching(estimates), max_min_matching(estimates))
        np.testing.assert_array_equal(loop_greedy_matching(estimates, order), greedy_matching(estimates, order))


def test_pruning_edge_by_edge_needs_many_hungarian_runs(monkeypatch):
    """As the paper describes OM: up to one run for each of the 40 edges; the greedy choice needs none."""
    runs = []
    solve = published_matching.linear_sum_assignment
    monkeypatch.setattr(published_matching, "linear_sum_assignment", lambda *a, **k: runs.append(1) or solve(*a, **k))
    rng = np.random.default_rng(0)
    for _ in range(5):
        runs.clear()
        published_matching.edge_by_edge_matching(rng.random((10, 4)))
        assert 20 < len(runs) <= 40
    greedy_s, optimal_s = published_times(networks=1, repeats=2)
    assert greedy_s.shape == optimal_s.shape == (2,)
