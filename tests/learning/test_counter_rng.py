"""Counter-based random numbers: distinct and equally likely samples, normal numbers, independent replicas."""

import numpy as np
import pytest
import torch
from scipy.special import bdtrc, ndtr
from scipy.special import kolmogorov as kolmogorov_tail

from fedlane.learning.counter_rng import (
    add_normals_,
    bits,
    box_muller,
    keys,
    largest_poisson_batch,
    normals,
    poisson_positions,
    sample_positions,
    seeded_normals,
)
from support.distributions import exponential_cdf, kolmogorov, uniform_cdf
from support.tensors import assert_close

CPU = torch.device("cpu")


def positions(size, count, draws, seed=0, max_batch=None):
    key = keys([seed], "batches", CPU).expand(draws)
    sizes, counts = torch.full((draws,), size), torch.full((draws,), count)
    return sample_positions(key, torch.arange(draws), sizes, counts, max_batch or count)[:, :count]


@pytest.mark.parametrize(("size", "count"), [(6000, 64), (100, 64), (64, 64), (65, 64), (7, 1), (1, 1)])
def test_positions_are_distinct_and_in_range(size, count):
    drawn = positions(size, count, 300)
    assert drawn.min() >= 0
    assert drawn.max() < size
    assert all(len(torch.unique(row)) == count for row in drawn)


def test_every_sample_is_equally_likely():
    """20,000 draws of 10 out of 37: each is included with probability 10 / 37; 5 standard errors."""
    drawn = positions(37, 10, 20_000)
    share = torch.bincount(drawn.reshape(-1), minlength=37).double() / 20_000
    p = 10 / 37
    assert (share - p).abs().max() < 5 * np.sqrt(p * (1 - p) / 20_000)


def test_samples_smaller_than_the_largest_are_equally_likely_too():
    """10 out of 37 in an array of 64 places: distinct, and all equally likely."""
    drawn = positions(37, 10, 20_000, max_batch=64)
    assert drawn.shape == (20_000, 10)
    assert (drawn.sort(dim=1).values.diff(dim=1) > 0).all()
    share = torch.bincount(drawn.reshape(-1), minlength=37).double() / 20_000
    assert (share - 10 / 37).abs().max() < 5 * np.sqrt(10 / 37 * 27 / 37 / 20_000)


def test_draws_depend_only_on_key_and_counter():
    def drawn(seeds, counter):
        count = torch.full((len(seeds),), 8)
        return sample_positions(keys(seeds, "b", CPU), torch.full((len(seeds),), counter), count * 12, count, 8)

    single, pair = drawn([7], 5), drawn([1, 7], 5)
    assert torch.equal(single[0], pair[1])
    assert not torch.equal(pair[0], pair[1])
    assert not torch.equal(single, drawn([7], 6))


def test_bits_are_balanced_and_uncorrelated():
    random = bits(torch.tensor(3), torch.arange(20_000))
    ones = torch.stack([(random >> k) & 1 for k in range(64)]).double()
    assert (ones.mean(1) - 0.5).abs().max() < 5 * 0.5 / np.sqrt(20_000)
    assert torch.corrcoef(ones).fill_diagonal_(0).abs().max() < 5 / np.sqrt(20_000)


@pytest.mark.parametrize("source", [normals, box_muller])
def test_normals_are_normal(source):
    numbers = source(keys([0], "noise", CPU), torch.tensor(4), 100_000)[0].double().numpy()
    assert kolmogorov(numbers, ndtr) < 2.23
    assert np.abs(numbers).max() < 7


@pytest.mark.parametrize("source", [normals, box_muller])
def test_normals_belong_to_their_replica_and_round(source):
    alone, among = (source(keys(seeds, "noise", CPU), torch.tensor(4), 999) for seeds in ([7], [3, 7]))
    assert torch.equal(alone[0], among[1])
    for a, b in ((among[0], among[1]), (alone[0], source(keys([7], "noise", CPU), torch.tensor(5), 999)[0])):
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 5 / np.sqrt(999)


def test_poisson_positions_are_independent_coins():
    """Inclusion of records and of pairs, and the spread of batch sizes, are those of coins; 5 standard errors each."""
    trials, size, rate = 20_000, 40, 0.15
    full = torch.full((trials,), size)
    positions, mask = poisson_positions(
        torch.full((trials,), 99), torch.arange(trials), full, torch.full((trials,), rate, dtype=torch.float64), size
    )
    chosen = torch.zeros(trials, size).scatter_add_(1, positions, mask.float())
    assert int(chosen.max()) == 1  # distinct
    share = chosen.mean(0)
    assert (share - rate).abs().max() < 5 * (rate * (1 - rate) / trials) ** 0.5
    batch = chosen.sum(1)
    variance = size * rate * (1 - rate)
    assert abs(float(batch.mean()) - size * rate) < 5 * (variance / trials) ** 0.5
    assert float(batch.var()) == pytest.approx(variance, rel=5 * (2.2 / trials) ** 0.5)
    pairs = chosen.T @ chosen / trials
    pairs.fill_diagonal_(rate**2)
    assert (pairs - rate**2).abs().max() < 6 * rate / trials**0.5


def test_poisson_rate_one_draws_everything_and_a_tiny_rate_nothing():
    rate = torch.tensor([1.0, 1e-9], dtype=torch.float64)
    positions, mask = poisson_positions(torch.tensor([1, 2]), torch.tensor([5, 6]), torch.tensor([7, 7]), rate, 7)
    assert positions[0].tolist() == list(range(7))
    assert mask[0].all()
    assert not mask[1].any()


@pytest.mark.parametrize(("size", "rate"), [(6000, 64 / 6000), (600, 10 / 600), (50, 0.5), (20, 1.0)])
def test_the_largest_poisson_batch_is_hardly_ever_exceeded(size, rate):
    batch = largest_poisson_batch(np.array([[size]]), np.array([[rate]]))
    assert bdtrc(batch, size, rate) <= 1e-12
    assert batch == size or bdtrc(batch - 1 - batch // 8, size, rate) > 1e-12  # and it is not far too large


@pytest.mark.parametrize("count", [1, 2, 2501, 50_890])
def test_compiled_normals_are_the_reference_s(count):
    """The float32 polynomials against double precision."""
    key, counter = torch.tensor([5, -7, 2**62]), torch.tensor([1, 2, 3])
    deviation = torch.tensor([1.0, 2.0, 0.5])
    compiled = add_normals_(torch.zeros(3, count), key, counter, deviation)
    reference = torch.stack([seeded_normals(seed, count) for seed in bits(key, counter).tolist()])
    assert_close(compiled, reference * deviation[:, None], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_normals_on_a_cpu_are_normal_pairs_without_correlation():
    """Kolmogorov-Smirnov tests of the numbers, of the pairs' radii and of their angles, over 60 seeds."""
    tests = []
    for seed in range(60):
        numbers = normals(torch.tensor([seed * 7919]), torch.tensor(seed), 100_000)[0].double().numpy()
        first, second = numbers[:50_000], numbers[50_000:]
        angle = np.arctan2(second, first) / (2 * np.pi) + 0.5
        tests.append([kolmogorov(numbers, ndtr), kolmogorov((first**2 + second**2) / 2, exponential_cdf),
                      kolmogorov(angle, uniform_cdf)])  # fmt: skip
        for lag in (1, 2, 1000, 50_000):
            assert abs(np.mean(numbers[:-lag] * numbers[lag:])) < 6 / np.sqrt(len(numbers) - lag)
    for p_values in kolmogorov_tail(np.array(tests)).T:
        assert kolmogorov(p_values, uniform_cdf) < 2.23


@pytest.mark.slow
def test_the_tails_of_normals_on_a_cpu_reach_six_sigma():
    """Shares beyond 3 to 6 sigma of 200 million numbers, within 6 standard errors (at 6 sigma: 0.4 expected)."""
    levels, seen, count = np.array([3.0, 4.0, 5.0, 6.0]), np.zeros(4), 0
    largest = 0.0
    for counter in range(10):
        numbers = normals(torch.arange(10), torch.tensor(counter), 2_000_000).abs_()
        seen += [float((numbers > level).sum()) for level in levels]
        count += numbers.numel()
        largest = max(largest, float(numbers.max()))
    expected = 2 * ndtr(-levels) * count
    assert np.all(np.abs(seen - expected) < 6 * np.sqrt(expected))
    assert 5.2 < largest < 6.7  # the smallest uniform number, 2^-32, gives 6.66
