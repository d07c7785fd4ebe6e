"""The release of losses costs no more than is accounted for: its sensitivity, its noise, and dp-accounting's word."""

import json
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import fedlane.simulation.loss_audit as loss_audit
from fedlane.learning.loss_reports import record_losses
from fedlane.privacy import account
from fedlane.privacy.loss_release import first_step_noise, with_losses
from fedlane.records import LossQuery, MechanismSpec
from fedlane.simulation.audit import AuditPlan, audit
from fedlane.simulation.clipping_audit import audit_clipping
from fedlane.validate import InputError
from support.terminal import fedlane

DELTA = 1e-5


def gaussian(noise):
    return dp_accounting.GaussianDpEvent(noise)


def epsilon(accountant, *events):
    for event in events:
        accountant.compose(event)
    return accountant.get_epsilon(DELTA)


@pytest.mark.slow
@pytest.mark.parametrize(("z", "loss_noise"), [(1.2, 4.0), (3.0, 3.001)])
def test_gradient_and_losses_together_are_one_step_for_dp_accounting(z, loss_noise):
    """The composed query vector, sampled or not, has the epsilon of a Gaussian with the accounted noise z."""
    z_g = float(first_step_noise(np.array([z]), loss_noise)[0])
    joint = dp_accounting.ComposedDpEvent([gaussian(z_g), gaussian(loss_noise)])
    expected = epsilon(PLDAccountant(), gaussian(z))
    assert epsilon(PLDAccountant(), joint) == pytest.approx(expected, rel=1e-4)
    assert account(z, 1.0, 1, DELTA) == pytest.approx(expected, rel=1e-3)
    for rate in (0.08, 0.5):
        upload = [dp_accounting.PoissonSampledDpEvent(rate, event) for event in (joint, *[gaussian(z)] * 4)]
        plain = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(rate, gaussian(z)), 5)
        assert epsilon(RdpAccountant(), *upload) == pytest.approx(epsilon(RdpAccountant(), plain), rel=1e-9)


@pytest.mark.slow
def test_the_accounted_epsilon_of_a_sampled_step_covers_its_losses():
    """Monte Carlo on the vector itself: the loss of (gradient, losses) under the sample's mixture of two Gaussians."""
    z, loss_noise, rate, count = 1.1, 2.0, 0.3, 400_000
    z_g = float(first_step_noise(np.array([z]), loss_noise)[0])
    means = np.array([1 / z_g, np.sqrt(0.5) / loss_noise, np.sqrt(0.5) / loss_noise])  # a record at every bound
    rng = np.random.default_rng(0)
    outputs = rng.standard_normal((count, 3)) + means * (rng.random((count, 1)) < rate)
    log_ratio = np.log1p(rate * np.expm1(outputs @ means - means @ means / 2))
    for level in (0.2, 0.8):
        spent = np.maximum(1 - np.exp(level - log_ratio), 0.0)
        accounted = account(z, rate, 1, max(float(spent.mean() - 4 * spent.std() / np.sqrt(count)), 1e-12))
        assert accounted >= level  # with a delta slightly below the measured one
        assert account(z, rate, 1, float(spent.mean() + 4 * spent.std() / np.sqrt(count))) <= level + 0.02


def test_the_contribution_of_a_record_is_bounded_and_the_bound_is_reached():
    """(l, l^2 / L) of any loss in [0, L] has norm at most sqrt(2) L, which is the scale of the noise."""
    for clip in (0.25, 1.0, 7.5):
        query = LossQuery(clip, 3.0, np.ones(1))
        losses = np.linspace(0, clip, 1001)
        norms = np.hypot(losses, losses**2 / query.unit)
        assert norms.max() == pytest.approx(np.sqrt(2) * clip)
        assert np.argmax(norms) == 1000
        assert query.deviation == pytest.approx(3.0 * norms.max())


def spec(step_noise, name="rigorous"):
    plain = MechanismSpec.simple(np.full((1, 2), 50), batch_size=5, local_iterations=2, clip_norm=1.0)
    return replace(plain, name=name, step_noise=np.array([step_noise]))


def test_every_client_s_first_step_pays_for_its_own_losses():
    query = with_losses(spec([0.8, 1.5]), 4.0, 2.0).loss_query
    np.testing.assert_allclose(1 / query.first_step_noise**2 + 1 / 2.0**2, 1 / np.array([[0.8, 1.5]]) ** 2)
    assert (query.clip, query.noise, query.protected) == (4.0, 2.0, True)


@pytest.mark.parametrize("loss_noise", [1.5, 1.2, 0.1])
def test_noise_of_the_losses_that_leaves_nothing_for_the_gradient_is_refused(loss_noise):
    message = r"privacy.loss_noise must be greater than the noise multiplier of a step, 1.5, got .*: raise it"
    with pytest.raises(InputError, match=message):
        with_losses(spec([0.8, 1.5]), 4.0, loss_noise)


@pytest.fixture(scope="module")
def single_step():
    """An audit of one step whose losses take half of its budget, and the mechanism."""
    plan = AuditPlan(local_iterations=1, trials=20_000)
    plan = replace(plan, loss_noise=float(np.sqrt(2.0) * plan.spec().step_noise[0, 0]))
    return plan, plan.spec()


@pytest.mark.slow
def test_the_audit_attacks_released_losses_and_does_not_refute_them(single_step):
    plan, right = single_step
    result = audit(plan, right)
    assert not result.flagged
    noise = right.loss_query.first_step_noise
    blind = audit(replace(plan, loss_noise=None), replace(right, loss_query=None, step_noise=noise))
    assert result.epsilon_low > 1.2 * blind.epsilon_low  # half of what is spent shows in the losses


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_the_whole_upload_with_losses_is_not_refuted(seed):
    result = audit(AuditPlan(loss_noise=4.0, seed=seed))
    assert not result.flagged
    assert result.epsilon_low > result.claim / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        lambda right: {"noise": 0.0},
        lambda right: {"noise": right.loss_query.noise / 2},
        lambda right: {"noise": right.loss_query.noise / np.sqrt(2.0)},  # the sensitivity of a single sum
        lambda right: {"first_step_noise": right.step_noise},  # losses that nothing pays for
    ],
    ids=["no noise", "half the noise", "noise for one sum", "gradient noise not raised"],
)
def test_too_little_noise_is_flagged(single_step, changes):
    plan, right = single_step
    assert audit(plan, replace(right, loss_query=replace(right.loss_query, **changes(right)))).flagged


@pytest.mark.slow
def test_losses_that_are_not_clipped_are_flagged(single_step, monkeypatch):
    plan, right = single_step
    real = loss_audit.loss_sums
    loose = replace(right.loss_query, clip=1e6)

    def unclipped(model, weights, data, rows, query):
        sums = real(model, weights, data, rows, loose)
        sums[:, 1] *= loose.unit / query.unit
        return sums

    monkeypatch.setattr(loss_audit, "loss_sums", unclipped)
    assert audit(replace(plan, trials=2000), right).flagged


def test_exact_losses_are_not_part_of_the_paper_s_claim():
    """The attack is the one without losses: the claim is refuted by the upload alone."""
    assert AuditPlan.of("paper", loss_noise=4.0).spec().loss_query is None


def test_the_search_for_hostile_weights_covers_losses():
    assert audit_clipping("softmax").losses == pytest.approx(1.0, abs=1e-6)  # of single precision

    def loose(model, weights, x, targets, clip):
        return record_losses(model, weights, x, targets, 1.01 * clip)

    assert audit_clipping("softmax", losses=loose).flagged
    assert not audit_clipping("softmax").flagged


@pytest.mark.slow
def test_the_command_attacks_losses_and_refuses_what_cannot_be(tmp_path):
    words = ("privacy", "audit", "--trials", "400", "--loss-noise")
    report = json.loads(fedlane(*words, "4", "--json", cwd=tmp_path, code=0).stdout)
    assert (report["loss_noise"], report["flagged"]) == (4.0, False)
    assert report["clipping"]["losses"] == pytest.approx(1.0)
    for options, message in (
        (("0",), "--loss-noise must be greater than 0"),
        (("1",), "privacy.loss_noise must be greater than the noise multiplier of a step, 2.4"),
        (("4", str(tmp_path)), "a run cannot be combined with --loss-noise"),
    ):
        (line,) = fedlane(*words, *options, cwd=tmp_path, code=2).stderr.splitlines()
        assert message in line
