"""Federations: against the slow reference, aggregation weights, independent replicas, noise."""

import numpy as np
import pytest
import torch

from fedlane.learning import layered_model, local, sampling
from fedlane.learning.aggregate import Uploads, aggregate_
from fedlane.learning.datasets import load_dataset
from fedlane.learning.federation import FederationBatch
from fedlane.learning.models import make_model
from fedlane.learning.partition import Partition, label_counts
from fedlane.learning.sampling import draw_samples
from fedlane.records import MechanismSpec
from support import slow
from support.tensors import assert_close

CLIENTS = 6
RATE = 0.1
FLOAT_TOLERANCE = 2e-4
"""Largest difference of a replica's weights, alone or among others, after 10 rounds: rounding depends on shapes."""


def federation(
    data,
    seeds=(0,),
    clip_norm=1.0,
    noise=0.0,
    batch=8,
    model="mlp",
    imbalance=0.4,
    iterations=3,
    sampling="fixed",
    step_noise=0.0,
):
    """A batch of federations; ``noise`` is the deviation of an upload's noise, ``step_noise`` a step's multiplier."""
    counts = np.stack(
        [label_counts(Partition("dominant", 0.8, imbalance), data.info.class_totals, CLIENTS, seed) for seed in seeds]
    )
    return FederationBatch(
        make_model(model, data.info.input_shape, 10),
        data,
        counts,
        seeds,
        MechanismSpec.simple(
            counts.sum(axis=2),
            batch_size=np.full(CLIENTS, batch) if np.isscalar(batch) else np.array(batch),
            local_iterations=iterations,
            clip_norm=clip_norm,
            upload_noise=noise * 8 / RATE if noise else 0.0,
            step_noise=step_noise,
            sampling=sampling,
        ),
        RATE,
    )


def images_of(data):
    return torch.from_numpy(np.array(data.train.images)).float() / 255, data.train.labels


def drawing(learner, round, replica, client):
    iterations = learner.mechanism.local_iterations
    counter = (round * CLIENTS + client) * iterations
    return learner.data, learner.sampling, learner.batch_key[replica], replica, client, counter, iterations


def drawn(learner, round, replica, client):
    indices, mask = draw_samples(*drawing(learner, round, torch.tensor([replica]), torch.tensor([client])))
    return indices[0] if mask.numel() == 0 else [row[keep] for row, keep in zip(indices[0], mask[0], strict=True)]


@pytest.mark.parametrize(
    ("clip_norm", "batch", "sampling"),
    [(1.0, 8, "fixed"), (None, 8, "fixed"), (0.5, [3, 4, 5, 6, 7, 8], "fixed"), (1.0, [3, 4, 5, 6, 7, 8], "poisson")],
)
def test_two_rounds_agree_with_the_slow_reference(data, clip_norm, batch, sampling):
    """Two replicas, late clients and an idle channel, unequal sizes and batches, against one sample at a time."""
    learner = federation(data, (3, 9), clip_norm, batch=batch, iterations=2, sampling=sampling)
    images, labels = images_of(data)
    expected = learner.weights.clone()
    client = np.array([[[0, 4, 2], [5, -1, 1]], [[1, 3, 4], [2, 0, 5]]])
    punctual = np.array([[[True, True, False], [True, False, True]], [[True, True, True], [False, False, True]]])
    for t in range(2):
        before = expected.clone()
        for r in range(2):
            chosen = client[t, r][punctual[t, r]]
            sizes = learner.sizes[r, chosen]
            expected[r] = sum(
                float(size / sizes.sum())
                * slow.train(
                    learner.model.layers,
                    before[r],
                    images,
                    labels,
                    drawn(learner, t, r, int(i)),
                    RATE,
                    clip_norm,
                    np.broadcast_to(batch, CLIENTS)[i],
                )
                for i, size in zip(chosen, sizes, strict=True)
            )
        learner.play(t, client[t], punctual[t])
    assert (expected - federation(data, (3, 9)).weights).abs().max() > 1e-2
    assert_close(learner.weights, expected, rtol=1e-3, atol=1e-5)


def test_batches_come_from_the_client_s_own_samples_and_have_its_size(data):
    learner = federation(data, (0, 1), batch=[3, 8, 8, 8, 8, 8])
    for r in range(2):
        owned = np.split(learner.data.order[r].numpy(), np.cumsum(learner.sizes[r])[:-1])
        assert sorted(np.concatenate(owned)) == list(range(8000))
        for i in range(CLIENTS):
            for row in drawn(learner, 4, r, i):
                assert len(set(row.tolist())) == len(row) == (3 if i == 0 else 8)
                assert set(row.tolist()) <= set(owned[i].tolist())


def test_a_client_with_less_than_a_batch_uses_all_its_records(data):
    """Batches of 2,000 where clients have 800 to 1,900 records: all of them, with or without another replica."""
    among, alone = (federation(data, seeds, batch=2000, imbalance=0.4) for seeds in ((0, 5), (5,)))
    owned = np.split(alone.data.order[0].numpy(), np.cumsum(alone.sizes[0])[:-1])
    for i in range(CLIENTS):
        rows = drawn(alone, 2, 0, i)
        for row, same in zip(rows, drawn(among, 2, 1, i), strict=True):
            assert torch.equal(row, same)
            assert len(row) == min(2000, len(owned[i]))
            if len(owned[i]) < 2000:
                assert sorted(row.tolist()) == sorted(owned[i].tolist())


def test_a_batch_takes_no_more_memory_than_the_largest_client(data, monkeypatch):
    """A batch of a billion records: every client trains on all of its records, and no more are reserved."""
    learner = federation(data, (0, 5), batch=10**9)
    assert learner.sampling.max_batch == learner.sizes.max()
    arguments = drawing(learner, 3, torch.tensor([0, 1]), torch.tensor([2, 4]))
    indices, mask = draw_samples(*arguments)
    assert indices.shape == (2, 3, learner.sizes.max())
    assert mask.sum(2).tolist() == [[learner.sizes[0, 2]] * 3, [learner.sizes[1, 4]] * 3]
    monkeypatch.setattr(sampling, "cpu_kernels", None)
    plain = draw_samples(*arguments)
    assert torch.equal(indices, plain[0])


def test_compiled_and_plain_draws_are_the_same_numbers(data, monkeypatch):
    """Samples are the same with and without Numba."""
    learner = federation(data, (0, 5), batch=[3, 8, 8, 8, 8, 8])
    replica, client = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 3, 5, 1])
    arguments = drawing(learner, 17, replica, client)
    compiled = draw_samples(*arguments)
    monkeypatch.setattr(sampling, "cpu_kernels", None)
    for a, b in zip(compiled, draw_samples(*arguments), strict=True):
        assert torch.equal(a, b)


def test_compiled_and_plain_poisson_samples_are_the_same(data, monkeypatch):
    learner = federation(data, (0, 5), batch=[3, 8, 8, 8, 8, 2000], sampling="poisson")
    for client in range(CLIENTS):
        compiled = drawn(learner, 17, 1, client)
        with monkeypatch.context() as patch:
            patch.setattr(sampling, "cpu_kernels", None)
            plain = drawn(learner, 17, 1, client)
        for a, b in zip(compiled, plain, strict=True):
            assert torch.equal(a, b)


def test_compiled_and_plain_training_agree(data, monkeypatch):
    compiled = plays(federation(data, range(8)))
    monkeypatch.setattr(local, "cpu_kernels", None)
    monkeypatch.setattr(sampling, "cpu_kernels", None)
    monkeypatch.setattr(layered_model, "mlp_tail", None)
    plain = plays(federation(data, range(8)))
    assert_close(compiled.weights, plain.weights, rtol=0, atol=FLOAT_TOLERANCE)


def test_partition_sums_survive_into_the_samples(data):
    learner = federation(data, (5,))
    counts = label_counts(Partition("dominant", 0.8, 0.4), data.info.class_totals, CLIENTS, 5)
    owned = np.split(learner.data.order[0].numpy(), np.cumsum(learner.sizes[0])[:-1])
    for i in range(CLIENTS):
        np.testing.assert_array_equal(np.bincount(data.train.labels[owned[i]], minlength=10), counts[i])


def test_aggregation_weights():
    sizes = np.array([[10.0, 30.0, 60.0], [1.0, 1.0, 2.0], [1.0, 1.0, 1.0]])
    client = np.array([[2, 0, -1], [0, 1, 2], [1, 0, 2]])
    punctual = np.array([[True, True, False], [False, True, True], [False, False, False]])
    uploads = Uploads.of(client, punctual, sizes)
    np.testing.assert_allclose(uploads.share, [6 / 7, 1 / 7, 1 / 3, 2 / 3])
    assert uploads.replica.tolist() == [0, 0, 1, 1]
    assert uploads.rank.tolist() == [0, 1, 0, 1]
    current = torch.full((3, 2), 5.0)
    aggregate_(current, torch.tensor([[7.0, 0.0], [0.0, 7.0], [3.0, 3.0], [6.0, 0.0]]), uploads)
    assert_close(current, torch.tensor([[6.0, 1.0], [5.0, 1.0], [5.0, 5.0]]))
    part = uploads.part(1, 3)
    assert part.replica.tolist() == [0, 0]


def test_a_round_without_punctual_clients_keeps_the_model(data):
    learner = federation(data, (0, 1), noise=1.0)
    before = learner.weights.clone()
    learner.play(0, np.array([[0, 1], [2, 3]]), np.array([[False, False], [True, False]]))
    assert torch.equal(learner.weights[0], before[0])
    assert not torch.equal(learner.weights[1], before[1])


def plays(learner, rounds=10, rows=slice(None)):
    rng = np.random.default_rng(0)
    for t in range(rounds):
        client = np.argsort(rng.random((8, CLIENTS)), axis=1)[:, :3]
        punctual = rng.random((8, 3)) < 0.8
        learner.play(t, client[rows], punctual[rows])
    return learner


def test_a_replica_learns_the_same_alone_and_among_others(data):
    seeds = (0, 1, 2, 7, 4, 5, 6, 3)
    among, alone = (
        plays(federation(data, seeds, noise=1e-3)),
        plays(federation(data, (7,), noise=1e-3), rows=slice(3, 4)),
    )
    for t in range(3):
        for a, b in zip(drawn(among, t, 3, 2), drawn(alone, t, 0, 2), strict=True):
            assert torch.equal(a, b)
    assert (among.weights[3] - alone.weights[0]).abs().max() < FLOAT_TOLERANCE
    assert (among.weights[3] - among.weights[2]).abs().max() > 0.01
    assert abs(among.evaluate().accuracy[3] - alone.evaluate().accuracy[0]) <= 0.002


def test_the_same_seed_gives_the_same_bits(data):
    first, second = (
        plays(federation(data, (4,), noise=1e-3), rows=slice(1)),
        plays(federation(data, (4,), noise=1e-3), rows=slice(1)),
    )
    assert torch.equal(first.weights, second.weights)
    assert first.evaluate().loss == second.evaluate().loss


def test_work_in_pieces_is_the_same_work(data, monkeypatch):
    """With little memory, replicas and test samples are processed in pieces."""
    whole = plays(federation(data, range(8)))
    monkeypatch.setattr("fedlane.learning.federation.CPU_MEMORY_BYTES", 4e6)
    pieces = plays(federation(data, range(8)))
    assert pieces._replicas_at_once(3) < 4
    assert_close(pieces.weights, whole.weights, rtol=0, atol=FLOAT_TOLERANCE)
    np.testing.assert_allclose(pieces.evaluate().accuracy, whole.evaluate().accuracy, atol=0.002)


def test_evaluation_agrees_with_the_slow_reference(data):
    learner = plays(federation(data, (0,)), rows=slice(1))
    evaluation = learner.evaluate()
    images = torch.from_numpy(np.array(data.test.images)).float() / 255
    logits = torch.stack([slow.scores(learner.model.layers, learner.weights[0], image) for image in images])
    labels = torch.from_numpy(data.test.labels)
    assert evaluation.accuracy[0] == float((logits.argmax(1) == labels).double().mean())
    assert evaluation.loss[0] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)


def test_the_noise_of_the_average_has_the_right_size(data):
    """sum p_i n_i has variance sum p_i^2 sigma_i^2: measured over the 50,890 weights, 5 standard errors."""
    quiet, noisy = federation(data, (0,)), federation(data, (0,), noise=0.5)
    client, punctual = np.array([[0, 3, 5]]), np.array([[True, False, True]])
    for learner in (quiet, noisy):
        learner.play(0, client, punctual)
    sizes = noisy.sizes[0, [0, 5]]
    share = sizes / sizes.sum()
    expected = 0.5 * np.sqrt(np.sum(share**2))
    measured = float((noisy.weights - quiet.weights).std())
    assert measured == pytest.approx(expected, rel=5 / np.sqrt(2 * 50_890))


def test_the_noise_of_a_step_has_the_right_size_and_is_independent_between_clients(data):
    """A step adds noise of deviation eta z C / b; that of two clients averages, and rounds are independent."""
    settings = {"batch": [8, 4, 8, 8, 8, 8], "iterations": 1, "clip_norm": 0.5, "sampling": "poisson"}
    quiet, noisy = federation(data, (0,), **settings), federation(data, (0,), **settings, step_noise=3.0)

    def noise(client, round):
        for learner in (quiet, noisy):
            learner.weights[:] = 0.0
            learner.play(round, np.array([client]), np.ones((1, len(client)), bool))
        return (noisy.weights - quiet.weights)[0]

    error = 5 / np.sqrt(2 * 50_890)
    assert float(noise([0], 0).std()) == pytest.approx(RATE * 3.0 * 0.5 / 8, rel=error)
    assert float(noise([1], 0).std()) == pytest.approx(RATE * 3.0 * 0.5 / 4, rel=error)
    share = noisy.sizes[0, [0, 2]] / noisy.sizes[0, [0, 2]].sum()
    both = RATE * 3.0 * 0.5 / 8 * np.sqrt(np.sum(share**2))
    assert float(noise([0, 2], 0).std()) == pytest.approx(both, rel=error)
    for other in (noise([1], 0), noise([2], 0), noise([0], 1)):
        assert abs(float(torch.corrcoef(torch.stack([noise([0], 0), other]))[0, 1])) < 5 / np.sqrt(50_890)


def test_the_noise_of_the_steps_is_independent(data):
    """With zero gradients, the variance after tau steps is tau times that of one step."""
    learner = federation(data, (0,), iterations=3, clip_norm=1e-12, sampling="poisson", step_noise=1e12)
    learner.weights[:] = 0.0
    learner.play(0, np.array([[4]]), np.array([[True]]))
    assert float(learner.weights.std()) == pytest.approx(RATE * np.sqrt(3) / 8, rel=5 / np.sqrt(2 * 50_890))


def test_a_mechanism_for_other_data_is_refused(data):
    learner = federation(data, (0,))
    for wrong in (learner.sizes - 500, learner.sizes[:, :3]):
        counts = np.zeros((*wrong.shape, 10), int)
        counts[..., 0] = wrong
        with pytest.raises(ValueError, match="the mechanism"):
            FederationBatch(learner.model, data, counts, (0,), learner.mechanism, RATE)


def test_memory_grows_by_indices_only(data):
    few, many = federation(data, (0,)), federation(data, tuple(range(20)))
    assert many.data.images.shape == few.data.images.shape
    assert many.data.images.dtype == torch.uint8
    assert many.data.order.dtype == torch.int32
    assert many.data.order.numel() == 20 * 8000


@pytest.mark.parametrize("name", ["softmax", "mlp"])
@pytest.mark.parametrize("compiled", [True, False])
def test_poisson_samples_with_too_few_places_lose_no_record(compiled, name, monkeypatch):
    """With one place instead of about 50, the same weights as with enough."""
    from dataclasses import replace

    from fedlane.learning import sampling

    if not compiled:
        monkeypatch.setattr(sampling, "cpu_kernels", None)

    def played(places):
        data = load_dataset("fashion-mnist-mini")
        counts = np.full((2, 4, 10), 40)
        spec = MechanismSpec.simple(
            counts.sum(axis=2), batch_size=16, local_iterations=2, clip_norm=1.0, sampling="poisson", step_noise=1.0
        )
        model = make_model(name, data.info.input_shape, data.info.classes)
        federation = FederationBatch(model, data, counts, [0, 1], spec, learning_rate=0.1)
        if places is not None:
            federation.sampling = replace(federation.sampling, max_batch=places)
        for t in range(3):
            federation.play(t, client=np.array([[0, 1], [2, 3]]), punctual=np.ones((2, 2), bool))
        return federation.weights

    assert_close(played(1), played(None), rtol=0, atol=1e-6)
