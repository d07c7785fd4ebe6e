"""The 34 claims of the paper's evaluation, each judged on the stored cells.

A claim is a list of cases, each a number for every seed, paired wherever two policies or settings are compared. A case
holds when the whole 95% Student interval of its mean lies on the claimed side of its bound, which is 0 unless the
claim's criterion says otherwise. A claim holds when all of its cases do; the case nearest to failing, or failing by
most, is the one that is shown. Where the calibrated exploration is needed for it the verdict names reading 11, where
the paper leaves V open and only V = 100 does it, reading 14.

Accuracy A is the mean over the tested rounds, which is what "A(P, t) above" asks of a whole curve. Delays are compared
as shares of the other side's mean, so that both tasks have one scale.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedlane.experiments.claims.baselines import (
    accuracy_over_baselines,
    better_pairs,
    delay_over_baselines,
    interference,
    keeps_improving,
    pareto,
    ucb_below_random,
)
from fedlane.experiments.claims.evidence import KINDS, STEPS, Case, Evidence, Finding, NotComputedError, counted
from fedlane.experiments.claims.selection import (
    depends_on_v,
    follows_quota,
    more_rounds,
    quota_order,
    selection_trade_off,
)
from fedlane.experiments.claims.theory import approaches, log_regret, long_deadline, loses_little, stable
from fedlane.experiments.claims.trade_off import (
    better_than_random,
    delay_order,
    first_step,
    gap_shrinks,
    leakage,
    no_rise,
    rise_together,
    saturates,
    trade_off,
    worse_than,
)
from fedlane.experiments.reproduce import FEW, PAPER, ReproductionPlan
from fedlane.experiments.store import ResultStore


@dataclass(frozen=True)
class Verdict:
    """One claim, and what became of it."""

    number: int
    figure: str
    claim: str
    measure: str
    """What the effect is."""
    effect: float | None
    low: float | None
    high: float | None
    verdict: str
    """holds, holds under reading N, does not hold, or not computed."""
    detail: str


@dataclass(frozen=True)
class Claim:
    """A claim and how it is judged."""

    figure: str
    text: str
    measure: str
    find: Callable[[Evidence], Finding]


_SHARE = "share of the other's mean cumulative delay"
_GAP = "difference of accuracy, mean over rounds"
_V_ORDERED = [(f"{kind}:V={high}", f"{kind}:V={low}") for kind in KINDS for low, high in STEPS]
CLAIMS = (
    Claim("Fig. 2", "OM and GMBA are more accurate than Random at every V", _GAP, better_than_random("base")),
    Claim("Fig. 2", "That gap shrinks with t", "gap in the first less the last quarter", gap_shrinks),
    Claim("Fig. 2", "Accuracy saturates", "gain of accuracy in the last quarter", saturates),
    Claim("Fig. 2", "Delay at V=100 < V=10 < V=1", _SHARE, delay_order(False)),
    Claim(
        "Fig. 2", "The quota shortfall rises as delay falls with V", "rise of shortfall, or fall of delay", trade_off
    ),
    Claim("Fig. 2", "Accuracy does not rise with V", _GAP, no_rise),
    Claim("Fig. 2", "Accuracy at V=1 > V=10", _GAP, first_step),
    Claim("Fig. 2", "Delay at V=1 > V=10", _SHARE, delay_order(False, steps=STEPS[:1])),
    Claim("Fig. 2", "Across V, accuracy and round time rise together", "correlation over V", rise_together),
    Claim("Fig. 3", "As claim 1, at epsilon 0.8 and b = 10", _GAP, better_than_random("private")),
    Claim("Fig. 3", "As claim 4, at epsilon 0.8 and b = 10", _SHARE, delay_order(False, "private")),
    Claim("Fig. 3", "The largest leakage by formula (6) is 12.05", "leakage (epsilon)", leakage),
    Claim("Fig. 3", "Accuracy is below Fig. 2's for each policy", _GAP, worse_than("private", (*PAPER, "random"))),
    Claim("Fig. 3", "The cause is epsilon: so too at equal b", _GAP, worse_than("epsilon-0.8", FEW[1:])),
    Claim(
        "Fig. 4",
        "OM completes more rounds than GMBA in a time budget",
        "share of GMBA's rounds",
        more_rounds(list(zip(PAPER[:3], PAPER[3:], strict=True))),
    ),
    Claim("Fig. 4", "Rounds in a time budget rise with V", "share of the lower V's rounds", more_rounds(_V_ORDERED)),
    Claim("Fig. 4", "The mean round time falls with V", _SHARE, delay_order(True)),
    Claim("Fig. 5", "Non-uniform epsilon: quotas rise with the client", "difference of quotas", quota_order),
    Claim("Fig. 5", "Selection follows the quotas", "correlation over clients, or its excess", follows_quota),
    Claim("Fig. 5", "Selection depends on V", "difference of the spread of shares", depends_on_v),
    Claim("Fig. 5", "As claim 5 (OM)", "rise of shortfall, or fall of delay", selection_trade_off),
    Claim("Fig. 6", "OM and GMBA are more accurate than every baseline", _GAP, accuracy_over_baselines),
    Claim("Fig. 6", "The estimates keep improving", "fall of error, or of regret a round", keeps_improving),
    Claim("Fig. 6", "Single-UCB exploits statistics: delay below Random's", _SHARE, ucb_below_random),
    Claim(
        "Fig. 6",
        "Single-UCB fails through client-specific interference",
        "change of its gap, share of Random's delay",
        interference,
    ),
    Claim("Fig. 7", "Delay of OM and GMBA below every baseline's", _SHARE, delay_over_baselines(True)),
    Claim("Fig. 7", "That gap grows with t", f"{_SHARE}, second half", delay_over_baselines(False)),
    Claim("Fig. 7", "OM and GMBA assign better pairs", "difference of mean reward", better_pairs),
    Claim("Fig. 7", "OM and GMBA trade time and accuracy off better", "share of the other's time", pareto),
    Claim("Section V", "GMBA approaches OM as t grows", "fall of OM's lead in reward a round", approaches),
    Claim("Abstract", "GMBA loses little and decides faster", "loss, or saving of time", loses_little),
    Claim("Conclusion", "A deadline that all meet gives the best accuracy", _GAP, long_deadline),
    Claim("Theorem 3", "Queues are stable", "growth of the longest queue a round", stable),
    Claim("Theorem 4", "Regret grows as log T", "excess of regret's last doubling", log_regret),
)


def judge(plan: ReproductionPlan, store: ResultStore) -> list[Verdict]:
    """All claims in order, on what the store holds for the plan."""
    evidence = Evidence(plan, store)
    return [_judged(number, claim, evidence) for number, claim in enumerate(CLAIMS, start=1)]


def _judged(number: int, claim: Claim, evidence: Evidence) -> Verdict:
    head = number, claim.figure, claim.text, claim.measure
    try:
        finding = claim.find(evidence)
        shown, readings, details = _weighed(finding)
        holds = all(case.holds for case in shown)
        if finding.literal is not None:
            literal, remark = _literal(finding.literal, {case.policy for case in shown})
            details.append(remark)
            if holds and literal is False:
                readings = [11, *readings]
        worst = min(shown, key=lambda case: case.margin)
        details = [f"worst: {worst.label}", *details, *([finding.note] if finding.note else [])]
        found = "does not hold" if not holds else "holds"
        if holds and readings:
            found = "holds under reading " + " and ".join(str(reading) for reading in readings)
        return Verdict(*head, *worst.interval, found, "; ".join(details))
    except NotComputedError as error:
        return Verdict(*head, None, None, None, "not computed", str(error))


def _weighed(finding: Finding) -> tuple[Sequence[Case], list[int], list[str]]:
    """The cases that decide, the readings that this takes, and remarks."""
    every = finding.cases
    details = [f"{counted(every)} cases hold"]
    if all(case.holds for case in every):
        return every, [], details
    if finding.free_v:
        chosen = [case for case in every if case.policy.endswith("V=100")]
        om = [case for case in chosen if case.policy.startswith("mamab-om")]
        details.append(f"at V=100 {counted(chosen)}, of OM {counted(om)}")
        if chosen and all(case.holds for case in chosen):
            return chosen, [14], details
    if finding.alternative is not None:
        reading, cases = finding.alternative
        worst = min(every, key=lambda case: case.margin)
        details.append(f"as printed at worst {worst.interval[0]:.3g} ({worst.label})")
        if all(case.holds for case in cases):
            return cases, [reading], details
    return every, [], details


def _literal(of: Callable[[], Sequence[Case]], policies: set[str]) -> tuple[bool | None, str]:
    """Whether the same cases hold with the literal bonus, None if they are not there; and a remark."""
    try:
        cases = [case for case in of() if case.policy in policies]
        return all(case.holds for case in cases), f"literal bonus: {counted(cases)} hold"
    except NotComputedError:
        return None, "literal bonus: not computed"


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as a GitHub-Markdown table."""
    lines = ["| # | claim | effect (95% interval) | verdict | detail |", "|--:|---|---|---|---|"]
    for v in verdicts:
        effect = "" if v.effect is None else f"{v.effect:.3g} [{v.low:.3g}, {v.high:.3g}] {v.measure}"
        cells = (str(v.number), f"{v.figure}: {v.claim}", effect, v.verdict, v.detail)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
