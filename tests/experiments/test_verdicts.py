"""How findings become verdicts: intervals, corrections and cases, on values made by hand."""

from dataclasses import replace

import numpy as np
import pytest

from fedlane.experiments.claims.cases import Case, Differs, Finding, Within, holm
from fedlane.experiments.claims.verdicts import Claim, Reading, verdicts_on
from fedlane.records import FloatArray


def test_intervals_are_paired_student_intervals() -> None:
    values = np.array([1.0, 2.0, 3.0])
    mean, low, high = Case("", values).interval
    half = 4.302652729911275 / np.sqrt(3)
    assert mean == 2.0
    assert np.allclose([low, high], [2 - half, 2 + half])
    assert not Case("", values).holds
    assert Case("", values + 1).holds
    assert Case("", values, bound=5.0, below=True).holds
    assert not Case("", values, bound=4.0, below=True).holds


def judged(*findings: Finding) -> list[str]:
    """Verdicts on claims with the given findings."""
    claims = [Claim("", "", "", lambda evidence, finding=finding: finding) for finding in findings]
    return [verdict.verdict for verdict in verdicts_on(claims, None)]  # type: ignore[arg-type]


def spread(mean: float, seeds: int = 20) -> FloatArray:
    """Values with this mean and a standard error of 1."""
    values = np.linspace(-1.0, 1.0, seeds)
    return mean + values / values.std(ddof=1) * np.sqrt(seeds)


def test_the_four_verdicts() -> None:
    clear, wrong, open_ = (Case("", spread(mean)) for mean in (10.0, -10.0, 0.5))
    assert judged(Finding([clear, clear]), Finding([clear, wrong]), Finding([clear, open_])) == [
        "holds",
        "refuted",
        "not decided",
    ]
    assert judged(Finding([clear], lambda: [wrong])) == ["depends on the reading"]
    assert judged(Finding([clear], lambda: [open_])) == ["holds"]
    assert judged(Finding([open_], lambda: [clear])) == ["not decided"]
    assert judged(Finding([wrong], alternative=("reading 12", [clear]))) == ["depends on the reading"]


def test_the_uncorrected_verdict_counts_each_case_s_own_interval() -> None:
    barely, wrong, open_ = (Case("", spread(mean)) for mean in (2.5, -2.5, 0.5))
    cases = {"holds": [barely] * 50, "refuted": [barely, open_, wrong], "not decided": [barely, open_]}
    assert {name: Reading("", of_name).uncorrected for name, of_name in cases.items()} == {name: name for name in cases}
    cases = {"holds": [barely, wrong, open_], "refuted": [wrong, wrong], "not decided": [wrong, open_]}
    found = {name: Reading("", of_name, any_of=True).uncorrected for name, of_name in cases.items()}
    assert found == {name: name for name in cases}


def test_an_interval_on_the_wrong_side_must_survive_the_number_of_cases() -> None:
    """At 2.5 standard errors, one case of one is refuted; one of fifty is expected by chance."""
    barely = Case("", spread(-2.5))
    assert barely.refuted
    assert judged(Finding([barely])) == ["refuted"]
    assert judged(Finding([barely, *[Case("", spread(0.5))] * 49])) == ["not decided"]
    assert judged(*[Finding([barely])] * 2, *[Finding([Case("", spread(0.5))])] * 30) == ["not decided"] * 32


def test_a_claim_that_one_case_satisfies() -> None:
    """One policy within the tolerance is enough; it is refuted only if all are outside."""
    inside, outside, unclear = (Within("", spread(mean) / 10, bound=1.0, tolerance=0.5) for mean in (10.0, 30.0, 14.5))
    assert judged(Finding([inside, outside], any_of=True)) == ["holds"]
    assert judged(Finding([outside, outside], any_of=True)) == ["refuted"]
    assert judged(Finding([outside, unclear], any_of=True)) == ["not decided"]
    assert Reading("", [inside, outside], any_of=True).deciding is inside


def test_a_two_sided_case_is_refuted_by_a_narrow_interval_around_zero() -> None:
    assert Differs("", spread(5.0) / 1e4, tolerance=0.005).holds
    assert Differs("", spread(0.5) / 1e4, tolerance=0.005).refuted
    wide = Differs("", spread(0.5), tolerance=0.005)
    assert not wide.holds
    assert not wide.refuted


def test_p_values_agree_with_the_intervals() -> None:
    for mean in np.linspace(-4.0, 4.0, 41):
        case = Case("", spread(float(mean)))
        assert (case.p_holds < 0.025) == case.holds
        assert case.refuted == (case.interval[2] < 0)
        below = replace(case, below=True)
        assert (below.p_holds < 0.025) == below.holds
        assert below.p_refuted == case.p_holds
    assert Case("", np.full(3, 2.0)).p_holds == 0.0
    assert Case("", np.full(3, -2.0)).refuted
    assert Case("", np.zeros(3)).p_holds == Case("", np.zeros(3)).p_refuted == 1.0


def test_holm_against_hand_computed_values() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
