"""Training of the two-layer network on a CPU: samples of different lengths without padding, noise with the update."""

import pytest
import torch

from fedlane.learning import counter_rng, layered_model
from fedlane.learning.clipping import clipping_slack
from fedlane.learning.counter_rng import CounterNoise, bits, seeded_normals
from fedlane.learning.local import ClientData, TrainingBatch, train_locally
from fedlane.learning.models import LayeredModel, make_model
from support.tensors import assert_close

RECORDS, CLIP, RATE, BATCH = 40, 0.7, 0.3, 4
LENGTHS = ((5, 0, 9), (1, 7, 3), (0, 0, 2), (6, 6, 6))
"""Number of records in each step's sample, for four rows; some samples are empty."""


@pytest.fixture
def data():
    source = torch.Generator().manual_seed(0)
    images = torch.randint(256, (RECORDS, 4, 4, 1), generator=source, dtype=torch.uint8)
    targets = torch.nn.functional.one_hot(torch.arange(RECORDS) % 10, 10).float()
    empty = torch.empty(0)
    return ClientData(images, targets, (images / 255.0).flatten(1).square().sum(1), empty, empty, empty)


def batch_of_rows(noise=0.0, rows=slice(None), spread=True):
    """The records of `LENGTHS`; with ``spread``, the places without a record lie between the others."""
    source = torch.Generator().manual_seed(1)
    count = torch.tensor(LENGTHS)
    indices = torch.stack([torch.randperm(RECORDS, generator=source)[:9] for _ in range(12)]).view(4, 3, 9)
    mask = torch.arange(9) < count[..., None]
    if spread:
        indices, mask = indices.flip(2), mask.flip(2)
    key, counter = torch.arange(4) * 7919, torch.arange(4) * 3
    add_noise = CounterNoise(key[rows], counter[rows]) if noise else None
    lengths = torch.full((4,), BATCH)
    return TrainingBatch(indices[rows], mask[rows], lengths[rows], torch.full((4,), noise)[rows], add_noise)


def trained(data, rows, clip_norm=CLIP, magnitude=1.0, model=None):
    model = model or make_model("mlp", (1, 4, 4), 10)
    weights = torch.stack([model.initial(seed) for seed in range(len(rows.indices))]) * magnitude
    with torch.no_grad():
        train_locally(model, weights, data, rows, RATE, clip_norm)
    return weights


@pytest.mark.parametrize("clip_norm", [CLIP, 50.0, None])
@pytest.mark.parametrize("spread", [True, False])
def test_unpadded_samples_train_like_padded_ones(data, clip_norm, spread, monkeypatch):
    noise = 0.0 if clip_norm is None else 0.5
    unpadded = trained(data, batch_of_rows(noise, spread=spread), clip_norm)
    monkeypatch.setattr(layered_model, "mlp_tail", None)
    monkeypatch.setattr(counter_rng, "HAS_KERNELS", False)
    padded = trained(data, batch_of_rows(noise, spread=spread), clip_norm)
    assert_close(unpadded, padded, rtol=1e-4, atol=5e-5)
    if noise:
        assert (padded - trained(data, batch_of_rows(), clip_norm)).abs().max() > 0.1 * noise


def test_products_are_computed_over_the_records_alone(data, monkeypatch):
    """No padding enters a product, and every record does, once."""
    seen = []
    real = LayeredModel.descend

    def descend(self, weights, batch, clip_norm, scale, into=None):
        seen.append((batch.x.shape[0], batch.starts.diff().tolist(), scale.tolist()))
        real(self, weights, batch, clip_norm, scale, into)

    monkeypatch.setattr(LayeredModel, "descend", descend)
    trained(data, batch_of_rows())
    for step, (samples, lengths, scale) in enumerate(seen):
        assert lengths == [row[step] for row in LENGTHS]
        assert samples == len(scale) == sum(lengths)
        assert scale == pytest.approx([RATE / BATCH] * samples)


def test_a_row_trains_the_same_alone_and_among_others(data):
    """A row's products have the shape of its own sample; in its second step the row alone has no record at all."""
    model = make_model("mlp", (1, 4, 4), 10)
    among = trained(data, batch_of_rows(0.5))
    alone = model.initial(0)[None].clone()
    with torch.no_grad():
        train_locally(model, alone, data, batch_of_rows(0.5, slice(0, 1)), RATE, CLIP)
    assert_close(among[:1], alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 33, 2501])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_step_ends_with_the_move_and_the_noise_of_that_step(size, compiled, monkeypatch):
    monkeypatch.setattr(counter_rng, "HAS_KERNELS", compiled)
    source = torch.Generator().manual_seed(2)
    weights, move = torch.randn(2, 3, size, generator=source)
    key, counter = torch.tensor([5, -(2**62), 2**40]), torch.tensor([0, 9, 2**33])
    deviation, step = torch.tensor([0.5, 2.0, 0.0]), 4
    seeds = bits(key, counter + step).tolist()
    noise = torch.stack([seeded_normals(seed, size) for seed in seeds]) * deviation[:, None]
    expected = weights + (move + noise)
    CounterNoise(key, counter).finish_step_(weights, move, step, deviation)
    assert_close(weights, expected, rtol=1e-5, atol=1e-5)
    assert not move.any()


def test_every_weight_of_every_row_is_noised_in_every_step(data):
    """With gradients clipped to almost nothing, what is left is noise: its size, and that no weight lacks it."""
    rows = batch_of_rows(1e6)
    model = make_model("mlp", (1, 28, 28), 10)
    images = torch.zeros(RECORDS, 28, 28, 1, dtype=torch.uint8)
    blank = ClientData(images, data.targets, torch.zeros(RECORDS), *[torch.empty(0)] * 3)
    weights = torch.zeros(4, model.size)
    with torch.no_grad():
        train_locally(model, weights, blank, rows, RATE, 1e-6)
    assert bool((weights != 0).all())
    expected = RATE / BATCH * 3**0.5
    for tensor in model.tensors(weights[0]).values():
        assert float(tensor.std()) == pytest.approx(expected, rel=5 / (2 * tensor.numel()) ** 0.5)
    for row in weights:
        assert float(row.std()) == pytest.approx(expected, rel=5 / (2 * model.size) ** 0.5)
    assert torch.corrcoef(weights).fill_diagonal_(0).abs().max() < 5 / model.size**0.5


@pytest.mark.parametrize("magnitude", [1.0, 1e4, 1e15, 1e30])
def test_a_record_moves_its_row_by_the_clip_norm_at_most(data, magnitude):
    """One record in a sample of each length, under ordinary and hostile weights; others do not change."""
    model = make_model("mlp", (1, 4, 4), 10)
    slack = clipping_slack(model, 9)
    full = batch_of_rows()
    for row, length in enumerate(LENGTHS):
        for place in range(length[2]):
            mask = full.mask[:, 2:].clone()
            mask[row, 0, 8 - place] = False
            moved = []
            for chosen in (full.mask[:, 2:], mask):
                rows = TrainingBatch(full.indices[:, 2:], chosen, full.batch_size, full.step_noise)
                start = torch.stack([model.initial(seed) for seed in range(4)]) * magnitude
                total = torch.zeros_like(start)
                with torch.no_grad():
                    _sum_into(model, start, total, data, rows)
                moved.append(total.double())
            difference = (moved[0] - moved[1]).norm(dim=1)
            assert float(difference[row]) <= CLIP * (1 + slack)
            difference[row] = 0
            assert float(difference.max()) == 0


def _sum_into(model, weights, total, data, rows):
    """Add the clipped gradients of one step to ``total``: training whose noise function keeps the move."""

    def keep(move, step, deviation):
        total.copy_(move)
        move.zero_()

    ones = torch.ones(len(weights))
    rows = TrainingBatch(rows.indices, rows.mask, ones, rows.step_noise, keep)
    train_locally(model, weights, data, rows, 1.0, CLIP)


def test_a_record_that_overflows_contributes_nothing_to_its_row_or_another(data):
    """Row 1 has weights that overflow on records with the first pixel; the others move as if it were absent."""
    model = make_model("mlp", (1, 4, 4), 10)
    data.images[:, 0, 0] = 0
    data.images[7, 0, 0] = 255
    indices = torch.tensor([[[1, 7, 2]], [[3, 7, 4]]])
    mask = torch.ones(2, 1, 3, dtype=torch.bool)
    without = mask.clone()
    without[1, 0, 1] = False
    results = []
    for chosen in (mask, without):
        weights = torch.stack([model.initial(0), model.initial(1)])
        weights[1, torch.arange(64) * 16] = 3e38  # the first pixel's weights
        rows = TrainingBatch(indices, chosen, torch.full((2,), 3), torch.zeros(2))
        with torch.no_grad():
            train_locally(model, weights, data, rows, RATE, CLIP)
        results.append(weights)
    assert torch.isfinite(results[0]).all()
    assert_close(*results, rtol=1e-5, atol=1e-6)
