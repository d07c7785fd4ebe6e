"""Comparisons that several claims share."""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from fedlane.experiments.claims.cases import Case, Finding, counted, less
from fedlane.experiments.claims.evidence import Evidence
from fedlane.experiments.labels import PAPER_POLICIES, policy_label
from fedlane.experiments.store import Experiment
from fedlane.records import FloatArray

KINDS = ("mamab-om", "mamab-gmba")
FIRST_STEP = (1, 10)
STEPS = (FIRST_STEP, (10, 100))
"""Pairs of successive values of V."""
ACCURACY_POINT = 0.01
"""One percentage point of accuracy: smaller changes are ignored."""
CALIBRATED, LITERAL = "calibrated", "literal"

TradeOffCases = list[tuple[Case, Case]]
"""For each step of V: the rise of the quota shortfall, and the fall of the delay."""


def mean_accuracy(evidence: Evidence, experiment: Experiment) -> FloatArray:
    """(S,): accuracy, mean over the tested rounds."""
    return evidence.accuracy(experiment).mean(axis=1)


def both_readings(cases: Callable[[str], list[Case]], free_v: bool = False) -> Finding:
    """Finding from a function that returns the cases for a reading."""
    return Finding(cases(CALIBRATED), lambda: cases(LITERAL), free_v=free_v)


def accuracy_above(evidence: Evidence, both: bool, setting: str, others: Sequence[str], reading: str) -> list[Case]:
    """Each of the paper's policies has a higher mean accuracy than each of the others."""
    return [
        Case(
            f"{letter} {policy_label(policy)} over {policy_label(other)}",
            mean_accuracy(evidence, Experiment(task, policy, setting, reading))
            - mean_accuracy(evidence, Experiment(task, other, setting)),
            policy,
        )
        for task, letter in evidence.tasks(both)
        for policy in PAPER_POLICIES
        for other in others
    ]


def final_accuracy_note(evidence: Evidence, both: bool, setting: str, others: Sequence[str]) -> str:
    """In how many cases the paper's policies have a higher final accuracy than the others."""

    def final(task: str, policy: str) -> FloatArray:
        return evidence.accuracy(Experiment(task, policy, setting))[:, -1]

    cases = [
        Case("", final(task, policy) - final(task, other))
        for task, _ in evidence.tasks(both)
        for policy in PAPER_POLICIES
        for other in others
    ]
    return f"final accuracy: {counted(cases)} hold"


def delay_falls_with_v(
    evidence: Evidence, both: bool, setting: str, reading: str, steps: Sequence[tuple[int, int]] = STEPS
) -> list[Case]:
    """The cumulative delay falls with every step of V."""
    return [
        less(
            f"{letter} {policy_label(kind)} V={high} below V={low}",
            evidence.total_s(Experiment(task, f"{kind}:V={high}", setting, reading)),
            evidence.total_s(Experiment(task, f"{kind}:V={low}", setting, reading)),
        )
        for task, letter in evidence.tasks(both)
        for kind in KINDS
        for low, high in steps
    ]


def shortfall_rises(
    evidence: Evidence, both: bool, kinds: Sequence[str], setting: str, reading: str, of: str = "assigned"
) -> TradeOffCases:
    """With every step of V, the quota shortfall of assigned (or punctual) shares rises and the delay falls."""
    cases = []
    for task, letter in evidence.tasks(both):
        for kind in kinds:
            for low, high in STEPS:
                small, large = (
                    evidence.schedules(Experiment(task, f"{kind}:V={v}", setting, reading)) for v in (low, high)
                )
                name = f"{letter} {setting} {policy_label(kind)} V={low} to {high}"
                rise = Case(f"{name}, shortfall", large.shortfall(of) - small.shortfall(of))
                cases.append((rise, less(f"{name}, delay", large.total_s, small.total_s)))
    return cases


def flattened(cases: TradeOffCases) -> list[Case]:
    """Both cases of every step in one list."""
    return list(chain.from_iterable(cases))


def shortfall_note(assigned: TradeOffCases, punctual: TradeOffCases) -> str:
    """How many cases of each kind hold."""
    rises, falls = ([pair[index] for pair in assigned] for index in (0, 1))
    punctual_rises = [rise for rise, _ in punctual]
    return (
        f"shortfall rises {counted(rises)}, delay falls {counted(falls)}; "
        f"by punctual shares shortfall rises {counted(punctual_rises)}"
    )


def correlation(a: FloatArray, b: FloatArray) -> FloatArray:
    """(S,): correlation of each row of two arrays (S, n); 0 if one of them is constant."""
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    scale = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return np.asarray(np.divide((a * b).sum(axis=1), scale, out=np.zeros(len(a)), where=scale > 0))
