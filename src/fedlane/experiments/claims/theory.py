"""The claims made elsewhere in the paper: about GMBA, about the deadline, and Theorems 3 and 4."""

import time

import numpy as np

from fedlane.experiments.claims.cases import Case, Finding, counted, less
from fedlane.experiments.claims.comparisons import ACCURACY_POINT, by_policy
from fedlane.experiments.claims.evidence import Evidence
from fedlane.experiments.labels import (
    FASHION_MNIST,
    GMBA_POLICIES,
    OM_AND_RANDOM,
    OM_POLICIES,
    TASK_LETTERS,
    policy_label,
)
from fedlane.experiments.store import Experiment
from fedlane.records import FloatArray
from fedlane.scheduling.mamab import MamabGmba, MamabOm
from fedlane.theory import regret_bound

SMALL_DELAY_LOSS = 0.05
"""A relative increase of the delay that counts as small."""
_WITH_SLACK = "mamab-om:V=10,quota_slack=0.125,queue_weight=success"


def approaches(evidence: Evidence) -> Finding:
    """OM's lead over GMBA in regret per round shrinks from the second quarter of the rounds to the last."""
    cases = []
    for task, letter in evidence.tasks():
        for om, gmba in zip(OM_POLICIES, GMBA_POLICIES, strict=True):
            lead = evidence.rewards(Experiment(task, gmba)).regret - evidence.rewards(Experiment(task, om)).regret
            _, second, _, last = np.array_split(lead, 4, axis=1)
            cases.append(Case(f"{letter} {policy_label(om)}", second.mean(axis=1) - last.mean(axis=1)))
    return Finding(cases)


def loses_little(evidence: Evidence) -> Finding:
    """GMBA's delay is less than 5% longer than OM's, its accuracy less than one point lower, its matching faster."""
    cases, delays, accuracies = [], [], []
    for task, letter in evidence.tasks():
        for om, gmba in zip(OM_POLICIES, GMBA_POLICIES, strict=True):
            base = evidence.total_s(Experiment(task, om))
            longer = (evidence.total_s(Experiment(task, gmba)) - base) / base.mean()
            lower = evidence.mean_accuracy(Experiment(task, om)) - evidence.mean_accuracy(Experiment(task, gmba))
            delays.append(Case(f"{letter} {policy_label(gmba)} longer", longer, bound=SMALL_DELAY_LOSS, below=True))
            accuracies.append(
                Case(f"{letter} {policy_label(gmba)} less accurate", lower, bound=ACCURACY_POINT, below=True)
            )
            cases += [delays[-1], accuracies[-1]]
    decisions = [less(f"decision time, batch of {n}", *decision_times(n)) for n in (1, 100)]
    single, batched = (f"{1 - decision.interval[0]:.2f}" for decision in decisions)
    note = (
        f"criterion: delay less than 5% longer ({counted(delays)}), "
        f"accuracy less than 0.01 lower ({counted(accuracies)}), decision faster ({counted(decisions)}: "
        f"GMBA takes {single} times as long as OM for one network, {batched} times for 100 at once)"
    )
    return Finding([*cases, *decisions], note=note)


def long_deadline(evidence: Evidence) -> Finding:
    """Accuracy with a deadline that all clients meet exceeds that with every other deadline."""
    settings = ("base", "deadline-0.5", "deadline-0.75", "deadline-1.5", "deadline-2")
    cases = []
    for task, policy, label in by_policy(evidence, OM_AND_RANDOM, both=False):
        longest = evidence.mean_accuracy(Experiment(task, policy, "long-deadline"))
        for setting in settings:
            gain = longest - evidence.mean_accuracy(Experiment(task, policy, setting))
            cases.append(Case(f"{label} over {setting}", gain))
    return Finding(cases)


def stable(evidence: Evidence) -> Finding:
    """From the third to the last quarter, no client's mean queue grows by more than 0.01 per round.

    The queue of a client that is never served grows by about 0.4 per round.
    """

    def case(task: str, policy: str, label: str = "") -> Case:
        return Case(label, evidence.schedules(Experiment(task, policy)).growth, bound=0.01, below=True)

    cases = [case(*combination) for combination in by_policy(evidence)]
    with_slack = case(FASHION_MNIST, _WITH_SLACK, f"{TASK_LETTERS[FASHION_MNIST]} {policy_label(_WITH_SLACK)}")
    lane = case(FASHION_MNIST, "lane")
    slack_growth, lane_growth = (
        f"{shown.interval[0]:.4f} (above 0.01 for {np.sum(shown.values > 0.01)} seeds)" for shown in (with_slack, lane)
    )
    note = (
        "criterion: no queue grows by more than 0.01 per round; on average the largest growth is "
        f"{slack_growth} with slack and success weights (reading 12), {lane_growth} with lane"
    )
    return Finding(cases, alternative=(12, [with_slack]), note=note)


def log_regret(evidence: Evidence) -> Finding:
    """Regret grows by equal steps as T doubles: the step to T exceeds the step to T/2 by less than a quarter.

    Relative to the mean step to T/2, the excess is 0 for growth as log T and 1 for linear growth.
    """
    cases = []
    for task, policy, label in by_policy(evidence):
        regret = np.cumsum(evidence.rewards(Experiment(task, policy)).regret, axis=1)
        quarter, half, whole = (regret[:, regret.shape[1] // part - 1] for part in (4, 2, 1))
        excess = ((whole - half) - (half - quarter)) / (half - quarter).mean()
        cases.append(Case(label, excess, bound=0.25, below=True))
    bounds = [
        regret_bound(gaps, clients=10, channels=4, V=1.0, rounds=evidence.store.rounds, largest_queue=0.0)
        for task, _ in evidence.tasks()
        for gaps in evidence.gaps(task)
    ]
    vacuous = sum(bound.vacuous is not None for bound in bounds)
    note = f"Theorem 4's bound is vacuous on {vacuous} of {len(bounds)} networks even at Q = 0 and V = 1"
    return Finding(cases, note=f"criterion: excess below 0.25 (log T: 0, linear: 1); {note}")


def decision_times(networks: int, repeats: int = 20, calls: int = 20) -> tuple[FloatArray, FloatArray]:
    """(repeats,) each: seconds that GMBA and OM take to match networks of 10 clients and 4 channels in one batch."""
    rng = np.random.default_rng(0)
    estimate, keys = rng.random((networks, 10, 4)), rng.random((networks, 10))
    available = np.ones((networks, 10), np.bool_)
    previous = np.tile(np.concatenate([np.arange(4), np.full(6, -1)]), (networks, 1))
    times = np.empty((2, repeats + 1))
    for repeat in range(repeats + 1):
        for number, policy in enumerate((MamabGmba(), MamabOm())):
            start = time.perf_counter()
            for _ in range(calls):
                policy.match(estimate, keys, available, previous)
            times[number, repeat] = time.perf_counter() - start
    return times[0, 1:], times[1, 1:]  # the first repetition includes loading
