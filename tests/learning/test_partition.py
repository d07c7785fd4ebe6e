"""Label counts: sums, the paper's degree, short classes, reproducibility."""

import itertools

import numpy as np
import pytest

from fedlane.learning.architectures import parameter_count
from fedlane.learning.partition import Partition, check_learnable, label_counts

TOTALS = np.full(10, 6000)


KINDS, CLIENTS, DEGREES = ("dominant", "dirichlet", "shards", "iid"), (1, 3, 10, 15, 777), (0.0, 0.3, 0.8, 1.0)


@pytest.mark.parametrize("imbalance", [0.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_goes_to_one_client(kind, imbalance):
    for clients, degree in itertools.product(CLIENTS, DEGREES):
        counts = label_counts(Partition(kind, degree, imbalance), TOTALS, clients, seed=3)
        assert counts.shape == (clients, 10)
        assert counts.min() >= 0
        assert counts.sum(axis=0).tolist() == TOTALS.tolist(), (clients, degree)


@pytest.mark.parametrize("kind", KINDS)
def test_without_imbalance_sizes_differ_by_one_at_most(kind):
    for clients, degree in itertools.product(CLIENTS, DEGREES):
        sizes = label_counts(Partition(kind, degree, 0.0), TOTALS, clients, seed=3).sum(axis=1)
        assert sizes.max() - sizes.min() <= 1, (clients, degree)


@pytest.mark.parametrize("kind", KINDS)
def test_with_an_imbalance_of_one_half_sizes_lie_on_both_sides_of_the_mean(kind):
    for clients, degree in itertools.product((10, 15, 777), DEGREES):
        sizes = label_counts(Partition(kind, degree, 0.5), TOTALS, clients, seed=3).sum(axis=1)
        mean = 60_000 / clients
        assert 0.45 * mean < sizes.min() < 0.8 * mean, (clients, degree)
        assert 1.2 * mean < sizes.max() < 2.2 * mean, (clients, degree)


def test_dominant_shares_follow_the_paper_s_degree():
    counts = label_counts(Partition("dominant", 0.8, 0.0), TOTALS, 10, seed=0)
    np.testing.assert_array_equal(counts, 120 + 4800 * np.eye(10, dtype=int))


def test_a_class_that_runs_short_is_shared():
    """15 clients: classes 0-4 are dominant at two clients each, which is more than exists."""
    counts = label_counts(Partition("dominant", 0.8, 0.0), TOTALS, 15, seed=0)
    share = counts / counts.sum(axis=1, keepdims=True)
    dominant = share[np.arange(15), np.arange(15) % 10]
    assert dominant[[0, 1, 10, 11]].min() > 0.6
    assert dominant[5:10].min() > 0.8
    np.testing.assert_allclose(counts[:5, :5].diagonal(), counts[10:, :5].diagonal(), atol=30)


def test_degree_orders_dirichlet_and_shards():
    def skew(kind, degree):
        counts = np.concatenate([label_counts(Partition(kind, degree, 0.0), TOTALS, 20, seed) for seed in range(5)])
        return np.abs(counts / counts.sum(1, keepdims=True) - 0.1).sum(1).mean()

    for kind in ("dirichlet", "shards"):
        values = [skew(kind, degree) for degree in (0.0, 0.3, 0.6, 0.9)]
        assert values == sorted(values)
        assert values[0] < 0.01
        assert values[-1] > 1.0


@pytest.mark.parametrize("degree", [0.99, 0.9999, 0.999999])
def test_dirichlet_near_one_gives_one_class_each(degree):
    """A tiny concentration must not underflow to equal shares. No class runs short, so that shares are unchanged."""
    counts = label_counts(Partition("dirichlet", degree, 0.0), np.full(10, 600), 4, seed=0)
    assert (counts.max(axis=1) / counts.sum(axis=1)).min() > 0.3
    shares = label_counts(Partition("dirichlet", degree, 0.0), np.full(10, 6000), 20, seed=1)
    assert np.sort(shares.max(axis=1) / shares.sum(axis=1))[10] > 0.6


def test_shards_have_the_stated_number_of_classes():
    counts = label_counts(Partition("shards", 0.8, 0.0), TOTALS, 10, seed=1)
    assert np.sum(counts > 60, axis=1).max() <= 2  # two shards, and a few samples that fill up rounding


def test_counts_depend_on_the_seed():
    settings = Partition("dirichlet", 0.5, 0.3)
    np.testing.assert_array_equal(label_counts(settings, TOTALS, 12, 5), label_counts(settings, TOTALS, 12, 5))
    assert np.any(label_counts(settings, TOTALS, 12, 5) != label_counts(settings, TOTALS, 12, 6))


def test_more_clients_than_samples_are_refused_for_learning_only():
    with pytest.raises(ValueError, match=r"network\.clients must be at most 60000"):
        check_learnable(TOTALS, 60_001)
    counts = label_counts(Partition("iid", 0.0, 0.0), TOTALS, 60_001, 0)
    np.testing.assert_array_equal(counts.sum(axis=0), 2 * TOTALS)
    with pytest.raises(ValueError, match=r"samples_per_client must be at most 0, because 60001 clients"):
        label_counts(Partition("iid", 0.0, 0.0, 1), TOTALS, 60_001, 0)


@pytest.mark.parametrize("kind", ["dominant", "dirichlet", "shards", "iid"])
@pytest.mark.parametrize("imbalance", [0.0, 0.8])
def test_samples_per_client_set_the_mean_size(kind, imbalance):
    counts = label_counts(Partition(kind, 0.8, imbalance, 800), TOTALS, 10, seed=3)
    sizes = counts.sum(axis=1)
    assert sizes.sum() == 8000
    assert (counts.sum(axis=0) <= TOTALS).all()
    if imbalance:
        assert 100 < sizes.min() < 600
        assert 1000 < sizes.max() < 1800
    else:
        assert sizes.tolist() == [800] * 10
    if kind == "dominant":
        dominant = counts[np.arange(10), np.arange(10)] / sizes
        np.testing.assert_allclose(dominant, 0.8 + 0.2 / 10, atol=0.02)


def test_all_samples_are_the_split_without_the_field():
    for imbalance in (0.0, 0.5):
        plain = Partition("dirichlet", 0.5, imbalance)
        whole = Partition("dirichlet", 0.5, imbalance, 6000)
        np.testing.assert_array_equal(label_counts(plain, TOTALS, 10, 4), label_counts(whole, TOTALS, 10, 4))


def test_more_samples_per_client_than_the_set_has_are_refused():
    message = (
        r"data\.samples_per_client must be at most 6000, because 10 clients share 60000 training samples, got 6001"
    )
    with pytest.raises(ValueError, match=message):
        label_counts(Partition("iid", 0.0, 0.0, 6001), TOTALS, 10, 0)


def test_parameter_counts():
    assert parameter_count("mlp", (1, 28, 28), 10) == 50_890
    assert parameter_count("cnn", (3, 32, 32), 10) == 930_826
    assert parameter_count("softmax", (1, 28, 28), 10) == 7_850
