"""The audit: the right mechanism passes, wrong ones are detected, at 99.9% confidence with 20,000 trials."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedlane.simulation.audit as driver
from fedlane.learning.counter_rng import CounterNoise
from fedlane.learning.models import LayeredModel
from fedlane.privacy.audit_statistics import audit_sampling, audit_scores
from fedlane.privacy.gaussian import gaussian_epsilon
from fedlane.simulation.audit import AuditPlan, audit, audit_samples, drawn_samples
from fedlane.validate import InputError

FEW = AuditPlan(trials=4000)
"""A fifth of the default number of trials, which suffices to detect wrong mechanisms."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))]
)  # how often it may err is judged by test_the_confidence_is_kept
def test_the_right_mechanism_is_never_flagged_and_the_bound_is_tight(seed):
    result = audit(AuditPlan(seed=seed))
    assert not result.flagged
    assert result.epsilon_low > result.claim / 2


@pytest.mark.slow
def test_half_the_noise_is_flagged():
    spec = FEW.spec()
    assert audit(FEW, replace(spec, step_noise=spec.step_noise / 2)).flagged


@pytest.mark.slow
def test_clipping_skipped_is_flagged(monkeypatch):
    real = LayeredModel.descend

    def unclipped(self, weights, batch, clip_norm, scale, into=None):
        real(self, weights, batch, None, scale, into)

    monkeypatch.setattr(LayeredModel, "descend", unclipped)
    assert audit(FEW).flagged


@pytest.mark.slow
def test_clipping_the_batch_instead_of_each_sample_is_flagged(monkeypatch):
    """The mean gradient is clipped to C instead of each sample's."""
    real = LayeredModel.descend

    def whole_batch(self, weights, batch, clip_norm, scale, into=None):
        step = torch.zeros_like(weights)
        real(self, weights, batch, None, scale, step)
        rate = scale.max() * (batch.starts[1] - batch.starts[0])
        length = step.norm(dim=1, keepdim=True)
        into += step * (rate * clip_norm / length).clamp(max=1.0)

    monkeypatch.setattr(LayeredModel, "descend", whole_batch)
    assert audit(FEW).flagged


@pytest.mark.slow
@pytest.mark.parametrize("tensor", range(4))
def test_a_tensor_without_noise_is_flagged(monkeypatch, tensor):
    real = CounterNoise.finish_step_
    sizes = [16 * 64, 64, 64 * 10, 10]
    part = slice(sum(sizes[:tensor]), sum(sizes[: tensor + 1]))

    def partial(noise, weights, move, step, deviation):
        kept = (weights + move)[:, part]
        real(noise, weights, move, step, deviation)
        weights[:, part] = kept

    monkeypatch.setattr(CounterNoise, "finish_step_", partial)
    assert audit(FEW).flagged


@pytest.mark.slow
def test_the_paper_s_mechanism_is_flagged():
    result = audit(AuditPlan.of("paper"))
    assert result.flagged
    assert result.epsilon_low_gaussian is None
    assert result.epsilon_low > 2 * result.claim


@pytest.mark.slow
def test_the_paper_s_whole_mlp_with_fewer_trials():
    result = audit(AuditPlan(pixels=28, trials=4000))
    assert not result.flagged
    assert result.epsilon_low > result.claim / 2
    plan = AuditPlan(pixels=28, trials=2000)
    assert audit(plan, replace(plan.spec(), step_noise=plan.spec().step_noise / 2)).flagged


@pytest.mark.slow
@pytest.mark.parametrize("records", [4, pytest.param(16, marks=pytest.mark.long)])
def test_a_convolutional_network_can_be_attacked(records):
    """One step; the same attack runs on a GPU, against its kernels (benchmarks/gpu_mutations.py)."""
    plan = AuditPlan(model="cnn", pixels=14, records=records, batch_size=records, local_iterations=1, trials=400)
    assert not audit(plan).flagged
    assert audit(plan, replace(plan.spec(), step_noise=plan.spec().step_noise / 10)).flagged


@pytest.mark.slow
def test_too_little_noise_is_flagged_under_sampling_too():
    """At q = 0.1 the right noise passes and a tenth of it does not."""
    plan = AuditPlan(records=160, batch_size=16, epsilon=1.0)
    assert not audit(plan).flagged
    result = audit(plan, replace(plan.spec(), step_noise=plan.spec().step_noise / 10))
    assert result.flagged
    assert result.epsilon_low > 2


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 15), marks=pytest.mark.long)])
def test_poisson_samples_pass_and_a_fixed_batch_is_flagged(seeds):
    for seed in seeds:
        assert not audit_samples(AuditPlan(seed=seed)).flagged
        assert audit_samples(AuditPlan(seed=seed), "fixed").flagged


def test_a_record_that_is_never_sampled_is_flagged():
    chosen = drawn_samples(0, "poisson")
    assert not audit_sampling(chosen, 0.1, 0.999).flagged
    missing = chosen.copy()
    missing[:, :, 17] = False
    assert audit_sampling(missing, 0.1, 0.999).flagged
    reused = np.repeat(chosen[:, :1], chosen.shape[1], axis=1)  # one step's sample is used in all steps
    assert audit_sampling(reused, 0.1, 0.999).overlap < 1e-9
    assert audit_sampling(reused, 0.1, 0.999).flagged
    assert audit_sampling(drawn_samples(0, "poisson"), 0.11, 0.999).flagged


def gaussian_trials(mu, count, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 1)), rng.standard_normal((count, 1)) + mu


def bounds(mu, count, seed, *, claim, delta, confidence):
    return audit_scores(
        *gaussian_trials(mu, count, seed), np.ones(1), claim=claim, delta=delta, confidence=confidence, gaussian=True
    )


def test_bounds_are_bounds_and_come_close():
    """N(mu, 1) against N(0, 1): with 7,500 trials each, the bound on mu is 3.5 standard errors of each rate lower."""
    error = 1.4 / np.sqrt(7500)  # of the quantile of a rate near a half, and of one near a sixth (mu = 2)
    for mu in (0.5, 1.0, 2.0):
        truth, smallest = gaussian_epsilon(mu, 1e-5), gaussian_epsilon(mu - 2 * (3.5 + 3) * error, 1e-5)
        for seed in range(10):
            result = bounds(mu, 10_000, seed, claim=truth, delta=1e-5, confidence=0.999)
            assert result.epsilon_low_any <= truth
            assert smallest < result.epsilon_low_gaussian <= truth


@pytest.mark.slow
def test_the_confidence_is_kept():
    """At 90%, at most a tenth of 400 bounds may be wrong; 60% of the truth is refuted nearly always."""
    truth = gaussian_epsilon(1.0, 1e-3)
    results = [bounds(1.0, 2000, seed, claim=truth, delta=1e-3, confidence=0.9) for seed in range(400)]
    assert sum(result.flagged for result in results) <= 40
    assert sum(result.epsilon_low > 0.6 * truth for result in results) > 380


def test_scores_that_do_not_differ_bound_nothing():
    result = audit_scores(
        *gaussian_trials(0.0, 5000, 1), np.ones(1), claim=1.0, delta=1e-5, confidence=0.999, gaussian=True
    )
    assert result.epsilon_low < 0.2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 100}, "trials must be at least 400"),
        ({"confidence": 0.3}, "confidence must be"),
        ({"pixels": 5}, "pixels must divide 28"),
        ({"batch_size": 17}, "batch must be from 1 to 16"),
        ({"mechanism": "none"}, "mechanism must be paper or rigorous"),
        ({"epsilon": -1.0}, "epsilon must be greater than 0"),
        ({"records": 9000}, "records must be at most 8000"),
    ],
)
def test_values_out_of_bounds_are_refused(changes, message):
    plan = AuditPlan(trials=400)
    with pytest.raises(InputError, match=message):
        audit(replace(plan, **{"batch_size": changes.get("records", 16), **changes}))


def test_results_do_not_depend_on_the_chunk_size(monkeypatch):
    whole = audit(AuditPlan(trials=400))
    monkeypatch.setattr(driver, "CHUNK_BYTES", 1e6)
    chunked = audit(AuditPlan(trials=400))
    for a, b in zip(whole.scores, chunked.scores, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
