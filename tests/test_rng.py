"""Random streams: reproducible, and different for each seed, purpose, block and round."""

import numpy as np
import pytest

from fedlane.rng import RoundStreams, generator, hashed_bits, hashed_uniform, keys


def test_a_block_stream_depends_on_seed_purpose_and_block():
    draw = generator(3, "network", 5).random(4)
    np.testing.assert_array_equal(draw, generator(3, "network", 5).random(4))
    for other in (generator(4, "network", 5), generator(3, "truth", 5), generator(3, "network", 6)):
        assert not np.any(draw == other.random(4))


def test_a_round_stream_does_not_depend_on_earlier_rounds_or_neighbours():
    alone, among = RoundStreams([7], "policy"), RoundStreams([1, 7, 9], "policy")
    among.at(0).uniform(100)
    np.testing.assert_array_equal(alone.at(12).uniform(5)[0], among.at(12).uniform(5)[1])
    np.testing.assert_array_equal(among.at(12).uniform(5), among.at(12).uniform(5))
    assert not np.any(among.at(12).uniform(5) == among.at(13).uniform(5))
    assert not np.any(among.at(12).uniform(5)[0] == among.at(12).uniform(5)[1])


def test_rounds_never_overlap():
    """A round can draw 2^64 blocks before it reaches the numbers of the next; a million draws have none in common."""
    streams = RoundStreams([0], "policy")
    first, second = streams.at(0).uniform(10**6)[0].copy(), streams.at(1).uniform(10**6)[0]
    assert len(np.intersect1d(first, second)) <= 1


def test_permutations_are_uniform():
    """Chi-square over the 6 orders of 3, 6,000 draws: 5 degrees of freedom, 99.99% point 25.7."""
    orders = RoundStreams(range(6000), "policy").at(0).permutation(3)
    _, counts = np.unique(orders @ [9, 3, 1], return_counts=True)
    assert len(counts) == 6
    assert np.sum((counts - 1000) ** 2 / 1000) < 25.7


def test_uniform_numbers_have_the_replica_axis_first():
    rng = RoundStreams([0, 1], "policy").at(3)
    assert rng.uniform(4, 2).shape == (2, 4, 2)


def test_mean_and_variance_of_a_stream():
    draws = RoundStreams([0], "policy").at(0).uniform(10**5)
    assert draws.mean() == pytest.approx(0.5, abs=5 / np.sqrt(12e5))
    assert draws.var() == pytest.approx(1 / 12, rel=0.02)


def test_hashed_numbers_are_those_of_splitmix64():
    """The first outputs of splitmix64 from state 1234567, as its authors' reference program prints them."""
    reference = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert hashed_bits(np.array(1234567, np.uint64), np.arange(1, 5)).tolist() == reference


def test_hashed_numbers_depend_on_their_own_key_and_counters_only():
    table = hashed_uniform(keys([3, 7, 9], "drift")[:, None, None], np.arange(-2, 3)[:, None], np.arange(4))
    assert len(np.unique(table)) == table.size
    alone = hashed_uniform(keys([7], "drift")[:, None], 2, np.arange(4)[::-1])
    np.testing.assert_array_equal(alone[0, ::-1], table[1, 4])
    assert not np.any(hashed_uniform(keys([7], "fading")[:, None], 2, np.arange(4)) == table[1, 4])


def test_hashed_numbers_are_uniform_and_uncorrelated():
    """100 x 1,000 numbers over 20 cells: chi-square with 19 degrees of freedom, 99.99% point 52.4."""
    table = hashed_uniform(keys(range(100), "test")[:, None], np.arange(1000), 5)
    assert 0.0 < table.min() < table.max() < 1.0
    counts = np.bincount((table.ravel() * 20).astype(int), minlength=20)
    assert np.sum((counts - 5000) ** 2 / 5000) < 52.4
    for other in (np.roll(table, 1, axis=0), np.roll(table, 1, axis=1)):  # neighbours by seed and by counter
        assert abs(np.corrcoef(table.ravel(), other.ravel())[0, 1]) < 4 / 1e5**0.5
