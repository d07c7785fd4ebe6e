"""Constants (buffers) of a user's module: they take part in training, are saved with the weights, and never change."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedlane import Run, Scenario, simulate
from fedlane.learning.local import train_locally
from fedlane.learning.models import Batch, ModuleModel
from fedlane.learning.strict import train_strictly
from fedlane.learning.system_random import system_rows
from fedlane.records import MechanismSpec
from support.client_records import one_client
from support.tensors import assert_close
from support.user_modules import RATE, Forest, LargePositions, Positions, checked, one_hot, records

pytestmark = pytest.mark.slow  # torch.func imports a compiler, which takes 3 s of processor time


@pytest.mark.parametrize("clip_norm", [0.4, None])
def test_a_module_with_constants_takes_the_steps_of_autograd(clip_norm):
    model, (x, labels) = checked(Positions, per_record=True), records(6)
    first = model.initial(3)
    moved = first[None].clone()
    model.descend(moved, Batch(x[None], one_hot(labels)[None]), clip_norm, torch.ones(1, 6))
    module, expected = Positions(), first.clone()
    module.load_state_dict({**model.tensors(first), **model.constants()})
    for image, label in zip(x, labels, strict=True):
        loss = nn.functional.cross_entropy(module(image.permute(2, 0, 1)[None]), label[None])
        gradient = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(module.parameters()))])
        expected -= gradient * (1.0 if clip_norm is None else min(1.0, clip_norm / float(gradient.norm())))
    assert_close(moved[0], expected, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def client():
    """One client's data and what it draws for an upload: Poisson samples, and noise too small to matter."""
    x, labels = records(40)
    spec = MechanismSpec.simple(
        np.array([[40]]), batch_size=10, local_iterations=3, clip_norm=0.5, step_noise=1e-9, sampling="poisson"
    )
    return one_client(x, one_hot(labels)), system_rows(spec, 40)


def test_a_real_client_trains_a_module_with_constants_as_simulations_do(client):
    model = checked(Positions, per_record=True)
    first = model.initial(1)[None]
    strict, fast = first.clone(), first.clone()
    train_strictly(model, strict, *client, RATE, 0.5)
    with torch.no_grad():
        train_locally(model, fast, *client, RATE, 0.5)
    assert_close(strict, fast, rtol=1e-4, atol=1e-5)
    assert float((strict - first).abs().max()) > 1e-3
    model.check_constants()


def test_a_real_client_refuses_a_module_without_gradients_of_single_records(client):
    model = ModuleModel(Forest, per_record=False)
    with pytest.raises(ValueError, match="gradients of single records"):
        train_strictly(model, model.initial(0)[None], *client, RATE, 0.5)


@pytest.fixture(scope="module", params=["rigorous", "none"])
def run(request, tmp_path_factory):
    """A run of two replicas of a module with constants, and the folder in which it is saved."""
    values = {"learning.model": "support.user_modules:LargePositions", "rounds": 3,
              "privacy.mechanism": request.param}  # fmt: skip
    run, folder = (
        simulate(Scenario.load("quickstart").with_values(values), seeds=[0, 4]),
        tmp_path_factory.mktemp("run"),
    )
    run.save(folder)
    return run, folder


def test_a_saved_model_loads_into_the_module_with_its_constants(run):
    saved = load_file(run[1] / "model.safetensors")
    for replica in ("replica0.", "replica1."):
        module, fresh = LargePositions(), LargePositions()
        module.load_state_dict({k.removeprefix(replica): v for k, v in saved.items() if k.startswith(replica)})
        assert torch.equal(module.encoding, fresh.encoding)
        assert torch.equal(module.allowed, fresh.allowed)


def test_a_constant_that_the_module_does_not_save_is_not_saved(run):
    assert not any("offset" in name for name in load_file(run[1] / "model.safetensors"))


def test_a_loaded_run_has_the_same_model(run):
    expected, loaded = run[0].model, Run.load(run[1]).model
    assert loaded.keys() == expected.keys()
    assert all(np.array_equal(loaded[name], expected[name]) for name in loaded)


class Fourier(nn.Module):
    """A constant that is drawn at random."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(64, 5))
        self.out = nn.Linear(5, 10)

    def forward(self, x):
        return self.out(torch.sin(x.flatten(1) @ self.frequencies))


def test_a_constant_drawn_at_random_is_the_same_everywhere():
    """Whatever PyTorch's global generator has drawn before; that generator is left as it was."""
    torch.manual_seed(5)
    first = ModuleModel(Fourier)
    torch.manual_seed(6)
    state = torch.random.get_rng_state()
    second = ModuleModel(Fourier)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.constants()["frequencies"], second.constants()["frequencies"])


def test_weights_follow_the_seed_where_a_constant_is_drawn_at_random():
    model = ModuleModel(Fourier)
    assert not torch.equal(model.initial(0), model.initial(1))
