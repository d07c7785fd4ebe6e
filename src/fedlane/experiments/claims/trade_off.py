"""The claims of Figs. 2 and 3: what V and privacy do to accuracy and delay."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedlane.experiments.claims.evidence import (
    CALIBRATED,
    KINDS,
    LEAKAGE,
    LITERAL,
    POINT,
    STEPS,
    Case,
    Evidence,
    Finding,
    accuracy_above,
    both_readings,
    correlation,
    delay_falls_with_v,
    final_note,
    mean_accuracy,
    shortfall_note,
    shortfall_rises,
)
from fedlane.experiments.figures import label
from fedlane.experiments.reproduce import PAPER
from fedlane.experiments.store import Experiment
from fedlane.privacy.paper import formula_6


def better_than_random(setting: str) -> Callable[[Evidence], Finding]:
    def find(e: Evidence) -> Finding:
        cases = accuracy_above(e, False, setting, ["random"], CALIBRATED)
        note = final_note(e, False, setting, ["random"])
        return Finding(cases, lambda: accuracy_above(e, False, setting, ["random"], LITERAL), note=note)

    return find


def gap_shrinks(e: Evidence) -> Finding:
    """The mean gap of the first quarter of the tested rounds exceeds that of the last."""
    cases = []
    for task, letter in e.tasks(both=False):
        for policy in PAPER:
            gap = e.accuracy(Experiment(task, policy)) - e.accuracy(Experiment(task, "random"))
            quarter = max(gap.shape[1] // 4, 1)
            shrunk = gap[:, :quarter].mean(axis=1) - gap[:, -quarter:].mean(axis=1)
            cases.append(Case(f"{letter} {label(policy)}", shrunk))
    return Finding(cases)


def saturates(e: Evidence) -> Finding:
    """From the first to the second half of the last quarter, accuracy gains less than one point."""
    cases = []
    for task, letter in e.tasks(both=False):
        for policy in PAPER:
            accuracy = e.accuracy(Experiment(task, policy))
            half = max(accuracy.shape[1] // 8, 1)
            gain = accuracy[:, -half:].mean(axis=1) - accuracy[:, -2 * half : -half].mean(axis=1)
            cases.append(Case(f"{letter} {label(policy)}", gain, bound=POINT, below=True))
    return Finding(cases, note="criterion: the gain within the last quarter stays below 0.01")


def delay_order(
    both: bool, setting: str = "base", steps: Sequence[tuple[int, int]] = STEPS
) -> Callable[[Evidence], Finding]:
    def find(e: Evidence) -> Finding:
        return Finding(
            delay_falls_with_v(e, both, setting, CALIBRATED, steps),
            lambda: delay_falls_with_v(e, both, setting, LITERAL, steps),
        )

    return find


def trade_off(e: Evidence) -> Finding:
    found = both_readings(lambda reading: shortfall_rises(e, False, KINDS, "base", reading))
    punctual = shortfall_rises(e, False, KINDS, "base", CALIBRATED, "punctual")
    return replace(found, note=shortfall_note(found.cases, punctual))


def accuracy_with_v(e: Evidence, steps: Sequence[tuple[int, int]], sign: int, bound: float, below: bool) -> list[Case]:
    return [
        Case(
            f"{letter} {label(kind)} V={low} to {high}",
            sign
            * (
                mean_accuracy(e, Experiment(task, f"{kind}:V={high}"))
                - mean_accuracy(e, Experiment(task, f"{kind}:V={low}"))
            ),
            bound=bound,
            below=below,
        )
        for task, letter in e.tasks(both=False)
        for kind in KINDS
        for low, high in steps
    ]


def no_rise(e: Evidence) -> Finding:
    """The rise of accuracy with each step of V stays below one point."""
    cases = accuracy_with_v(e, STEPS, 1, POINT, True)
    return Finding(cases, note="one-sided criterion: the rise stays below 0.01")


def first_step(e: Evidence) -> Finding:
    return Finding(accuracy_with_v(e, STEPS[:1], -1, 0.0, False))


def rise_together(e: Evidence) -> Finding:
    """The correlation over V of accuracy and delay on one seed is positive."""
    cases = []
    for task, letter in e.tasks(both=False):
        for kind in KINDS:
            cells = [Experiment(task, f"{kind}:V={v}") for v in (1, 10, 100)]
            accuracy = np.stack([mean_accuracy(e, cell) for cell in cells], axis=1)
            delay = np.stack([e.total_s(cell)[: len(accuracy)] for cell in cells], axis=1)
            cases.append(Case(f"{letter} {label(kind)}", correlation(accuracy, delay)))
    return Finding(cases)


def leakage(e: Evidence) -> Finding:
    """The interval of the largest leakage of a client covers 12.05: two one-sided cases a policy."""
    cases, most = [], []
    for task, letter in e.tasks(both=False):
        for policy in PAPER:
            cell = Experiment(task, policy, "private")
            scenario = cell.scenario()
            uploads = e.schedules(cell).assigned.max(axis=1) * e.store.rounds
            leaked = formula_6(scenario.epsilon[0], scenario.per_client(scenario.privacy.delta)[0], uploads)
            cases.append(Covers(f"{letter} {label(policy)}", leaked, bound=LEAKAGE))
            most.append(f"{label(policy)} {uploads.mean():.0f}")
    known = float(formula_6(0.8, 1e-3, 250))
    note = (
        f"criterion: the interval covers 12.05; 250 uploads give {known:.2f}; mean largest uploads: {', '.join(most)}"
    )
    return Finding(cases, note=note)


@dataclass(frozen=True)
class Covers(Case):
    """A case that holds when its interval covers the bound."""

    @property
    def margin(self) -> float:
        _, low, high = self.interval
        return min(high - self.bound, self.bound - low)


@dataclass(frozen=True)
class Excludes(Case):
    """A case that holds when its interval leaves the bound out, on either side."""

    @property
    def margin(self) -> float:
        _, low, high = self.interval
        return max(low - self.bound, self.bound - high)


def worse_than(setting: str, policies: Sequence[str]) -> Callable[[Evidence], Finding]:
    def find(e: Evidence) -> Finding:
        cases = [
            Case(
                f"{letter} {label(policy)}",
                mean_accuracy(e, Experiment(task, policy)) - mean_accuracy(e, Experiment(task, policy, setting)),
            )
            for task, letter in e.tasks(both=False)
            for policy in policies
        ]
        return Finding(cases)

    return find
