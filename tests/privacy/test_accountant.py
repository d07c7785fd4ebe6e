"""Accounting for uploads, and the specs of the three mechanisms."""

import numpy as np
import pytest

from fedlane.privacy import (
    Terms,
    account,
    calibrate,
    epsilon_curve,
    make_mechanism,
    mechanism_of,
    released_histogram,
    spent,
)
from fedlane.privacy.accountant import EXACT_UPLOADS, exceeds_budget
from fedlane.privacy.gaussian import gaussian_epsilon
from fedlane.privacy.paper import composed_gaussian, formula_6, leakage_lower_bound
from fedlane.validate import InputError
from support.client_terms import paper_terms, terms


@pytest.mark.parametrize(
    "uploads", [12, pytest.param(EXACT_UPLOADS + 44, marks=pytest.mark.slow)], ids=["every count", "some counts"]
)
def test_a_curve_agrees_with_dp_accounting_at_every_count(uploads):
    """Never below it; within 0.1% of it up to 256 uploads and within 1% above."""
    curve = epsilon_curve(terms(), uploads)
    assert len(curve) == uploads + 1
    assert np.all(np.diff(curve) >= 0)
    assert curve[0] == pytest.approx(gaussian_epsilon(1 / 20.0, 1e-5))
    for count in {1, 7, uploads} | ({100, EXACT_UPLOADS, 259} if uploads > EXACT_UPLOADS else set()):
        exact = account(4.0, 0.1, 3 * count, 1e-5, histogram_noise=20.0)
        assert exact - 1e-9 <= curve[count] <= exact * (1.001 if count <= EXACT_UPLOADS else 1.01)


@pytest.mark.slow
def test_a_calibrated_budget_is_used_up_by_the_last_upload_and_not_before():
    z = calibrate(2.0, 1e-5, sample_rate=0.1, steps=90, histogram_noise=20.0)
    curve = epsilon_curve(terms(step_noise=z), 30)
    assert curve[30] == pytest.approx(2.0, abs=1e-3)
    assert curve[30] <= 2.0
    assert curve[25] < 1.95


def test_spent_reports_all_three_epsilons():
    paper = spent(paper_terms(sample_rate=0.02), 4)
    assert paper.epsilon == pytest.approx(leakage_lower_bound(0.5, 0.02, 3, 1e-3, 4), rel=1e-9)
    assert paper.epsilon_paper == pytest.approx(float(formula_6(0.8, 1e-3, 4)))
    assert paper.epsilon_composed == pytest.approx(composed_gaussian(0.8, 1e-3, 4))
    rigorous = spent(terms(), 10)
    assert rigorous.epsilon == pytest.approx(account(4.0, 0.1, 30, 1e-5, histogram_noise=20.0), rel=1e-3)
    per_upload = account(4.0, 0.1, 3, 1e-5)
    assert rigorous.epsilon_paper == pytest.approx(float(formula_6(per_upload, 1e-5, 10)), rel=1e-3)
    assert spent(terms(histogram_noise=0.0), 0).epsilon == 0.0


@pytest.mark.parametrize("uploads", [4, pytest.param(EXACT_UPLOADS + 44, marks=pytest.mark.slow)])
def test_the_paper_s_curve_stays_a_lower_bound(uploads):
    """It may be lower by the rounding of its grid, and above 256 uploads by that of counts."""
    curve = epsilon_curve(paper_terms(sample_rate=0.02), uploads)
    for count in {0, 1, 4, uploads} | ({17, 111} if uploads > EXACT_UPLOADS else set()):
        exact = leakage_lower_bound(0.5, 0.02, 3, 1e-3, count)
        assert 0.85 * exact <= curve[count] <= exact * (1 + 1e-9)


@pytest.mark.parametrize(
    "changes",
    [{"delta": 0.0}, {"sample_rate": 2.0}, {"mechanism": "none"}, {"max_uploads": 1.5}, {"step_noise": float("nan")}],
)
def test_terms_out_of_bounds_are_refused(changes):
    with pytest.raises(InputError, match="invalid client terms"):
        terms(**changes)


SETTINGS = {"clip_norm": 1.0, "local_iterations": 5}


def mechanism(name, sizes, epsilon=2.0, batch=10, uploads=10, **more):
    clients = np.shape(sizes)[1]
    return make_mechanism(
        name,
        np.broadcast_to(np.asarray(epsilon, float), clients),
        np.full(clients, 1e-5),
        np.array(sizes),
        batch_size=np.full(clients, batch),
        max_uploads=np.full(clients, uploads),
        **SETTINGS,
        **more,
    )


@pytest.mark.slow
def test_the_rigorous_mechanism_spends_its_whole_budget():
    spec = mechanism("rigorous", [[400, 100], [400, 8]], histogram_noise=10.0)
    assert spec.sampling == "poisson"
    np.testing.assert_array_equal(spec.batch_size, [[10, 10], [10, 8]])
    np.testing.assert_allclose(spec.sample_rate, [[0.025, 0.1], [0.025, 1.0]])
    assert spec.step_noise[0, 0] == spec.step_noise[1, 0] < spec.step_noise[0, 1] < spec.step_noise[1, 1]
    for at in np.ndindex(2, 2):
        client = Terms.of(spec, *at)
        epsilon = account(client.step_noise, client.sample_rate, 50, client.delta, histogram_noise=10.0)
        assert epsilon == pytest.approx(2.0, abs=1e-3)


def test_the_paper_s_mechanism_and_no_mechanism():
    paper = mechanism("paper", [[400]], histogram_noise=10.0)
    assert (paper.sampling, paper.histogram_noise, float(paper.step_noise.max())) == ("fixed", 0.0, 0.0)
    assert float(paper.upload_deviation(0.1)[0, 0]) == pytest.approx(4 * 0.1 * np.sqrt(5 * np.log(1e5)) / (400 * 2.0))
    none = mechanism("none", [[400]])
    assert none.clip_norm is None
    assert none.upload_deviation(0.1).max() == 0
    with pytest.raises(InputError, match="must be none, paper or rigorous"):
        mechanism("pure", [[400]])


@pytest.mark.parametrize(
    ("name", "period", "has_ledger", "is_lower_bound"),
    [("none", "run", False, False), ("paper", "round", True, True), ("rigorous", "run", True, False)],
)
def test_each_mechanism_has_its_budget_period_and_ledger(name, period, has_ledger, is_lower_bound):
    behaviour = mechanism_of(name)
    assert (behaviour.name, behaviour.budget_period) == (name, period)
    assert (behaviour.has_ledger, behaviour.is_lower_bound) == (has_ledger, is_lower_bound)


@pytest.mark.slow
def test_many_kinds_of_clients_share_few_rates_rounded_up():
    """Training and accounting use the same, larger rate, which depends on the replica's own clients only."""
    sizes = [[300, 310, 320, 330, 340, 350], [300, 300, 300, 300, 300, 300]]
    spec = mechanism("rigorous", sizes)
    exact = 10 / np.array(sizes)
    assert np.all(spec.sample_rate[0] >= exact[0])
    assert np.all(spec.sample_rate[0] <= exact[0] * 1.05)
    assert len(np.unique(spec.sample_rate[0])) <= 4
    np.testing.assert_array_equal(spec.sample_rate[1], exact[1])
    alone = mechanism("rigorous", sizes[:1])
    np.testing.assert_array_equal(alone.sample_rate[0], spec.sample_rate[0])
    np.testing.assert_array_equal(alone.step_noise[0], spec.step_noise[0])


def test_too_little_noise_is_refused_unless_it_is_allowed():
    """Every record is in every sample (10 of 10), so that the noise has a closed form."""
    with pytest.raises(InputError, match=r"privacy\.least_noise 0\.5"):
        mechanism("rigorous", [[10]], epsilon=1000.0)
    assert mechanism("rigorous", [[10]], epsilon=1000.0, least_noise=0.1).step_noise.max() < 0.5


def test_the_noise_of_a_released_histogram_is_in_records():
    """Before clipping at 0 and normalising, its standard deviation is as requested, within 5 standard errors."""
    counts = np.full((4000, 10), 500)
    normals = np.random.default_rng(0).standard_normal(counts.shape)
    shares = released_histogram(counts, 10.0, normals)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    total = (counts + 10.0 * normals).sum(axis=1, keepdims=True)
    assert np.std(shares * total - 500) == pytest.approx(10.0, rel=5 / np.sqrt(2 * counts.size))
    np.testing.assert_allclose(released_histogram(np.array([[1, 0]]), 10.0, np.array([[-1.0, -1.0]])), [[0.5, 0.5]])
    np.testing.assert_allclose(released_histogram(np.array([[3, 1]]), 1.0, np.array([[0.0, -2.0]])), [[1.0, 0.0]])


@pytest.mark.parametrize("changes", [{}, {"mechanism": "paper", "step_noise": 0.0, "upload_noise": 1e-3}])
def test_one_upload_more_than_agreed_exceeds_every_budget(changes):
    """Also where epsilon is not compared, because only a lower bound on it is known."""
    agreed = terms(max_uploads=6, **changes)
    assert not exceeds_budget(agreed, 6, 0.5 * agreed.epsilon)
    assert exceeds_budget(agreed, 7, 0.5 * agreed.epsilon)
    assert exceeds_budget(agreed, 6, 2 * agreed.epsilon) == (agreed.mechanism == "rigorous")


def test_a_long_curve_of_lower_bounds_never_exceeds_the_leakage():
    """Counts in between those computed have the bound of fewer uploads. With all records, leakage has a formula."""
    leaky = terms(mechanism="paper", sample_rate=1.0, step_noise=0.0, upload_noise=60.0, max_uploads=400)
    curve = epsilon_curve(leaky, 400)
    for uploads in range(1, 401):
        exact = gaussian_epsilon(uploads**0.5 * 3 * 2 / 60.0, leaky.delta)
        assert 0.9 * exact <= curve[uploads] <= exact * (1 + 1e-9)
