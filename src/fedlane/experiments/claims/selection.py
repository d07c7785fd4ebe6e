"""The claims of Figs. 4 and 5: rounds within a time budget, and the selection of clients."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fedlane.experiments.claims.cases import Case, Differs, Finding, NotComputedError, counted
from fedlane.experiments.claims.comparisons import (
    CALIBRATED,
    LITERAL,
    TradeOffCases,
    both_readings,
    by_policy,
    correlation,
    flattened,
    shortfall_note,
    shortfall_rises,
)
from fedlane.experiments.claims.evidence import Evidence
from fedlane.experiments.labels import FASHION_MNIST, OM_POLICIES, policy_label
from fedlane.experiments.reproduce import TIME_BUDGETS
from fedlane.experiments.store import Experiment

VISIBLE_SHARE = 0.005
"""A difference of shares of rounds that a figure can show."""


def more_rounds(pairs: Sequence[tuple[str, str]]) -> Callable[[Evidence], Finding]:
    """The first policy of each pair completes more rounds than the second, on average over the time budgets.

    Rounds against budget form a curve, and curves are compared by their means. The note counts single budgets.
    """

    def gains(evidence: Evidence, reading: str) -> list[tuple[str, list[Case]]]:
        by_pair = []
        for task, letter in evidence.tasks():
            random_s = evidence.total_s(Experiment(task, "random")).mean()
            for better, worse in pairs:
                faster, slower = (
                    evidence.schedules(Experiment(task, policy, "base", reading)) for policy in (better, worse)
                )
                name, single = f"{letter} {policy_label(better)} over {policy_label(worse)}", []
                for share in TIME_BUDGETS:
                    budget_s = float(np.round(share * random_s, -1))
                    rounds = slower.rounds_within(budget_s)
                    gain = (faster.rounds_within(budget_s) - rounds) / max(rounds.mean(), 1.0)
                    single.append(Case(f"{name}, {budget_s:g} s", gain))
                by_pair.append((name, single))
        return by_pair

    def means(evidence: Evidence, reading: str) -> list[Case]:
        return [
            Case(name, np.mean([case.values for case in single], axis=0)) for name, single in gains(evidence, reading)
        ]

    def find(evidence: Evidence) -> Finding:
        single = [case for _, cases in gains(evidence, CALIBRATED) for case in cases]
        worst = min(single, key=lambda case: case.margin)
        mean, low, high = worst.interval
        note = f"single budgets: {counted(single)} hold, at worst {mean:.3g} [{low:.3g}, {high:.3g}] ({worst.label})"
        return replace(both_readings(lambda reading: means(evidence, reading)), note=note)

    return find


def quota_order(evidence: Evidence) -> Finding:
    """beta_10 exceeds beta_1 visibly, and no step of beta from one client to the next is negative."""
    cases = [case for task, letter in evidence.tasks() for case in _quota_cases(evidence, task, letter, "nonuniform")]
    note = "our criterion: beta_10 - beta_1 above 0.005, which a figure can show; steps may be 0; no test is needed, "
    note += "as quotas do not vary by seed"
    try:
        with_dimension = _quota_cases(evidence, FASHION_MNIST, "F", "samples-800-nonuniform-sqrt_d")
    except NotComputedError:
        return Finding(cases, note=note)
    return Finding(cases, alternative=("readings 17 and 21 (800 samples, sqrt(d))", with_dimension), note=note)


def _quota_cases(evidence: Evidence, task: str, letter: str, setting: str) -> list[Case]:
    quota = evidence.schedules(Experiment(task, "mamab-om:V=1", setting)).quota
    return [
        Case(f"{letter} beta_10 - beta_1", quota[:, -1] - quota[:, 0], bound=VISIBLE_SHARE),
        Case(f"{letter} smallest step", np.diff(quota, axis=1).min(axis=1), bound=-1e-12),
    ]


def follows_quota(evidence: Evidence) -> Finding:
    """Over clients, the assigned share correlates with beta, and more strongly than under equal epsilon.

    Both beta and speed rise with a client's index: without the second case, selection by speed alone would pass.
    """
    cases, raw, excess = [], [], []
    for task, policy, label in by_policy(evidence, OM_POLICIES):
        nonuniform, equal = (
            evidence.schedules(Experiment(task, policy, setting)) for setting in ("nonuniform", "base")
        )
        with_quota = correlation(nonuniform.assigned, nonuniform.quota)
        raw.append(Case(label, with_quota))
        difference = with_quota - correlation(equal.assigned, nonuniform.quota)
        excess.append(Case(f"{label} over equal epsilon", difference))
        cases += [raw[-1], excess[-1]]
    note = (
        f"raw correlation: {counted(raw)} hold; its excess over equal epsilon: {counted(excess)}; with the quotas of "
    )
    note += "claim 18 there is hardly anything to follow; fig-data shows quotas that differ"
    return Finding(cases, note=note)


def depends_on_v(evidence: Evidence) -> Finding:
    """The spread over clients of the assigned share differs between V = 1 and V = 100, in either direction."""
    cases = []
    for task, letter in evidence.tasks():
        for setting in ("base", "nonuniform"):
            low, high = (
                evidence.schedules(Experiment(task, f"mamab-om:V={v}", setting)).assigned.std(axis=1) for v in (1, 100)
            )
            cases.append(Differs(f"{letter} {setting} OM V=100 minus V=1", high - low, tolerance=VISIBLE_SHARE))
    return Finding(
        cases, note="two-sided criterion: holds if the interval excludes 0, refuted if it lies within 0.005 of 0"
    )


def selection_trade_off(evidence: Evidence) -> Finding:
    """With every step of V, OM's quota shortfall rises and its delay falls."""

    def cases(setting: str, reading: str, of: str = "assigned") -> TradeOffCases:
        return shortfall_rises(evidence, True, ("mamab-om",), setting, reading, of)

    assigned, punctual = (
        [*cases("base", CALIBRATED, of), *cases("nonuniform", CALIBRATED, of)] for of in ("assigned", "punctual")
    )
    note = shortfall_note(assigned, punctual)
    return Finding(flattened(assigned), lambda: flattened(cases("base", LITERAL)), note=note)
