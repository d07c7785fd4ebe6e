"""The claims of Figs. 6 and 7: against the baselines."""

from collections.abc import Callable

import numpy as np

from fedlane.experiments.claims.evidence import (
    CALIBRATED,
    LITERAL,
    UCB,
    Case,
    Evidence,
    Finding,
    accuracy_above,
    both_readings,
    final_note,
    less,
    mean_accuracy,
    time_to,
)
from fedlane.experiments.figures import label
from fedlane.experiments.reproduce import BASELINES, PAPER
from fedlane.experiments.store import Experiment


def accuracy_over_baselines(e: Evidence) -> Finding:
    return Finding(
        accuracy_above(e, True, "base", BASELINES, CALIBRATED),
        lambda: accuracy_above(e, True, "base", BASELINES, LITERAL),
        free_v=True,
        note=final_note(e, True, "base", BASELINES),
    )


def keeps_improving(e: Evidence) -> Finding:
    """The estimates' error falls from T/4 to T/2 to T, and regret a round from quarter 1 to 2 to 4."""
    cases = []
    for task, letter in e.tasks():
        for policy in PAPER:
            found = e.rewards(Experiment(task, policy))
            quarters = np.stack([part.mean(axis=1) for part in np.array_split(found.regret, 4, axis=1)], axis=1)
            name = f"{letter} {label(policy)}"
            cases += [
                Case(f"{name} error T/4 to T/2", found.error[:, 0] - found.error[:, 1], policy),
                Case(f"{name} error T/2 to T", found.error[:, 1] - found.error[:, 2], policy),
                Case(f"{name} regret quarter 1 to 2", quarters[:, 0] - quarters[:, 1], policy),
                Case(f"{name} regret quarter 2 to 4", quarters[:, 1] - quarters[:, 3], policy),
            ]
    return Finding(cases, free_v=True)


def ucb_below_random(e: Evidence) -> Finding:
    cases = [
        less(f"{letter} {label(policy)}", e.total_s(Experiment(task, policy)), e.total_s(Experiment(task, "random")))
        for task, letter in e.tasks()
        for policy in UCB
    ]
    return Finding(cases)


def interference(e: Evidence) -> Finding:
    """Single-UCB's gap to P, as a share of Random's delay, is larger with client-specific interference than without."""
    cases = []
    for task, letter in e.tasks(both=False):
        for policy in PAPER[2::3]:
            for other in UCB:
                own, same = (
                    (e.total_s(Experiment(task, other, setting)) - e.total_s(Experiment(task, policy, setting)))
                    / e.total_s(Experiment(task, "random", setting)).mean()
                    for setting in ("base", "same-interference")
                )
                cases.append(Case(f"{letter} {label(other)} to {label(policy)}", own - same))
    return Finding(cases)


def delay_over_baselines(first_half_too: bool) -> Callable[[Evidence], Finding]:
    """D(P, T) below each baseline's; or, for the growth of the gap, that the second half of the rounds adds to it."""

    def cases(e: Evidence, reading: str) -> list[Case]:
        found = []
        for task, letter in e.tasks():
            for policy in PAPER:
                for other in BASELINES:
                    mine, its = (
                        e.schedules(cell).delay_s
                        for cell in (Experiment(task, policy, "base", reading), Experiment(task, other))
                    )
                    start = 0 if first_half_too else mine.shape[1] // 2
                    name = f"{letter} {label(policy)} below {label(other)}"
                    found.append(less(name, mine[:, start:].sum(axis=1), its[:, start:].sum(axis=1), policy))
        return found

    return lambda e: both_readings(lambda reading: cases(e, reading), free_v=True)


def better_pairs(e: Evidence) -> Finding:
    """Mean reward of the assigned pairs above each baseline's; the mean of min(d, d_max) is d_max (1 - it)."""
    cases = [
        Case(
            f"{letter} {label(policy)} over {label(other)}",
            e.rewards(Experiment(task, policy)).chosen - e.rewards(Experiment(task, other)).chosen,
            policy,
        )
        for task, letter in e.tasks()
        for policy in PAPER
        for other in BASELINES
    ]
    return Finding(cases, free_v=True, note="the mean of min(d, d_max) is d_max (1 - mean reward): one test for both")


def pareto(e: Evidence) -> Finding:
    """Time to 90% of the lowest mean final accuracy is below each baseline's, and none is both faster and better.

    A seed that never gets there counts the longer of the two policies' whole times.
    """
    cases: list[Case] = []
    dominated: list[Case] = []
    for task, letter in e.tasks():
        cells = {policy: Experiment(task, policy) for policy in (*PAPER, *BASELINES)}
        target = 0.9 * min(e.accuracy(cell)[:, -1].mean() for cell in cells.values())
        for policy in PAPER:
            for other in BASELINES:
                pair = cells[policy], cells[other]
                longest = np.maximum(*(e.clock_s(cell)[:, -1] for cell in pair))
                times = [time_to(e.accuracy(cell), e.clock_s(cell), target, longest) for cell in pair]
                cases.append(less(f"{letter} {label(policy)} before {label(other)}", times[0], times[1], policy))
                slower = Case("", e.clock_s(pair[0])[:, -1] - e.clock_s(pair[1])[:, -1])
                worse = Case("", mean_accuracy(e, pair[1]) - mean_accuracy(e, pair[0]))
                if slower.holds and worse.holds:
                    dominated.append(Case(f"{letter} {label(other)} dominates {label(policy)}", -worse.values, policy))
    note = f"a baseline is both faster and more accurate in {len(dominated)} of {len(cases)} cases"
    return Finding([*cases, *dominated], free_v=True, note=note)
