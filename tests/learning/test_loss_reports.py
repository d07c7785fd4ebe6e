"""Reported losses: equal to a slow loop on the same sample, clipped and noised as stated, of punctual clients only."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedlane.learning.federation import FederationBatch
from fedlane.learning.local import TrainingBatch, as_inputs, train_locally
from fedlane.learning.loss_reports import add_loss_noise_, estimated_losses, record_losses
from fedlane.learning.models import make_model
from fedlane.learning.partition import Partition, label_counts
from fedlane.learning.sampling import draw_samples
from fedlane.privacy.loss_release import with_losses
from fedlane.records import LossQuery, MechanismSpec
from support import slow

CLIENTS, ROUND = 4, 3


def federation(
    data, query=None, seeds=(3, 9), model="mlp", sampling="fixed", rate=0.1, batch=8, step_noise=0.0, device="cpu"
):
    """Federations of four clients of about 100 records that report losses."""
    partition = Partition("dominant", 0.8, 0.5, 100)
    counts = np.stack([label_counts(partition, data.info.class_totals, CLIENTS, seed) for seed in seeds])
    sizes = counts.sum(axis=2)
    spec = MechanismSpec.simple(
        sizes, batch_size=batch, local_iterations=2, clip_norm=1.0, step_noise=step_noise, sampling=sampling
    )
    query = query or LossQuery(np.inf, 0.0, spec.step_noise)
    spec = replace(spec, loss_query=replace(query, first_step_noise=spec.step_noise + query.noise))
    return FederationBatch(make_model(model, data.info.input_shape, 10), data, counts, seeds, spec, rate, device)


def slow_losses(data, learner, replica, client):
    """The losses of a client's first sample in the round, one record at a time, by PyTorch's own layers."""
    rows = torch.tensor([replica]), torch.tensor([client])
    counter = (ROUND * CLIENTS + rows[1]) * 2
    indices, mask = draw_samples(learner.data, learner.sampling, learner.batch_key[rows[0]], *rows, counter, 2)
    chosen = indices[0, 0] if mask.numel() == 0 else indices[0, 0][mask[0, 0]]
    images = torch.from_numpy(np.array(data.train.images)).float() / 255
    if images.ndim == 3:
        images = images[..., None]
    weights = learner.weights[replica]
    scores = torch.stack([slow.scores(learner.model.layers, weights, images[s]) for s in chosen.tolist()])
    labels = torch.from_numpy(np.array(data.train.labels)[chosen.numpy()]).long()
    return torch.nn.functional.cross_entropy(scores, labels, reduction="none").double().numpy()


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("model", ["mlp", "softmax", "cnn"])
def test_exact_losses_equal_a_slow_loop_on_the_first_sample(data, model, sampling):
    learner = federation(data, model=model, sampling=sampling)
    expected = {(r, i): slow_losses(data, learner, r, i) for r, i in ((0, 2), (0, 0), (1, 1))}
    learner.play(ROUND, np.array([[2, 0], [1, 3]]), np.array([[True, True], [True, False]]))
    latest = learner.losses.latest
    for at, losses in expected.items():
        assert latest.mean[at] == pytest.approx(losses.mean(), rel=1e-5)
        assert latest.rms[at] == pytest.approx(np.sqrt(np.mean(losses**2)), rel=1e-5)
    reported = np.zeros((2, CLIENTS), bool)
    reported[tuple(np.array(list(expected)).T)] = True
    np.testing.assert_array_equal(~np.isnan(latest.mean), reported)  # not the late client, nor those without a channel
    assert not latest.protected


def test_a_record_s_loss_is_clipped_before_it_is_summed(data):
    """Some records of the sample are above the clip and some below."""
    learner = federation(data, LossQuery(2.3, 0.0, np.zeros(1)), batch=64)
    losses = slow_losses(data, learner, 0, 2)
    assert (losses > 2.3).any()
    assert (losses < 2.3).any()
    learner.play(ROUND, np.array([[2], [2]]), np.ones((2, 1), bool))
    clipped = np.minimum(losses, 2.3)
    assert learner.losses.latest.mean[0, 2] == pytest.approx(clipped.mean(), rel=1e-5)
    assert learner.losses.latest.rms[0, 2] == pytest.approx(np.sqrt(np.mean(clipped**2)), rel=1e-5)


def test_losses_of_extreme_weights_stay_within_the_clip(data):
    """Scores that overflow give infinite losses or no number; they count as the clip."""
    model = make_model("mlp", (1, 28, 28), 10)
    weights = torch.stack([torch.full((model.size,), value) for value in (0.0, 3e38, -3e38, np.nan, 1e20)])
    weights[4, ::2] *= -1
    x, targets = torch.rand(5, 3, 28, 28, 1), torch.eye(10)[torch.randint(0, 10, (5, 3))]
    losses = record_losses(model, weights, x, targets, 2.0)
    assert ((losses >= 0) & (losses <= 2.0)).all()
    assert (losses[0] == 2.0).all()  # ln 10 is above the clip
    assert losses.max() == 2.0


def test_the_released_sums_have_the_stated_mean_and_variance():
    """20,000 releases of the same sums: each entry has deviation z sqrt(2) L, and the two are independent."""
    count, query = 20_000, LossQuery(1.5, 2.0, np.zeros(1))
    sums = torch.tensor([[7.0, 5.0]], dtype=torch.float64).repeat(count, 1)
    released = add_loss_noise_(sums, query, torch.full((count,), 12345), torch.arange(count)).numpy()
    deviation = 2.0 * np.sqrt(2.0) * 1.5
    standard_error = deviation / np.sqrt(count)
    np.testing.assert_allclose(released.mean(0), [7.0, 5.0], atol=4 * standard_error)
    np.testing.assert_allclose(released.std(0), deviation, atol=4 * standard_error / np.sqrt(2))
    assert abs(np.corrcoef(released.T)[0, 1]) < 4 / np.sqrt(count)
    again = add_loss_noise_(sums.clone() * 0, query, torch.full((count,), 12346), torch.arange(count)).numpy()
    assert abs(np.corrcoef(released[:, 0], again[:, 0])[0, 1]) < 4 / np.sqrt(count)  # another seed's noise


@pytest.mark.slow
def test_reports_are_unbiased_with_the_stated_deviation(data):
    """300 rounds at a learning rate of almost 0, so that the model stays: the mean report is the client's clipped mean.

    A report's variance has two parts: noise, (z sqrt(2) L)^2, and the Poisson sample, q (1 - q) times the sum of the
    squared contributions, both over (q |D|)^2.
    """
    clip, noise, rounds = 3.0, 1.5, 300
    learner = federation(data, LossQuery(clip, noise, np.zeros(1)), (3,), "softmax", "poisson", rate=1e-12, batch=32)
    size = int(learner.sizes[0, 1])
    owned = learner.data.order[0, learner.data.start[0, 1] :][:size].long()
    x = as_inputs(learner.data.images[owned][None])
    losses = record_losses(learner.model, learner.weights, x, learner.data.targets[owned][None], clip)[0]
    losses, expected_records = losses.numpy(), 32.0
    reports = []
    for t in range(rounds):
        learner.play(t, np.array([[1]]), np.ones((1, 1), bool))
        reports.append((learner.losses.latest.mean[0, 1], learner.losses.latest.rms[0, 1] ** 2))
    rate = 32 / size
    truth = losses.mean(), np.mean(losses**2)
    for values, mean, power, unit in zip(np.array(reports).T, truth, (1, 2), (1.0, clip), strict=True):
        contribution = losses**power / unit
        variance = (noise * np.sqrt(2) * clip) ** 2 + rate * (1 - rate) * np.sum(contribution**2)
        deviation = unit * np.sqrt(variance) / expected_records
        assert values.mean() == pytest.approx(mean, abs=4 * deviation / np.sqrt(rounds))
        assert values.std() == pytest.approx(deviation, abs=4 * deviation / np.sqrt(2 * rounds))
    assert learner.losses.latest.protected


def test_estimates_of_negative_squares_are_zero():
    mean, rms = estimated_losses(np.array([[-3.0, -1.0], [4.0, 8.0]]), np.array([2.0, 4.0]), LossQuery(2.0, 1.0, None))
    assert mean.tolist() == [-1.5, 1.0]
    assert rms.tolist() == [0.0, 2.0]


def test_the_first_step_has_the_noise_that_pays_for_the_losses(data):
    learner = federation(data, step_noise=1.0, sampling="poisson")
    seen = []
    rows = TrainingBatch(
        torch.zeros(1, 3, 2, dtype=torch.int64),
        torch.ones(1, 3, 2, dtype=torch.bool),
        torch.tensor([4]),
        torch.tensor([1.0]),
        lambda move, step, deviation: seen.append(deviation.item()),
        first_noise=torch.tensor([1.25]),
    )
    train_locally(learner.model, learner.weights[:1].clone(), learner.data, rows, 0.1, 2.0)
    assert seen == pytest.approx([0.1 * 2.0 * 1.25 / 4, 0.1 * 2.0 / 4, 0.1 * 2.0 / 4])


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("model", ["mlp", "softmax"])
def test_a_replica_reports_the_same_bits_alone_and_among_others(data, sampling, model):
    """Batches larger than some clients' data sets, so that replicas have different numbers of places."""
    seeds, results = (3, 9, 5), []
    for chosen in (seeds, (9,)):
        learner = federation(data, LossQuery(3.0, 1.2, np.zeros(1)), chosen, model, sampling, batch=90, step_noise=0.5)
        for t in range(3):
            row = np.array([0, 2, 3]) if t % 2 else np.array([1, 3, -1])
            punctual = np.tile(row >= 0, (len(chosen), 1))
            learner.play(t, np.tile(row, (len(chosen), 1)), punctual)
        at = chosen.index(9)
        results.append((learner.losses.latest.mean[at], learner.losses.latest.rms[at], learner.weights[at].numpy()))
    for among, alone in zip(*results, strict=True):
        np.testing.assert_array_equal(among, alone)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_a_gpu_reports_what_a_cpu_reports(data, model, sampling):
    """Samples are the same on both; products of a GPU are rounded more. One replica, which would else be captured."""
    reports = []
    for device in ("cpu", "cuda"):
        learner = federation(data, seeds=(3,), model=model, sampling=sampling, device=device)
        learner.play(0, np.array([[2, 0, 1]]), np.array([[True, True, False]]))
        reports.append(learner.losses.latest)
    for name in ("mean", "rms"):
        np.testing.assert_allclose(getattr(reports[1], name), getattr(reports[0], name), rtol=0.02)
    assert np.isnan(reports[1].mean[0, [1, 3]]).all()


def test_a_mechanism_without_a_guarantee_reports_exactly():
    spec = MechanismSpec.simple(np.full((1, 2), 50), batch_size=5, local_iterations=1)
    for name in ("none", "paper"):
        query = with_losses(replace(spec, name=name), 4.0, 4.0).loss_query
        assert (query.clip, query.noise, query.protected) == (np.inf, 0.0, False)
