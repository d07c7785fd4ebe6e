"""Layers of a user's module: which are refused, with what remedy, and which are allowed."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from fedlane.learning.models import Batch
from fedlane.validate import InputError
from support.terminal import fedlane
from support.user_modules import Centred, Forest, checked, federation, with_layer

pytestmark = pytest.mark.slow  # torch.func imports a compiler, which takes 3 s of processor time


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.BatchNorm2d(4),
        lambda: nn.BatchNorm2d(4, track_running_stats=False),
        lambda: nn.BatchNorm2d(4).eval(),
        lambda: nn.SyncBatchNorm(4),
        nn.LazyBatchNorm2d,
    ],
)
def test_batch_normalisation_is_refused_where_each_record_is_clipped(layer):
    name = type(layer()).__name__
    with pytest.raises(InputError) as error:
        checked(with_layer(layer), per_record=True)
    assert str(error.value).startswith(
        f"layer '1' ({name}) mixes the records of a batch, which per-record clipping does not allow: use GroupNorm, "
        'or privacy.mechanism = "none"'
    )


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: nn.InstanceNorm2d(4, track_running_stats=True), r"\(InstanceNorm2d\) keeps .* set track_running"),
        (lambda: nn.Dropout(0.001), r"\(Dropout\) draws random numbers.*privacy.mechanism = \"none\""),
        (lambda: nn.AlphaDropout(0.1), r"\(AlphaDropout\) draws random numbers"),
        (nn.RReLU, r"\(RReLU\) draws random numbers"),
        (lambda: nn.LazyConv2d(4, 1), r"\(LazyConv2d\) has no shape .* use Conv2d with its sizes"),
    ],
)
def test_other_layers_that_per_record_clipping_does_not_allow_are_refused(layer, message):
    with pytest.raises(InputError, match=f"layer '1' {message}"):
        checked(with_layer(layer), per_record=True)


def test_a_layer_inside_another_is_named_with_its_path():
    with pytest.raises(InputError, match=r"layer 'features.1' \(BatchNorm2d\) mixes the records"):
        checked(Forest, per_record=True)


def test_a_module_that_mixes_records_without_such_a_layer_is_refused_where_each_record_is_clipped():
    with pytest.raises(InputError, match=r"model Centred mixes the records of a batch: .* privacy.mechanism"):
        checked(Centred, per_record=True)


@pytest.mark.parametrize(
    ("layer", "message"),
    [(lambda: nn.SyncBatchNorm(4), "use BatchNorm"), (nn.LazyBatchNorm2d, "use BatchNorm2d with its sizes")],
)
def test_layers_that_no_federation_can_train_are_refused_without_privacy_too(layer, message):
    with pytest.raises(InputError, match=message):
        checked(with_layer(layer))


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.GroupNorm(2, 4),
        lambda: nn.InstanceNorm2d(4),
        lambda: nn.Dropout(0.0),
        lambda: nn.Dropout(0.5).eval(),
        lambda: nn.LayerNorm((4, 6, 6)),
    ],
)
def test_layers_that_treat_each_record_by_itself_are_allowed(layer):
    assert checked(with_layer(layer), per_record=True).size == 4 * 9 + 4 + 4 * 36 * 10 + 10 + weights_of(layer())
    assert not checked(with_layer(layer)).whole_batch  # trained record by record without clipping too


def weights_of(layer):
    return sum(parameter.numel() for parameter in layer.parameters())


class Counting(nn.Module):
    """Counts in a buffer how often it was called, which changes its scores."""

    def __init__(self, count):
        super().__init__()
        self.inner, self.out, self.count = nn.Module(), nn.Linear(64, 10), count
        self.inner.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.count(self.inner)
        return self.out(x.flatten(1)) + self.inner.seen


def count_in_place(layer):
    layer.seen += 1


def count_by_assignment(layer):
    layer.seen = layer.seen + 1


def count_behind_autograd(layer):
    layer.seen.data += 1


@pytest.mark.parametrize("count", [count_in_place, count_by_assignment, count_behind_autograd])
@pytest.mark.parametrize("per_record", [True, False])
def test_a_module_that_changes_a_buffer_is_refused(count, per_record):
    with pytest.raises(InputError, match=r"layer 'inner' \(Module\) changes its buffer 'seen' in forward"):
        checked(lambda: Counting(count), per_record)


@pytest.mark.parametrize("count", [count_in_place, count_by_assignment])
def test_a_change_of_a_buffer_after_the_checks_is_refused_and_leaves_weights_and_buffer_as_they_were(count):
    model = checked(lambda: Counting(lambda layer: None), per_record=True)
    batch, first = Batch(torch.rand(1, 4, 8, 8, 1), torch.eye(10)[None, :4]), model.initial(0)[None]

    def step():
        weights = first.clone()
        model.descend(weights, batch, 1.0, torch.ones(1, 4))
        return weights

    expected, weights = step(), first.clone()
    model.module.count = count
    with pytest.raises(InputError, match="changes its buffer"):
        model.descend(weights, batch, 1.0, torch.ones(1, 4))
    assert torch.equal(weights, first)
    model.module.count = lambda layer: None
    assert torch.equal(step(), expected)
    model.check_constants()


def test_a_batch_of_one_record_is_refused_where_batch_normalisation_needs_two():
    with pytest.raises(InputError, match="at least 2 records in a batch, but client 1 has a batch of 1: raise learn"):
        federation(Forest, (0,), batches=np.array([4, 1, 4]))


def test_a_batch_of_one_record_suffices_where_it_has_many_values():
    federation(with_layer(lambda: nn.BatchNorm2d(4)), (0,), batches=np.array([1, 1, 1]))


def test_a_federation_does_not_clip_a_model_without_single_gradients():
    with pytest.raises(ValueError, match="clipping needs a model with gradients of single records"):
        federation(Forest, (0,), clip_norm=1.0)


def test_a_step_does_not_clip_a_model_without_single_gradients():
    model = checked(Forest)
    batch = Batch(torch.zeros(1, 1, 8, 8, 1), torch.eye(10)[None, :1])
    with pytest.raises(ValueError, match="without clipping"):
        model.descend(model.initial(0)[None], batch, 1.0, torch.ones(1, 1))


RUN = ("run", "--set", "learning.model=support.user_modules:LargeForest", "--rounds", "2", "--quiet", "--out", "run")


def test_the_command_line_names_layer_and_remedy_in_one_line(tmp_path):
    refused = fedlane(*RUN, cwd=tmp_path, code=2).stderr
    assert re.match(r"fedlane: layer 'features.1' \(BatchNorm2d\) mixes the records of a batch.*\n$", refused)
    assert 'privacy.mechanism = "none"' in refused


def test_the_remedy_that_the_command_line_names_helps(tmp_path):
    fedlane(*RUN, "--set", "privacy.mechanism=none", cwd=tmp_path, code=0)
    assert (tmp_path / "run" / "model.safetensors").exists()
