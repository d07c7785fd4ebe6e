"""Calibration and accounting against dp-accounting called directly, published figures and closed forms."""

import json

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from fedlane import cache
from fedlane.privacy import Terms, account, calibrate, epsilon_curve
from fedlane.privacy.accountant import check_budget
from fedlane.privacy.calibrate import _search, calibrate_clients
from fedlane.privacy.composition import resolution
from fedlane.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_noise
from fedlane.validate import InputError

TASKS = {
    "issue": {"epsilon": 8.0, "delta": 1e-5, "sample_rate": 64 / 6000, "steps": 1250},
    "small": {"epsilon": 2.0, "delta": 1e-5, "sample_rate": 10 / 600, "steps": 1250},
}


def direct(z, sample_rate, steps, delta, histogram_noise=0.0):
    """Return the epsilon of dp-accounting's own accountant."""
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    step = dp_accounting.PoissonSampledDpEvent(sample_rate, dp_accounting.GaussianDpEvent(z))
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps))
    if histogram_noise:
        accountant.compose(dp_accounting.GaussianDpEvent(histogram_noise))
    return accountant.get_epsilon(delta)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "published"), [("issue", 0.614), ("small", 1.40)])
def test_noise_agrees_with_dp_accounting_to_a_thousandth(task, published):
    """The epsilon at z is within the budget; at z - 0.001 it is not."""
    values = TASKS[task]
    z = calibrate(**values)
    assert z == pytest.approx(published, abs=3e-3)
    rest = values["sample_rate"], values["steps"], values["delta"]
    assert direct(z, *rest) <= values["epsilon"] < direct(z - 1e-3, *rest)
    assert account(z, *rest) == pytest.approx(direct(z, *rest), abs=1e-9)


@pytest.mark.slow
def test_a_histogram_at_noise_ten_costs_little():
    """It raises 7.996 to 8.010; calibrated together, everything stays within 8."""
    z = 0.61421
    rest = 64 / 6000, 1250, 1e-5
    assert account(z, *rest) == pytest.approx(7.996, abs=8e-3)
    assert account(z, *rest, histogram_noise=10.0) - account(z, *rest) == pytest.approx(0.0136, abs=1e-3)
    paid = calibrate(8.0, 1e-5, sample_rate=64 / 6000, steps=1250, histogram_noise=10.0)
    assert paid > calibrate(**TASKS["issue"])
    assert direct(paid, *rest, histogram_noise=10.0) <= 8.0


def test_without_sampling_it_is_the_gaussian_mechanism():
    assert account(2.0, 1.0, 9, 1e-5) == pytest.approx(gaussian_epsilon(1.5, 1e-5))
    assert direct(2.0, 1.0, 9, 1e-5) == pytest.approx(gaussian_epsilon(1.5, 1e-5), rel=1e-3)
    z = calibrate(1.0, 1e-6, sample_rate=1.0, steps=4)
    assert z == pytest.approx(2 * gaussian_noise(1.0, 1e-6), rel=1e-4)
    assert account(z, 1.0, 4, 1e-6, histogram_noise=3.0) == pytest.approx(
        gaussian_epsilon((4 / z**2 + 1 / 9) ** 0.5, 1e-6)
    )


def test_gaussian_closed_form_by_integration():
    """delta(epsilon) = integral of max(p - e^epsilon q, 0), on a fine grid."""
    import numpy as np

    x = np.linspace(-30, 30, 2_000_001)
    for mu, epsilon in ((0.7, 0.3), (2.0, 4.0)):
        p, q = (np.exp(-((x - m) ** 2) / 2) / np.sqrt(2 * np.pi) for m in (mu, 0.0))
        brute = np.trapezoid(np.maximum(p - np.exp(epsilon) * q, 0), x)
        assert gaussian_delta(mu, epsilon) == pytest.approx(brute, rel=1e-5)
        assert gaussian_epsilon(mu, gaussian_delta(mu, epsilon)) == pytest.approx(epsilon, rel=1e-8)
    assert gaussian_epsilon(1e-9, 0.1) == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be greater than 0"),
        ({"delta": 1.0}, "delta must be from 1e-12 to 0.5"),
        ({"delta": 0.999999999}, "delta must be from 1e-12 to 0.5, got 0.999999999"),
        (
            {"sample_rate": 1e-12, "steps": 10},
            "needs no noise: a record is sampled with a probability of at most 1e-11",
        ),
        ({"sample_rate": 1.5}, "sample_rate must be greater than 0 and at most 1"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"histogram_noise": 0.1}, "increase histogram_noise"),
        ({"epsilon": 1e4, "steps": 5}, "give no privacy"),
    ],
)
def test_values_out_of_bounds_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        calibrate(**{**TASKS["small"], **changes})


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [5.96e-14, 1e-9, 1e-6])
def test_tiny_epsilons_are_calibrated_where_the_curve_is_flat(epsilon):
    """The epsilon of large noise is 0: Newton's method has no slope there, and bisection is used."""
    task = {"sample_rate": 1 / 182963, "steps": 170}
    noise = calibrate(epsilon, 1e-5, **task)
    interval = resolution(epsilon)
    assert account(noise, *task.values(), 1e-5, interval=interval) <= epsilon
    assert account(noise * 0.999, *task.values(), 1e-5, interval=interval) > epsilon


def test_a_jump_of_epsilon_does_not_carry_newton_s_method_away():
    """An accountant with a step: its slope is that of one side, and its root is between the two."""

    def spent(noise, interval):
        return 8.0 + 1e-9 * (2 - noise) + (3.0 if noise < 2.0005 and interval < 1e-3 else 0.0)

    for epsilon in (8.0, 8.0 - 1e-10):
        noise = _search(spent, epsilon, 5e-3, 1e-4)
        assert spent(noise, 1e-4) <= epsilon
        assert spent(noise * 0.999, 1e-4) > epsilon


@pytest.mark.parametrize("noise", [1e-150, 1e-14, 1e-12, 1e-3, 0.0999])
def test_tiny_noise_of_a_histogram_is_accounted_for(noise):
    exact = account(0.9, 0.01, 100, 1e-5, histogram_noise=noise)
    assert exact >= gaussian_epsilon(1 / noise, 1e-5) * 0.999999
    terms = Terms("rigorous", 0.01, 5, 0.9, 0.0, 8.0, 1e-5, 20, noise)
    assert epsilon_curve(terms, 20)[-1] == exact
    with pytest.raises(InputError, match="more than the agreed 8"):
        check_budget(terms)


def test_a_gaussian_round_with_a_tiny_epsilon_has_its_noise():
    for epsilon, delta in ((2.66e-14, 3.5e-11), (1e-300, 1e-12), (1e-6, 0.4), (1e12, 1e-12)):
        assert gaussian_delta(1 / gaussian_noise(epsilon, delta), epsilon) == pytest.approx(delta, rel=1e-2)


def test_no_noise_is_no_privacy_and_no_steps_cost_nothing():
    assert account(0.0, 0.1, 5, 1e-5) == float("inf")
    assert account(1.0, 0.1, 0, 1e-5) == 0.0
    assert account(1.0, 0.1, 0, 1e-5, histogram_noise=10.0) == pytest.approx(gaussian_epsilon(0.1, 1e-5))


def test_a_cached_value_is_verified_before_it_is_used(tmp_path, monkeypatch):
    """Too little noise in a cache file is detected even if its digest is right; so is a damaged file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    values = {"epsilon": 3.0, "delta": 1e-4, "sample_rate": 1.0, "steps": 4}
    z = calibrate(**values)
    (file,) = (tmp_path / "fedlane" / "calibration").iterdir()
    stored = json.loads(file.read_text())
    assert stored["values"] == [z]
    text = json.dumps(stored["key"], sort_keys=True)
    less = [z * 0.8]
    for content in (
        json.dumps({**stored, "values": less, "digest": cache._digest(text + repr(less))}),
        json.dumps({**stored, "values": less}),
        json.dumps(stored)[:-20],
        "[]",
    ):
        file.write_text(content)
        assert calibrate(**values) == z
    file.write_text(json.dumps({**stored, "values": [z * 1.0001], "digest": cache._digest(text + repr([z * 1.0001]))}))
    assert calibrate(**values) == z * 1.0001  # enough noise, so it is used


def test_calibration_works_without_a_writable_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert calibrate(3.0, 1e-4, sample_rate=1.0, steps=4) > 0


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_a_cached_noise_that_is_a_little_too_small_is_not_used(tmp_path, monkeypatch, share):
    """Without sampling, epsilon is about proportional to 1 / z: even one percent less noise exceeds the budget."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    values = {"epsilon": 3.0, "delta": 1e-4, "sample_rate": 1.0, "steps": 4}
    z = calibrate(**values)
    (file,) = (tmp_path / "fedlane" / "calibration").iterdir()
    stored = json.loads(file.read_text())
    forged, text = [z * share], json.dumps(stored["key"], sort_keys=True)
    file.write_text(json.dumps({**stored, "values": forged, "digest": cache._digest(text + repr(forged))}))
    assert calibrate(**values) == z


def test_clients_that_differ_in_anything_have_noise_of_their_own(monkeypatch):
    """Rates, budgets, deltas and steps, each changed alone; calibration is replaced by a number for each of them."""

    def number(epsilon, delta, *, sample_rate, steps, histogram_noise):
        return epsilon + 10 * delta + 100 * sample_rate + 1000 * steps + histogram_noise

    monkeypatch.setitem(calibrate_clients.__globals__, "calibrate", number)
    rates = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.5]])
    epsilon, delta = np.array([3.0, 4.0, 3.0, 3.0]), np.array([0.1, 0.1, 0.2, 0.1])
    found = calibrate_clients(rates, epsilon, delta, np.array([4, 4, 4, 9]), 0.0, 0.0)
    np.testing.assert_allclose(found, epsilon + 10 * delta + 100 * rates + 1000 * np.array([4, 4, 4, 9]), rtol=1e-12)
