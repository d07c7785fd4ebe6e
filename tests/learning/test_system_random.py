"""Randomness of a real client: the right distributions, from the operating system, never repeated."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from fedlane.learning import system_random
from fedlane.learning.local import train_locally
from fedlane.learning.models import Batch, make_model
from fedlane.learning.system_random import check_global_model, system_coins, system_normals, system_rows
from fedlane.privacy.audit_statistics import audit_scores
from fedlane.privacy.gaussian import gaussian_epsilon
from fedlane.records import MechanismSpec
from fedlane.validate import InputError
from support.client_records import one_client
from support.distributions import kolmogorov


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
    assert kolmogorov(numbers, ndtr) < 2.7
    assert numbers.std() == pytest.approx(1.0, rel=5 / np.sqrt(2 * len(numbers)))
    half = len(numbers) // 2
    assert abs(np.corrcoef(numbers[:half], numbers[half:])[0, 1]) < 5 / np.sqrt(half)


def test_everything_comes_from_the_operating_system(monkeypatch):
    requested = []

    def urandom(count):
        requested.append(count)
        return bytes(count)  # zeros: the smallest uniform, and every coin true

    monkeypatch.setattr(system_random.os, "urandom", urandom)
    assert system_coins((3, 4), 0.5).all()
    assert len(set(system_normals(5).tolist())) == 1
    assert requested == [8 * 12, 16 * 10]


def spec(**changes):
    values = {"batch_size": 50, "local_iterations": 3, "clip_norm": 1.0, "step_noise": 2.0, "sampling": "poisson"}
    return MechanismSpec.simple(np.array([[1000]]), **{**values, **changes})


def test_rows_are_samples_of_the_client_s_records_and_noise_of_the_right_size():
    rows = system_rows(spec(), 1000)
    assert rows.indices.shape == rows.mask.shape == (1, 3, rows.indices.shape[2])
    for indices, mask in zip(rows.indices[0], rows.mask[0], strict=True):
        chosen = indices[mask]
        assert len(set(chosen.tolist())) == len(chosen)
        assert 0 < len(chosen) < 110
    weights = torch.zeros(1, 50_000)
    rows.add_noise(weights, 0, torch.tensor([0.25]))
    assert float(weights.std()) == pytest.approx(0.25, rel=5 / np.sqrt(100_000))
    assert (float(rows.batch_size), float(rows.step_noise)) == (50, 2.0)


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({"sampling": "fixed"}, 1000, "Poisson samples"),
        ({"step_noise": 0.0}, 1000, "noise in every step"),
        ({}, 400, "made for more than 400 records"),
    ],
)
def test_a_mechanism_that_is_not_a_real_client_s_is_refused(changes, size, message):
    with pytest.raises(ValueError, match=message):
        system_rows(spec(**changes), size)


def test_models_that_no_honest_server_sends_are_refused():
    check_global_model(torch.full((1, 5), 3.0))
    for value, message in ((float("nan"), "not finite"), (float("inf"), "not finite"), (-2e3, "weights above 1000")):
        with pytest.raises(InputError, match=message):
            check_global_model(torch.tensor([[0.0, value]]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "softmax"])
def test_large_weights_cannot_round_the_noise_away(name):
    """A server sends biases of 2^20, where float32 has steps of 1/8, and the 14th of 14 equal records moves the sum
    across half a step: if the sum were rounded before noise is added, the record would show. z = 5, one step, q = 1."""
    model = make_model(name, (1, 2, 2), 10)
    first = model.initial(0)[None]
    first[:, -10:] = 2.0**20
    move = torch.zeros_like(first)
    picture = torch.full((1, 1, 2, 2, 1), 200 / 255)
    model.descend(first, Batch(picture, torch.eye(10)[None, :1]), 1.0, torch.full((1, 1), 1 / 13), move)
    per_record = -float(move[0, -10])
    rate = 0.0625 / (13.5 * abs(per_record))
    outcomes = []
    for size in (13, 14):
        scores = [equal_records_trained(model, first, size, rate, 5.0)[0, -10] - 2.0**20 for _ in range(1000)]
        outcomes.append(np.array(scores, float)[:, None] * -np.sign(per_record))
    result = audit_scores(
        *outcomes, np.ones(1), claim=gaussian_epsilon(0.2, 1e-5), delta=1e-5, confidence=0.999, gaussian=False
    )
    assert not result.flagged


def equal_records_trained(model, first, size, learning_rate, noise):
    """The weights after one step on ``size`` equal records, all in the sample, divided by 13."""
    images = torch.full((size, 2, 2, 1), 200, dtype=torch.uint8)
    targets = torch.nn.functional.one_hot(torch.zeros(size, dtype=torch.int64), 10).float()
    mechanism = MechanismSpec.simple(
        np.array([[size]]), batch_size=13, local_iterations=1, clip_norm=1.0, step_noise=noise, sampling="poisson"
    )
    weights = first.clone()
    train_locally(
        model,
        weights,
        one_client(images, targets),
        system_rows(replace(mechanism, sample_rate=np.ones((1, 1))), size),
        learning_rate,
        1.0,
    )
    return weights


@pytest.mark.parametrize("rate", [0.5, 0.05, 0.005])
def test_coins_have_exactly_their_rate(rate):
    """Two million coins: a rate that is 5% too large differs by 15 standard errors at 0.05, and by 5 at 0.005."""
    count = 2_000_000
    assert abs(system_coins((count,), rate).sum() - count * rate) < 4.9 * np.sqrt(count * rate * (1 - rate))


def test_every_weight_has_noise_of_its_own_in_every_step():
    """600 draws for each of 40 weights: variance within 6 standard errors, and no correlation between two weights."""
    rows = system_rows(spec(), 1000)
    drawn = torch.cat([rows.add_noise(torch.zeros(1, 40), step % 3, torch.tensor([1.0])) for step in range(600)])
    assert (drawn.var(dim=0) - 1).abs().max() < 6 * np.sqrt(2 / 600)
    correlation = torch.corrcoef(drawn.T) - torch.eye(40)
    assert correlation.abs().max() < 6 / np.sqrt(600)


def test_every_step_has_a_sample_of_its_own():
    """Two independent samples of 1000 records at rate 0.05 share 2.5 records on average; equal ones share 50."""
    shared = []
    for _ in range(40):
        rows = system_rows(spec(), 1000)
        samples = [set(indices[mask].tolist()) for indices, mask in zip(rows.indices[0], rows.mask[0], strict=True)]
        shared += [len(samples[0] & samples[1]), len(samples[1] & samples[2])]
    assert np.mean(shared) == pytest.approx(2.5, abs=6 * np.sqrt(2.5 / len(shared)))


def test_the_sizes_of_samples_vary_as_numbers_of_coins_do():
    """A sample of a fixed size, whose accounting would be another, has the right mean but no variance."""
    sizes = system_rows(spec(local_iterations=2000), 1000).mask[0].sum(dim=1).double()
    variance = 50 * 0.95
    assert float(sizes.mean()) == pytest.approx(50, abs=6 * np.sqrt(variance / len(sizes)))
    assert float(sizes.var()) == pytest.approx(variance, rel=6 * np.sqrt(2 / len(sizes)))
