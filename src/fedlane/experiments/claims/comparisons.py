"""Comparisons that several claims share."""

from collections.abc import Callable, Iterator, Sequence
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


def both_readings(cases: Callable[[str], list[Case]], free_v: bool = False, note: str = "") -> Finding:
    """Finding from a function that returns the cases for a reading."""
    return Finding(cases(CALIBRATED), lambda: cases(LITERAL), free_v=free_v, note=note)


def by_policy(
    evidence: Evidence, policies: Sequence[str] = PAPER_POLICIES, both: bool = True
) -> Iterator[tuple[str, str, str]]:
    """Task, policy and case label for every task and policy."""
    for task, letter in evidence.tasks(both):
        yield from ((task, policy, f"{letter} {policy_label(policy)}") for policy in policies)


def by_pair(
    evidence: Evidence, others: Sequence[str], word: str, both: bool = True
) -> Iterator[tuple[str, str, str, str]]:
    """Task, policy of the paper, other policy and case label for every combination."""
    for task, policy, label in by_policy(evidence, both=both):
        yield from ((task, policy, other, f"{label} {word} {policy_label(other)}") for other in others)


def accuracy_above(evidence: Evidence, both: bool, setting: str, others: Sequence[str], free_v: bool) -> Finding:
    """Each of the paper's policies has a higher mean accuracy than each of the others."""

    def gaps(of: Callable[[Experiment], FloatArray], reading: str) -> list[Case]:
        return [
            Case(label, of(Experiment(task, policy, setting, reading)) - of(Experiment(task, other, setting)), policy)
            for task, policy, other, label in by_pair(evidence, others, "over", both)
        ]

    final = gaps(lambda experiment: evidence.accuracy(experiment)[:, -1], CALIBRATED)
    note = f"final accuracy: {counted(final)} hold"
    return both_readings(lambda reading: gaps(evidence.mean_accuracy, reading), free_v, note)


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
