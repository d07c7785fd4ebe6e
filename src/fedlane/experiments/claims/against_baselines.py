"""The claims of Figs. 6 and 7: comparisons with the baselines."""

from collections.abc import Callable

import numpy as np

from fedlane.experiments.claims.cases import Case, Finding, less
from fedlane.experiments.claims.comparisons import (
    CALIBRATED,
    LITERAL,
    accuracy_above,
    both_readings,
    final_accuracy_note,
    mean_accuracy,
)
from fedlane.experiments.claims.evidence import Evidence
from fedlane.experiments.labels import BASELINES, LARGEST_V_POLICIES, PAPER_POLICIES, UCB_POLICIES, policy_label
from fedlane.experiments.store import Experiment
from fedlane.records import FloatArray


def accuracy_over_baselines(evidence: Evidence) -> Finding:
    """The paper's policies have a higher mean accuracy than every baseline."""
    return Finding(
        accuracy_above(evidence, True, "base", BASELINES, CALIBRATED),
        lambda: accuracy_above(evidence, True, "base", BASELINES, LITERAL),
        free_v=True,
        note=final_accuracy_note(evidence, True, "base", BASELINES),
    )


def keeps_improving(evidence: Evidence) -> Finding:
    """The error of the estimates falls from T/4 to T/2 to T, and the regret per round from quarter 1 to 2 to 4."""
    cases = []
    for task, letter in evidence.tasks():
        for policy in PAPER_POLICIES:
            rewards = evidence.rewards(Experiment(task, policy))
            quarters = np.stack([part.mean(axis=1) for part in np.array_split(rewards.regret, 4, axis=1)], axis=1)
            name = f"{letter} {policy_label(policy)}"
            cases += [
                Case(f"{name} error T/4 to T/2", rewards.error[:, 0] - rewards.error[:, 1], policy),
                Case(f"{name} error T/2 to T", rewards.error[:, 1] - rewards.error[:, 2], policy),
                Case(f"{name} regret quarter 1 to 2", quarters[:, 0] - quarters[:, 1], policy),
                Case(f"{name} regret quarter 2 to 4", quarters[:, 1] - quarters[:, 3], policy),
            ]
    return Finding(cases, free_v=True)


def ucb_below_random(evidence: Evidence) -> Finding:
    """Single-UCB has a lower cumulative delay than Random."""
    cases = [
        less(
            f"{letter} {policy_label(policy)}",
            evidence.total_s(Experiment(task, policy)),
            evidence.total_s(Experiment(task, "random")),
        )
        for task, letter in evidence.tasks()
        for policy in UCB_POLICIES
    ]
    return Finding(cases)


def interference(evidence: Evidence) -> Finding:
    """Single-UCB's gap to OM and GMBA, relative to Random's delay, is larger with client-specific interference."""
    cases = []
    for task, letter in evidence.tasks(both=False):
        for policy in LARGEST_V_POLICIES:
            for other in UCB_POLICIES:
                specific, same = (
                    (
                        evidence.total_s(Experiment(task, other, setting))
                        - evidence.total_s(Experiment(task, policy, setting))
                    )
                    / evidence.total_s(Experiment(task, "random", setting)).mean()
                    for setting in ("base", "same-interference")
                )
                cases.append(Case(f"{letter} {policy_label(other)} to {policy_label(policy)}", specific - same))
    return Finding(cases)


def delay_over_baselines(all_rounds: bool) -> Callable[[Evidence], Finding]:
    """The delay of the paper's policies is below each baseline's, over all rounds or over the second half.

    The second half shows whether the gap keeps growing.
    """

    def cases(evidence: Evidence, reading: str) -> list[Case]:
        comparisons = []
        for task, letter in evidence.tasks():
            for policy in PAPER_POLICIES:
                for other in BASELINES:
                    delay_s, baseline_s = (
                        evidence.schedules(experiment).delay_s
                        for experiment in (Experiment(task, policy, "base", reading), Experiment(task, other))
                    )
                    start = 0 if all_rounds else delay_s.shape[1] // 2
                    name = f"{letter} {policy_label(policy)} below {policy_label(other)}"
                    totals = (delays[:, start:].sum(axis=1) for delays in (delay_s, baseline_s))
                    comparisons.append(less(name, *totals, policy=policy))
        return comparisons

    return lambda evidence: both_readings(lambda reading: cases(evidence, reading), free_v=True)


def better_pairs(evidence: Evidence) -> Finding:
    """The mean reward of the assigned pairs is above each baseline's."""
    cases = [
        Case(
            f"{letter} {policy_label(policy)} over {policy_label(other)}",
            evidence.rewards(Experiment(task, policy)).chosen - evidence.rewards(Experiment(task, other)).chosen,
            policy,
        )
        for task, letter in evidence.tasks()
        for policy in PAPER_POLICIES
        for other in BASELINES
    ]
    return Finding(
        cases,
        free_v=True,
        note="one test covers delay and reward: the mean of min(d, d_max) is d_max (1 - mean reward)",
    )


def pareto(evidence: Evidence) -> Finding:
    """The time to 90% of the lowest mean final accuracy is below each baseline's, and no baseline is better in both.

    A seed that never reaches that accuracy counts with the longer of the two policies' total times.
    """
    cases: list[Case] = []
    dominated: list[Case] = []
    for task, letter in evidence.tasks():
        experiments = {policy: Experiment(task, policy) for policy in (*PAPER_POLICIES, *BASELINES)}
        target = 0.9 * min(evidence.accuracy(experiment)[:, -1].mean() for experiment in experiments.values())
        for policy in PAPER_POLICIES:
            for other in BASELINES:
                pair = experiments[policy], experiments[other]
                longest = np.maximum(*(evidence.clock_s(experiment)[:, -1] for experiment in pair))
                times = [
                    time_to(evidence.accuracy(experiment), evidence.clock_s(experiment), target, longest)
                    for experiment in pair
                ]
                cases.append(
                    less(f"{letter} {policy_label(policy)} before {policy_label(other)}", times[0], times[1], policy)
                )
                slower = Case("", evidence.clock_s(pair[0])[:, -1] - evidence.clock_s(pair[1])[:, -1])
                worse = Case("", mean_accuracy(evidence, pair[1]) - mean_accuracy(evidence, pair[0]))
                if slower.holds and worse.holds:
                    dominated.append(
                        Case(f"{letter} {policy_label(other)} dominates {policy_label(policy)}", -worse.values, policy)
                    )
    note = f"a baseline is both faster and more accurate in {len(dominated)} of {len(cases)} cases"
    return Finding([*cases, *dominated], free_v=True, note=note)


def time_to(accuracy: FloatArray, clock_s: FloatArray, target: float, otherwise: FloatArray) -> FloatArray:
    """(S,): simulated time at which accuracy (S, K) first reaches the target, or ``otherwise`` (S,)."""
    reached = accuracy >= target
    first = np.take_along_axis(clock_s, reached.argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.where(reached.any(axis=1), first, otherwise)
