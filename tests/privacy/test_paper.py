"""The paper's privacy formulas, tight composition, and what the paper's noise leaks."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from scipy.stats import binom

from fedlane.privacy.gaussian import gaussian_epsilon, gaussian_noise
from fedlane.privacy.paper import (
    PaperLeakage,
    composed_classical,
    composed_gaussian,
    formula_6,
    leakage_lower_bound,
    lost_term,
    paper_noise,
)


def test_formula_6():
    assert float(formula_6(0.8, 1e-3, 250)) == pytest.approx(12.06, abs=5e-3)
    assert float(formula_6(0.8, 1e-3, 250)) == pytest.approx(0.8 * math.sqrt(250 * math.log(1e3) / math.log(2e3)))
    assert float(formula_6(0.8, 1e-3, 1)) < 0.8  # less than a single round's own epsilon: the formula drops a term


@pytest.mark.slow
def test_tight_composition_of_exact_gaussian_rounds():
    assert composed_gaussian(0.8, 1e-3, 250) == pytest.approx(27.9, abs=0.05)
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(gaussian_noise(0.8, 1e-3)), 250))
    assert composed_gaussian(0.8, 1e-3, 250) == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-4)
    assert composed_gaussian(0.8, 1e-3, 1) == pytest.approx(0.8)


@pytest.mark.slow
def test_tight_composition_of_the_classical_noise():
    """14.6 where formula (6) says 12.06; the formula plus its lost term of 5.26 is an upper bound."""
    assert composed_classical(0.8, 1e-3, 250) == pytest.approx(14.6, abs=0.05)
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(math.sqrt(2 * math.log(2e3)) / 0.8), 250))
    assert composed_classical(0.8, 1e-3, 250) == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-4)
    assert lost_term(0.8, 1e-3, 250) == pytest.approx(250 * 0.8**2 / (4 * math.log(2e3)))
    assert lost_term(0.8, 1e-3, 250) == pytest.approx(5.26, abs=5e-3)
    upper = float(formula_6(0.8, 1e-3, 250)) + lost_term(0.8, 1e-3, 250)
    assert upper == pytest.approx(17.32, abs=5e-3)
    assert float(formula_6(0.8, 1e-3, 250)) < composed_classical(0.8, 1e-3, 250) < upper
    assert composed_classical(0.8, 1e-3, 1) < 0.8  # more noise than one round needs


def test_sigma_of_theorem_1():
    """In multiples of eta C / b: independent of eta and C."""
    sigma = 4 * 0.1 * 2.0 * math.sqrt(5 * math.log(1e3)) / (6000 * 0.8)
    assert float(paper_noise(0.8, 1e-3, 6000, 10, 5)) * 0.1 * 2.0 / 10 == pytest.approx(sigma)


def test_one_round_at_the_paper_s_settings():
    """At least 227 instead of the claimed 0.8: 226.9 if the record is added, far more if it replaces another."""
    noise = float(paper_noise(0.8, 1e-3, 6000, 10, 5))
    assert PaperLeakage(noise, 10 / 6000, 5, displacement=1.0).epsilon(1e-3) == pytest.approx(226.95, abs=0.05)
    assert leakage_lower_bound(noise, 10 / 6000, 5, 1e-3) >= 227
    wide = float(paper_noise(25, 1e-3, 6000, 64, 5))
    assert PaperLeakage(wide, 64 / 6000, 5, displacement=1.0).epsilon(1e-3) == pytest.approx(2e4, rel=0.03)


def test_one_round_by_integration():
    """Integrating the mixture against the normal gives delta at the bound's epsilon."""
    noise, rate, steps, delta = 1.7, 0.2, 3, 1e-3
    epsilon = leakage_lower_bound(noise, rate, steps, delta)
    x = np.linspace(-20, 30, 400_001)
    mu = 2 / noise

    def density(shift):
        return np.exp(-((x - shift) ** 2) / 2) / np.sqrt(2 * np.pi)

    mixture = sum(binom.pmf(k, steps, rate) * density(k * mu) for k in range(steps + 1))
    assert np.trapezoid(np.maximum(mixture - np.exp(epsilon) * density(0), 0), x) == pytest.approx(delta, rel=1e-4)


@pytest.mark.slow
def test_composed_uploads_leak_almost_dp_accounting_s_upper_bound():
    """The lower bound is within two percent of the upper bound."""
    noise, rate, steps, delta = 1.5, 0.1, 3, 1e-4
    k = np.arange(steps + 1)
    mixture = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        noise / 2,
        [float(x) for x in k],
        [float(p) for p in binom.pmf(k, steps, rate)],
        value_discretization_interval=1e-3,
    )
    for uploads in (2, 20, 100):
        upper = mixture.self_compose(uploads).get_epsilon_for_delta(delta)
        assert 0.98 * upper <= leakage_lower_bound(noise, rate, steps, delta, uploads) <= upper * (1 + 1e-9)


def test_more_uploads_never_leak_less_and_none_leak_nothing():
    leakage = PaperLeakage(float(paper_noise(0.8, 1e-3, 6000, 10, 5)), 10 / 6000, 5)
    epsilons = [leakage.epsilon(1e-3, uploads) for uploads in (0, 1, 2, 3, 10, 100)]
    assert epsilons[0] == 0.0
    assert epsilons == sorted(epsilons)


def test_a_record_in_every_sample_is_a_gaussian_mechanism():
    assert leakage_lower_bound(8.0, 1.0, 3, 1e-4, 4) == pytest.approx(gaussian_epsilon(2 * 3 * 2 / 8.0, 1e-4))
    assert PaperLeakage(8.0, 1 - 1e-9, 3).epsilon(1e-4) == pytest.approx(gaussian_epsilon(3 * 2 / 8.0, 1e-4), rel=1e-6)


@pytest.mark.slow
def test_many_gentle_uploads_do_not_lose_the_bound():
    """Rounding on the grid is worst here: 5,000 uploads at noise 10 leak more than 1,000, and at least 65% of
    dp-accounting's 7.42."""
    thousand, more = leakage_lower_bound(10.0, 0.02, 5, 1e-6, 1000), leakage_lower_bound(10.0, 0.02, 5, 1e-6, 5000)
    assert 2.8 < thousand < more
    assert 0.65 * 7.42 < more < 7.42
