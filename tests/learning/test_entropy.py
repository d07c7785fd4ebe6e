"""A real client's randomness: the right distributions, from the operating system, and never twice the same."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

import fedlane.learning.entropy as entropy
from fedlane.learning.entropy import system_coins, system_normals, system_rows


def test_coins_have_their_rate():
    """5 standard errors; extremes are exact."""
    coins = system_coins((400, 500), 0.03)
    assert abs(coins.mean() - 0.03) < 5 * np.sqrt(0.03 * 0.97 / coins.size)
    assert system_coins((100,), 1.0).all()
    assert not system_coins((1000,), 1e-15).any()
    with pytest.raises(ValueError, match="rate must be"):
        system_coins((1,), 0.0)


def test_normals_are_normal_and_independent():
    numbers = system_normals(200_000)
    assert kstest(numbers, "norm").pvalue > 1e-6
    assert numbers.std() == pytest.approx(1.0, rel=5 / np.sqrt(2 * len(numbers)))
    half = len(numbers) // 2
    assert abs(np.corrcoef(numbers[:half], numbers[half:])[0, 1]) < 5 / np.sqrt(half)


def test_everything_comes_from_the_operating_system(monkeypatch):
    asked = []

    def urandom(count):
        asked.append(count)
        return bytes(count)  # zeros: the smallest uniform, and every coin true

    monkeypatch.setattr(entropy.os, "urandom", urandom)
    assert system_coins((3, 4), 0.5).all()
    assert len(set(system_normals(5).tolist())) == 1
    assert asked == [8 * 12, 16 * 10]


def test_rows_are_samples_of_the_client_s_records_and_noise_of_the_right_size():
    rows = system_rows(1000, 0.05, iterations=3, batch_size=50, step_noise=2.0)
    assert rows.indices.shape == rows.mask.shape == (1, 3, rows.indices.shape[2])
    for indices, mask in zip(rows.indices[0], rows.mask[0], strict=True):
        chosen = indices[mask]
        assert len(set(chosen.tolist())) == len(chosen)
        assert 0 < len(chosen) < 110
    weights = torch.zeros(1, 50_000)
    rows.add_noise(weights, 0, torch.tensor([0.25]))
    assert float(weights.std()) == pytest.approx(0.25, rel=5 / np.sqrt(100_000))
    assert not torch.equal(system_rows(1000, 0.5, 1, 500, 0.0).mask.sum(), torch.tensor(0))
    assert system_rows(10, 0.5, 1, 5, 0.0).add_noise is None
