"""Verdicts: from the cases of a claim to a row of the table of claims."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedlane.experiments.claims.cases import Case, Finding, NotComputedError, counted
from fedlane.experiments.claims.evidence import Evidence


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and the function that finds its cases."""

    figure: str
    text: str
    measure: str
    """Description of the measured effect."""
    find: Callable[[Evidence], Finding]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim, with its effect in the worst case."""

    number: int
    figure: str
    claim: str
    measure: str
    effect: float | None
    low: float | None
    high: float | None
    verdict: str
    """holds, holds under reading N, does not hold, or not computed."""
    detail: str


def verdict_on(number: int, claim: Claim, evidence: Evidence) -> Verdict:
    """Judge one claim; the number is its row in the table."""
    head = number, claim.figure, claim.text, claim.measure
    try:
        finding = claim.find(evidence)
        shown, readings, details = _deciding_cases(finding)
        holds = all(case.holds for case in shown)
        if finding.literal is not None:
            literal, remark = _literal(finding.literal, {case.policy for case in shown})
            details.append(remark)
            if holds and literal is False:
                readings = [11, *readings]
        worst = min(shown, key=lambda case: case.margin)
        details = [f"worst: {worst.label}", *details, *([finding.note] if finding.note else [])]
        verdict = "holds" if holds else "does not hold"
        if holds and readings:
            plural = "s" if len(readings) > 1 else ""
            verdict = f"holds under reading{plural} " + " and ".join(str(reading) for reading in readings)
        return Verdict(*head, *worst.interval, verdict, "; ".join(details))
    except NotComputedError as error:
        return Verdict(*head, None, None, None, "not computed", str(error))


def _deciding_cases(finding: Finding) -> tuple[Sequence[Case], list[int], list[str]]:
    """The cases that decide the claim, the readings that they assume, and remarks."""
    details = [f"{counted(finding.cases)} cases hold"]
    if all(case.holds for case in finding.cases):
        return finding.cases, [], details
    if finding.free_v:
        largest_v = [case for case in finding.cases if case.policy.endswith("V=100")]
        om = [case for case in largest_v if case.policy.startswith("mamab-om")]
        details.append(f"at V=100: {counted(largest_v)}, OM alone: {counted(om)}")
        if largest_v and all(case.holds for case in largest_v):
            return largest_v, [14], details
    if finding.alternative is not None:
        reading, cases = finding.alternative
        worst = min(finding.cases, key=lambda case: case.margin)
        details.append(f"as printed, at worst {worst.interval[0]:.3g} ({worst.label})")
        if all(case.holds for case in cases):
            return cases, [reading], details
    return finding.cases, [], details


def _literal(find_cases: Callable[[], Sequence[Case]], policies: set[str]) -> tuple[bool | None, str]:
    """Whether the cases hold with the literal bonus (None if not computed), and a remark."""
    try:
        cases = [case for case in find_cases() if case.policy in policies]
        return all(case.holds for case in cases), f"literal bonus: {counted(cases)} hold"
    except NotComputedError:
        return None, "literal bonus: not computed"


def table(verdicts: Sequence[Verdict]) -> str:
    """Format verdicts as a GitHub-Markdown table."""
    lines = ["| # | claim | effect (95% interval) | verdict | detail |", "|--:|---|---|---|---|"]
    for verdict in verdicts:
        effect = ""
        if verdict.effect is not None:
            effect = f"{verdict.effect:.3g} [{verdict.low:.3g}, {verdict.high:.3g}] {verdict.measure}"
        row = (str(verdict.number), f"{verdict.figure}: {verdict.claim}", effect, verdict.verdict, verdict.detail)
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |")
    return "\n".join(lines) + "\n"
