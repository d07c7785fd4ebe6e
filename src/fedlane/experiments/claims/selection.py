"""The claims of Figs. 4 and 5: rounds within a time budget, and who is chosen."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fedlane.experiments.claims.evidence import (
    CALIBRATED,
    KINDS,
    LITERAL,
    Case,
    Evidence,
    Finding,
    both_readings,
    correlation,
    counted,
    shortfall_note,
    shortfall_rises,
)
from fedlane.experiments.claims.trade_off import Excludes
from fedlane.experiments.figures import label
from fedlane.experiments.reproduce import BUDGETS, PAPER
from fedlane.experiments.store import Experiment


def more_rounds(pairs: Sequence[tuple[str, str]]) -> Callable[[Evidence], Finding]:
    """The first policy of each pair completes more rounds than the second, in the mean over the budgets.

    K(B) is a curve, and curves are compared by their means, as accuracy over rounds is; the note counts single budgets.
    """

    def gains(e: Evidence, reading: str) -> list[tuple[str, list[Case]]]:
        found = []
        for task, letter in e.tasks():
            whole = e.total_s(Experiment(task, "random")).mean()
            for better, worse in pairs:
                one, other = (e.schedules(Experiment(task, policy, "base", reading)) for policy in (better, worse))
                name, single = f"{letter} {label(better)} over {label(worse)}", []
                for share in BUDGETS:
                    budget_s = float(np.round(share * whole, -1))
                    k = other.within(budget_s)
                    single.append(Case(f"{name}, {budget_s:g} s", (one.within(budget_s) - k) / max(k.mean(), 1.0)))
                found.append((name, single))
        return found

    def means(e: Evidence, reading: str) -> list[Case]:
        return [Case(name, np.mean([case.values for case in single], axis=0)) for name, single in gains(e, reading)]

    def find(e: Evidence) -> Finding:
        single = [case for _, cases in gains(e, CALIBRATED) for case in cases]
        worst = min(single, key=lambda case: case.margin)
        mean, low, high = worst.interval
        note = f"single budgets: {counted(single)} hold, at worst {mean:.3g} [{low:.3g}, {high:.3g}] ({worst.label})"
        return replace(both_readings(lambda reading: means(e, reading)), note=note)

    return find


def quota_order(e: Evidence) -> Finding:
    """beta_10 - beta_1 lies above 0, and the smallest step of beta from client to client not below it."""
    cases = []
    for task, letter in e.tasks():
        quota = e.schedules(Experiment(task, PAPER[0], "nonuniform")).quota
        cases.append(Case(f"{letter} beta_10 - beta_1", quota[:, -1] - quota[:, 0]))
        cases.append(Case(f"{letter} smallest step", np.diff(quota, axis=1).min(axis=1), bound=-1e-12))
    return Finding(
        cases[::2] if all(case.holds for case in cases) else cases,
        note="all seeds have the same quotas; steps may be 0",
    )


def follows_quota(e: Evidence) -> Finding:
    """Over clients, the assigned share correlates with beta, and more so than the same clients' under equal epsilon.

    beta rises with a client's number and so does its speed: without the second case speed alone would pass.
    """
    cases = []
    for task, letter in e.tasks():
        for policy in PAPER[:3]:
            here, equal = (e.schedules(Experiment(task, policy, setting)) for setting in ("nonuniform", "base"))
            found = correlation(here.assigned, here.quota)
            cases.append(Case(f"{letter} {label(policy)}", found))
            excess = found - correlation(equal.assigned, here.quota)
            cases.append(Case(f"{letter} {label(policy)} over equal epsilon", excess))
    raw = counted(cases[::2])
    return Finding(cases, note=f"raw correlation: {raw} hold; its excess over equal epsilon: {counted(cases[1::2])}")


def depends_on_v(e: Evidence) -> Finding:
    """The spread over clients of the assigned share differs between V = 1 and V = 100, either way."""
    cases = []
    for task, letter in e.tasks():
        for setting in ("base", "nonuniform"):
            low, high = (e.schedules(Experiment(task, PAPER[k], setting)).assigned.std(axis=1) for k in (0, 2))
            cases.append(Excludes(f"{letter} {setting} OM V=100 less V=1", high - low))
    return Finding(cases, note="two-sided criterion: the interval leaves 0 out")


def selection_trade_off(e: Evidence) -> Finding:
    cases, punctual = (
        [
            case
            for setting in ("base", "nonuniform")
            for case in shortfall_rises(e, True, KINDS[:1], setting, CALIBRATED, of)
        ]
        for of in ("assigned", "punctual")
    )
    note = shortfall_note(cases, punctual)
    return Finding(cases, lambda: shortfall_rises(e, True, KINDS[:1], "base", LITERAL), note=note)
