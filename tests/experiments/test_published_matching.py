"""The published matchings, edge by edge and greedy, against the fast ones."""

import numpy as np
import pytest

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


def test_pruning_edge_by_edge_takes_longer_than_the_greedy_choice():
    """About 40 Hungarian runs against four choices: the factor is far above what a busy machine can hide."""
    greedy, optimal = published_times(networks=2, repeats=5)
    assert np.median(optimal) > 3 * np.median(greedy)
