"""The claims of Figs. 2 and 3: the effect of V and of privacy on accuracy and delay."""

from collections.abc import Callable, Sequence

import numpy as np

from fedlane.experiments.claims.cases import Case, Finding, Within
from fedlane.experiments.claims.comparisons import (
    ACCURACY_POINT,
    CALIBRATED,
    FIRST_STEP,
    KINDS,
    LITERAL,
    STEPS,
    TradeOffCases,
    accuracy_above,
    both_readings,
    by_policy,
    correlation,
    delay_falls_with_v,
    flattened,
    shortfall_note,
    shortfall_rises,
)
from fedlane.experiments.claims.evidence import Evidence
from fedlane.experiments.labels import policy_label
from fedlane.experiments.store import Experiment
from fedlane.privacy.paper import formula_6
from fedlane.records import FloatArray

PAPER_LEAKAGE = 12.05
"""The largest leakage (epsilon) that the paper reports."""
PAPER_UPLOADS = 250
"""Uploads of a client after which formula (6) gives that leakage."""
LEAKAGE_TOLERANCE = 0.25
"""A difference of the leakage that counts as a match, about 2%."""


def better_than_random(setting: str) -> Callable[[Evidence], Finding]:
    """The paper's policies have a higher mean accuracy than Random."""
    return lambda evidence: accuracy_above(evidence, False, setting, ["random"], free_v=False)


def gap_shrinks(evidence: Evidence) -> Finding:
    """The mean gap to Random in the first quarter of the tested rounds exceeds that in the last."""
    cases = []
    for task, policy, label in by_policy(evidence, both=False):
        gap = evidence.accuracy(Experiment(task, policy)) - evidence.accuracy(Experiment(task, "random"))
        quarter = max(gap.shape[1] // 4, 1)
        cases.append(Case(label, gap[:, :quarter].mean(axis=1) - gap[:, -quarter:].mean(axis=1)))
    return Finding(cases)


def saturates(evidence: Evidence) -> Finding:
    """From the first to the second half of the last quarter, accuracy gains less than one percentage point."""
    cases = []
    for task, policy, label in by_policy(evidence, both=False):
        accuracy = evidence.accuracy(Experiment(task, policy))
        half = max(accuracy.shape[1] // 8, 1)
        gain = accuracy[:, -half:].mean(axis=1) - accuracy[:, -2 * half : -half].mean(axis=1)
        cases.append(Case(label, gain, bound=ACCURACY_POINT, below=True))
    return Finding(cases, note="criterion: the gain within the last quarter stays below 0.01")


def delay_order(
    both: bool, setting: str = "base", steps: Sequence[tuple[int, int]] = STEPS
) -> Callable[[Evidence], Finding]:
    """The cumulative delay falls with every step of V."""
    return lambda evidence: both_readings(lambda reading: delay_falls_with_v(evidence, both, setting, reading, steps))


def trade_off(evidence: Evidence) -> Finding:
    """With every step of V, the quota shortfall rises and the delay falls."""

    def cases(reading: str, of: str = "assigned") -> TradeOffCases:
        return shortfall_rises(evidence, False, KINDS, "base", reading, of)

    assigned = cases(CALIBRATED)
    note = shortfall_note(assigned, cases(CALIBRATED, "punctual"))
    return Finding(flattened(assigned), lambda: flattened(cases(LITERAL)), note=note)


def accuracy_rises(evidence: Evidence, steps: Sequence[tuple[int, int]]) -> list[tuple[str, FloatArray]]:
    """For each step of V, its name and the rise (S,) of the mean accuracy."""
    rises = []
    for task, kind, label in by_policy(evidence, KINDS, both=False):
        for step in steps:
            low, high = (evidence.mean_accuracy(Experiment(task, f"{kind}:V={v}")) for v in step)
            rises.append((f"{label} V={step[0]} to {step[1]}", high - low))
    return rises


def no_rise(evidence: Evidence) -> Finding:
    """The rise of accuracy with each step of V stays below one percentage point."""
    cases = [Case(name, rise, bound=ACCURACY_POINT, below=True) for name, rise in accuracy_rises(evidence, STEPS)]
    return Finding(cases, note="one-sided criterion: the rise stays below 0.01")


def first_step(evidence: Evidence) -> Finding:
    """Accuracy falls from V = 1 to V = 10."""
    return Finding([Case(name, -rise) for name, rise in accuracy_rises(evidence, (FIRST_STEP,))])


def rise_together(evidence: Evidence) -> Finding:
    """Over the values of V, accuracy and delay of a seed are positively correlated."""
    cases = []
    for task, kind, label in by_policy(evidence, KINDS, both=False):
        experiments = [Experiment(task, f"{kind}:V={v}") for v in (1, 10, 100)]
        accuracy = np.stack([evidence.mean_accuracy(experiment) for experiment in experiments], axis=1)
        delay = np.stack([evidence.total_s(experiment)[: len(accuracy)] for experiment in experiments], axis=1)
        cases.append(Case(label, correlation(accuracy, delay)))
    return Finding(cases)


def leakage(evidence: Evidence) -> Finding:
    """A client's largest leakage is within 0.25 of 12.05 for some policy; the paper does not say for which."""
    cases, lengths = [], []
    for task, policy, label in by_policy(evidence, both=False):
        experiment = evidence.read(Experiment(task, policy, "private"))
        scenario, rounds = experiment.scenario(), evidence.store.rounds
        uploads = evidence.schedules(experiment).assigned.max(axis=1) * rounds
        leaked = formula_6(scenario.epsilon[0], scenario.per_client(scenario.privacy.delta)[0], uploads)
        cases.append(Within(label, leaked, bound=PAPER_LEAKAGE, tolerance=LEAKAGE_TOLERANCE))
        lengths.append(f"{policy_label(policy)} {PAPER_UPLOADS * rounds / uploads.mean():.0f}")
    note = (
        f"criterion: within {LEAKAGE_TOLERANCE} of 12.05 for some policy; {PAPER_UPLOADS} uploads give "
        f"{float(formula_6(0.8, 1e-3, PAPER_UPLOADS)):.2f}, and the T at which the client with the most uploads has "
        f"that many is {', '.join(lengths)} (T is not given; ours is {evidence.store.rounds})"
    )
    return Finding(cases, any_of=True, note=note)


def worse_than(setting: str, policies: Sequence[str]) -> Callable[[Evidence], Finding]:
    """The mean accuracy in a setting is below that in the base setting."""

    def find(evidence: Evidence) -> Finding:
        cases = []
        for task, policy, label in by_policy(evidence, policies, both=False):
            base, changed = (evidence.mean_accuracy(Experiment(task, policy, name)) for name in ("base", setting))
            cases.append(Case(label, base - changed))
        return Finding(cases)

    return find
