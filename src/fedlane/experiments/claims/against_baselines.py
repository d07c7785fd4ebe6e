"""The claims of Figs. 6 and 7: comparisons with the baselines."""

from collections.abc import Callable

import numpy as np

from fedlane.experiments.claims.cases import Case, Finding, less
from fedlane.experiments.claims.comparisons import accuracy_above, both_readings, by_pair, by_policy
from fedlane.experiments.claims.evidence import Evidence
from fedlane.experiments.labels import (
    BASELINES,
    LARGEST_V_POLICIES,
    PAPER_POLICIES,
    TASK_LETTERS,
    UCB_POLICIES,
    policy_label,
)
from fedlane.experiments.store import Experiment
from fedlane.records import FloatArray

_COMPARED = (*PAPER_POLICIES, *BASELINES)


def accuracy_over_baselines(evidence: Evidence) -> Finding:
    """The paper's policies have a higher mean accuracy than every baseline."""
    return accuracy_above(evidence, True, "base", BASELINES, free_v=True)


def keeps_improving(evidence: Evidence) -> Finding:
    """The error of the estimates falls from T/4 to T/2 to T, and the regret per round from quarter 1 to 2 to 4."""
    cases = []
    for task, policy, label in by_policy(evidence):
        rewards = evidence.rewards(Experiment(task, policy))
        first, second, _, last = (part.mean(axis=1) for part in np.array_split(rewards.regret, 4, axis=1))
        cases += [
            Case(f"{label} error T/4 to T/2", rewards.error[:, 0] - rewards.error[:, 1], policy),
            Case(f"{label} error T/2 to T", rewards.error[:, 1] - rewards.error[:, 2], policy),
            Case(f"{label} regret quarter 1 to 2", first - second, policy),
            Case(f"{label} regret quarter 2 to 4", second - last, policy),
        ]
    return Finding(cases, free_v=True)


def ucb_below_random(evidence: Evidence) -> Finding:
    """Single-UCB has a lower cumulative delay than Random."""
    cases = [
        less(label, evidence.total_s(Experiment(task, policy)), evidence.total_s(Experiment(task, "random")))
        for task, policy, label in by_policy(evidence, UCB_POLICIES)
    ]
    return Finding(cases)


def interference(evidence: Evidence) -> Finding:
    """Single-UCB's gap to OM and GMBA, relative to Random's delay, is larger with client-specific interference."""

    def gap(task: str, policy: str, other: str, setting: str) -> FloatArray:
        total_s = {name: evidence.total_s(Experiment(task, name, setting)) for name in (policy, other, "random")}
        return (total_s[other] - total_s[policy]) / total_s["random"].mean()

    cases = []
    for task, other, label in by_policy(evidence, UCB_POLICIES, both=False):
        for policy in LARGEST_V_POLICIES:
            specific, same = (gap(task, policy, other, setting) for setting in ("base", "same-interference"))
            cases.append(Case(f"{label} to {policy_label(policy)}", specific - same))
    return Finding(cases)


def delay_over_baselines(all_rounds: bool) -> Callable[[Evidence], Finding]:
    """The delay of the paper's policies is below each baseline's, over all rounds or over the second half.

    The second half shows whether the gap keeps growing.
    """

    def cases(evidence: Evidence, reading: str) -> list[Case]:
        comparisons = []
        for task, policy, other, label in by_pair(evidence, BASELINES, "below"):
            pair = Experiment(task, policy, "base", reading), Experiment(task, other)
            delay_s, baseline_s = (evidence.schedules(experiment).delay_s for experiment in pair)
            start = 0 if all_rounds else delay_s.shape[1] // 2
            comparisons.append(less(label, delay_s[:, start:].sum(axis=1), baseline_s[:, start:].sum(axis=1), policy))
        return comparisons

    return lambda evidence: both_readings(lambda reading: cases(evidence, reading), free_v=True)


def better_pairs(evidence: Evidence) -> Finding:
    """The mean reward of the assigned pairs is above each baseline's."""

    def chosen(task: str, policy: str) -> FloatArray:
        return evidence.rewards(Experiment(task, policy)).chosen

    cases = [
        Case(label, chosen(task, policy) - chosen(task, other), policy)
        for task, policy, other, label in by_pair(evidence, BASELINES, "over")
    ]
    note = "one test covers delay and reward: the mean of min(d, d_max) is d_max (1 - mean reward)"
    return Finding(cases, free_v=True, note=note)


def pareto(evidence: Evidence) -> Finding:
    """The time to 90% of the lowest mean final accuracy is below each baseline's, and no baseline is better in both.

    A seed that never reaches that accuracy counts with the longer of the two policies' total times.
    """
    cases: list[Case] = []
    dominated: list[Case] = []
    targets = {
        task: 0.9 * min(evidence.accuracy(Experiment(task, policy))[:, -1].mean() for policy in _COMPARED)
        for task, _ in evidence.tasks()
    }
    for task, policy, other, label in by_pair(evidence, BASELINES, "before"):
        pair = Experiment(task, policy), Experiment(task, other)
        accuracy, clock_s = [evidence.accuracy(run) for run in pair], [evidence.clock_s(run) for run in pair]
        total_s = [clock[:, -1] for clock in clock_s]
        longest_s = np.maximum(*total_s)
        time_s, other_s = (time_to(*run, targets[task], longest_s) for run in zip(accuracy, clock_s, strict=True))
        cases.append(less(label, time_s, other_s, policy))
        slower = Case("", total_s[0] - total_s[1])
        worse = Case("", evidence.mean_accuracy(pair[1]) - evidence.mean_accuracy(pair[0]))
        if slower.holds and worse.holds:
            name = f"{TASK_LETTERS[task]} {policy_label(other)} dominates {policy_label(policy)}"
            dominated.append(Case(name, -worse.values, policy))
    note = f"a baseline is both faster and more accurate in {len(dominated)} of {len(cases)} cases"
    return Finding([*cases, *dominated], free_v=True, note=note)


def time_to(accuracy: FloatArray, clock_s: FloatArray, target: float, otherwise: FloatArray) -> FloatArray:
    """(S,): simulated time at which accuracy (S, K) first reaches the target, or ``otherwise`` (S,)."""
    reached = accuracy >= target
    first = np.take_along_axis(clock_s, reached.argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.where(reached.any(axis=1), first, otherwise)
