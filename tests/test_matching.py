"""Matchings against brute force, the paper's Theorem 2, and edge cases of the interface."""

import itertools
import math
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment

from fedlane.matching import assignment, greedy_matching, max_min_matching, max_sum_matching, random_matching

SIZES = [(u, n) for u in range(1, 7) for n in range(1, 6)]


def matchings(clients, channels, size):
    """Every matching of ``size`` pairs, as tuples of (client, channel)."""
    for chosen in itertools.combinations(range(clients), size):
        for order in itertools.permutations(range(channels), size):
            yield tuple(zip(chosen, order, strict=True))


def brute_force(e):
    """(cardinality, bottleneck, +inf pairs, finite sum) of the best of all matchings."""
    clients, channels = e.shape
    for size in range(min(clients, channels), 0, -1):
        best = None
        for pairs in matchings(clients, channels, size):
            values = [e[p] for p in pairs]
            if -math.inf in values:
                continue
            score = (size, min(values), values.count(math.inf), math.fsum(v for v in values if v < math.inf))
            best = score if best is None else max(best, score)
        if best is not None:
            return best
    return (0, math.inf, 0, 0.0)


def score(e, assignment):
    """The same four numbers of an assignment, which must be a matching."""
    pairs = [(i, j) for i, j in enumerate(assignment) if j >= 0]
    assert len({j for _, j in pairs}) == len(pairs)
    values = [e[p] for p in pairs]
    assert -math.inf not in values
    return (
        len(values),
        min(values, default=math.inf),
        values.count(math.inf),
        math.fsum(v for v in values if v < math.inf),
    )


def assert_optimal(e, relative=1e-12):
    actual, best = score(e, max_min_matching(e)), brute_force(e)
    finite = np.abs(e[np.isfinite(e)]).max(initial=0.0)
    assert actual[:3] == best[:3]
    assert abs(actual[3] - best[3]) <= relative * max(finite, 1e-300)


@pytest.mark.parametrize(("clients", "channels"), SIZES)
def test_brute_force_agrees_on_every_small_size(clients, channels):
    rng = np.random.default_rng(clients * 10 + channels)
    for _ in range(12 if clients * channels > 20 else 40):
        assert_optimal(rng.random((clients, channels)))


@pytest.mark.parametrize(("clients", "channels"), SIZES)
def test_brute_force_agrees_on_ties_infinities_and_forbidden_edges(clients, channels):
    rng = np.random.default_rng(99 + clients * 10 + channels)
    for values in ([0.0, 1.0], [0.0, 1.0, np.inf], [1.0, 2.0, 3.0, -np.inf], [-np.inf, -np.inf, 0.0, np.inf], [7.0]):
        for _ in range(4 if clients * channels > 20 else 12):
            assert_optimal(rng.choice(values, (clients, channels)))


@settings(max_examples=150, deadline=None)
@given(
    arrays(
        np.float64,
        st.tuples(st.integers(1, 5), st.integers(1, 4)),
        elements=st.one_of(
            st.floats(-2e307, 2e307, allow_nan=False),
            st.sampled_from([0.0, 1.0, -1.0, 2e307, -2e307, 5e-324, np.inf, -np.inf]),
        ),
    )
)
def test_brute_force_agrees_on_any_values(e):
    actual, best = score(e, max_min_matching(e)), brute_force(e)
    assert actual[:3] == best[:3]
    assert abs(actual[3] - best[3]) <= 1e-12 * max(np.abs(e[np.isfinite(e)]).max(initial=0.0), 1e-290)


def bottleneck_by_search(e):
    """The bottleneck of a large matrix, by bisection over its values with SciPy's matching."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    values = np.unique(e)
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high + 1) // 2
        matched = maximum_bipartite_matching(csr_array((e >= values[middle]).astype(np.int8)), perm_type="column")
        if np.sum(matched >= 0) == min(e.shape):
            low = middle
        else:
            high = middle - 1
    return values[low]


@pytest.mark.parametrize("shape", [(120, 60), (60, 120), (90, 90), (400, 30)])
@pytest.mark.parametrize("kind", ["uniform", "client effect", "bad channel", "coarse"])
def test_large_matrices_against_scipy(shape, kind):
    """Matrices that are only partly read: bottleneck by bisection, sum by SciPy's assignment on the pruned graph."""
    rng = np.random.default_rng([*shape, *kind.encode()])
    e = rng.random(shape)
    if kind == "client effect":
        e += rng.random((shape[0], 1))
    elif kind == "bad channel":
        e[:, 0] *= 1e-3
    elif kind == "coarse":
        e = np.floor(e * 20)
    a = max_min_matching(e)
    rows = np.flatnonzero(a >= 0)
    bottleneck = bottleneck_by_search(e)
    assert e[rows, a[rows]].min() == bottleneck
    pruned = np.where(e >= bottleneck, e, -1e6)
    i, j = linear_sum_assignment(pruned, maximize=True)
    assert e[rows, a[rows]].sum() == pytest.approx(pruned[i, j].sum(), abs=1e-9)


@pytest.mark.parametrize("kind", ["client effect", "uniform", "coarse", "equal", "one column for two rows"])
@pytest.mark.parametrize("shape", [(200, 100), (100, 300), (150, 150)])
def test_many_rows_are_matched_exactly(shape, kind):
    """More than 64 rows start with an auction; the sum is that of SciPy."""
    rng = np.random.default_rng([*shape, *kind.encode()])
    e = rng.random(shape)
    if kind == "client effect":
        e += 3 * rng.random((shape[0], 1))
    elif kind == "coarse":
        e = np.floor(e * 4)
    elif kind == "equal":
        e[:] = 0.5
    elif kind == "one column for two rows":
        e[:, : shape[1] // 2] += 10 * rng.random((shape[0], 1))
    a = max_sum_matching(e)
    rows = np.flatnonzero(a >= 0)
    assert len(rows) == len(set(a[rows])) == min(shape)
    i, j = linear_sum_assignment(e, maximize=True)
    assert e[rows, a[rows]].sum() == pytest.approx(e[i, j].sum(), rel=1e-12)


@pytest.mark.slow
def test_prices_that_prove_nothing_are_discarded(monkeypatch):
    """An auction that overshoots leaves a column with a price but without a row: the matching is computed again."""
    edges = assignment.Edges(np.array([0, 2]), np.array([2, 4]), np.array([0, 1, 0, 1]), np.array([9.0, 8.0, 9.0, 1.0]))
    calls = []

    def overshoot(edges, cost, duals):
        calls.append("auction")
        duals.price[2] = -5.0
        duals.potential[:] = [cost[0], cost[2]]

    source = assignment.assign.py_func
    functions = {**source.__globals__, "_hold_auctions": overshoot, "_FEW_ROWS": 1}
    assign = types.FunctionType(source.__code__, functions)
    assert assign(edges, 3, False).tolist() == [1, 0]
    assert calls == ["auction"]


def test_max_sum_agrees_with_scipy():
    rng = np.random.default_rng(4)
    for shape in [(10, 4), (4, 10), (7, 7), (200, 40), (1, 1)]:
        e = rng.normal(size=shape)
        a = max_sum_matching(e)
        rows = np.flatnonzero(a >= 0)
        i, j = linear_sum_assignment(e, maximize=True)
        assert len(rows) == min(shape)
        assert e[rows, a[rows]].sum() == pytest.approx(e[i, j].sum(), abs=1e-10)


def test_max_sum_differs_from_max_min_where_it_should():
    e = np.array([[10.0, 1.0], [9.0, 2.0], [3.0, 3.0]])
    assert max_min_matching(e).tolist() == [0, -1, 1]
    e = np.array([[10.0, 4.0], [5.0, 0.0]])
    assert max_sum_matching(e).tolist() == [0, 1]  # 10 + 0 beats 4 + 5
    assert max_min_matching(e).tolist() == [1, 0]


def test_the_sum_decides_among_bottleneck_optimal_matchings():
    e = np.array([[1.0, 5.0, 0.0], [9.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    assert max_min_matching(e).tolist() == [1, 0, 2]


def test_batches_are_solved_one_by_one():
    rng = np.random.default_rng(5)
    e = rng.random((3, 4, 6, 3))
    together = max_min_matching(e)
    assert together.shape == (3, 4, 6)
    for index in np.ndindex(3, 4):
        np.testing.assert_array_equal(together[index], max_min_matching(e[index]))


def test_an_empty_side_matches_no_client():
    assert max_min_matching(np.zeros((3, 0))).tolist() == [-1, -1, -1]
    assert max_min_matching(np.zeros((0, 3))).shape == (0,)
    assert max_min_matching(np.zeros((0, 4, 2))).shape == (0, 4)


@pytest.mark.parametrize("solve", [max_min_matching, max_sum_matching, lambda e: greedy_matching(e, [0, 1])])
def test_nan_is_refused(solve):
    with pytest.raises(ValueError, match=r"NaN, first at \(1, 0\)"):
        solve([[1.0, 2.0], [np.nan, 0.0]])


def test_an_array_with_one_axis_is_refused():
    with pytest.raises(ValueError, match="at least 2 axes"):
        max_min_matching([1.0, 2.0])


@pytest.mark.parametrize(("clients", "channels"), [(4, 3), (3, 4), (5, 3), (4, 4), (2, 4)])
def test_theorem_2_some_greedy_order_is_optimal(clients, channels):
    rng = np.random.default_rng(clients * 7 + channels)
    orders = np.array(list(itertools.permutations(range(clients))))
    for _ in range(20):
        e = rng.integers(0, 6, (clients, channels)) + rng.random((clients, channels)) * rng.integers(2)
        all_greedy = greedy_matching(np.broadcast_to(e, (len(orders), clients, channels)), orders)
        best = max(score(e, a)[1] for a in all_greedy)
        assert best == brute_force(e)[1]
        assert all(score(e, a)[1] <= best for a in all_greedy)


def test_greedy_serves_in_order_and_breaks_ties_to_the_lowest_channel():
    e = [[5.0, 5.0, 1.0], [5.0, 4.0, 3.0], [9.0, 9.0, 9.0], [0.0, 0.0, 0.0]]
    assert greedy_matching(e, [0, 1, 2, 3]).tolist() == [0, 1, 2, -1]
    assert greedy_matching(e, [3, 2, 1, 0]).tolist() == [-1, 2, 1, 0]


def test_greedy_gives_no_channel_where_only_forbidden_ones_are_left():
    e = [[1.0, -np.inf], [2.0, -np.inf]]
    assert greedy_matching(e, [1, 0]).tolist() == [-1, 0]


@pytest.mark.parametrize("order", [[0, 0], [0, 2], [0], [[0, 1]]])
def test_greedy_refuses_an_invalid_order(order):
    with pytest.raises(ValueError, match="order must"):
        greedy_matching(np.ones((2, 2)), order)


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_unavailable_clients_take_no_places_in_a_random_matching(channels):
    """As many available clients as there are channels get one each, and every one of them equally often."""
    rng = np.random.default_rng(0)
    available = np.tile([True, False, True, True, False, True], (6000, 1))
    found = random_matching(available, rng.random((6000, 6)), rng.random((6000, channels)))
    served = found >= 0
    assert not np.any(served & ~available)
    assert np.all(served.sum(axis=1) == min(4, channels))
    share = min(4, channels) / 4
    error = (share * (1 - share) / 6000) ** 0.5
    np.testing.assert_allclose(served.mean(axis=0), share * available[0], atol=5 * error)
    for channel in range(channels):
        chance = min(1.0, 4 / channels)  # of being used
        used = np.sum(found == channel, axis=1)
        assert used.max() == 1
        assert used.mean() == pytest.approx(chance, abs=5 * (chance * (1 - chance) / 6000) ** 0.5)
