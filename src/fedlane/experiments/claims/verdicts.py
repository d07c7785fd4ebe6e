"""Verdicts: from the cases of every claim to the rows of the table of claims.

There are four verdicts. A claim *holds* if all of its cases hold, and it is *refuted* if a case's interval lies wholly
on the wrong side. If neither can be shown, it is *not decided*: an interval that covers the bound shows nothing. A
claim *depends on the reading* if it holds under one reading of the paper and is refuted under another.

Errors are controlled at the level of a 95% interval (2.5% on each side). That all cases hold is shown by the weakest of
them (an intersection-union test); that one of them is refuted is a choice among many and is corrected by Holm's method.
The verdicts of all claims and readings together are corrected by Holm's method once more.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedlane.experiments.claims.cases import ONE_SIDED_LEVEL, Case, Finding, NotComputedError, counted, holm
from fedlane.experiments.claims.evidence import Evidence

HOLDS, REFUTED, NOT_DECIDED, DEPENDS = "holds", "refuted", "not decided", "depends on the reading"
NOT_COMPUTED = "not computed"
VERDICTS = (HOLDS, REFUTED, NOT_DECIDED, DEPENDS)


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
    """The verdict on a claim, with its effect in the deciding case."""

    number: int
    figure: str
    claim: str
    measure: str
    effect: float | None
    low: float | None
    high: float | None
    verdict: str
    """One of `VERDICTS`, or not computed."""
    cases: int
    """Number of cases under the reading of the presets."""
    detail: str
    uncorrected: str = NOT_COMPUTED
    """Holds, refuted or not decided by each case's own 95% interval, without a correction for their number."""


@dataclass(frozen=True)
class Reading:
    """The cases of a claim under one reading, and the evidence that they hold or that the claim is refuted."""

    name: str
    cases: Sequence[Case]
    any_of: bool = False

    @property
    def p_holds(self) -> float:
        """p-value of the hypothesis that the claim does not hold under this reading."""
        p_values = [case.p_holds for case in self.cases]
        return min(holm(p_values)) if self.any_of else max(p_values)

    @property
    def p_refuted(self) -> float:
        """p-value of the hypothesis that the claim is not refuted under this reading."""
        p_values = [case.p_refuted for case in self.cases]
        return max(p_values) if self.any_of else min(holm(p_values))

    @property
    def deciding(self) -> Case:
        """The case to show: the one with the least margin, or the clearest if one is enough."""
        choose = max if self.any_of else min
        return choose(self.cases, key=lambda case: case.margin)

    @property
    def uncorrected(self) -> str:
        """The verdict by each case's own 95% interval, without a correction for the number of cases."""
        holding = [case.holds for case in self.cases]
        refuted = [case.refuted for case in self.cases]
        if any(holding) if self.any_of else all(holding):
            return HOLDS
        return REFUTED if (all(refuted) if self.any_of else any(refuted)) else NOT_DECIDED

    @property
    def count(self) -> str:
        """How many cases hold and how many are refuted by their own 95% intervals, as text."""
        refuted = sum(case.refuted for case in self.cases)
        return f"{counted(self.cases)} cases hold, {refuted} refuted"


Judged = tuple[Finding, list[Reading]] | NotComputedError
"""A finding with its readings, that of the presets first; or why there is none."""


def verdicts_on(claims: Sequence[Claim], evidence: Evidence) -> list[Verdict]:
    """Judge all claims together; a verdict's number is its row in the table."""
    judged = [_found(claim, evidence) for claim in claims]
    readings = [reading for item in judged if isinstance(item, tuple) for reading in item[1]]
    adjusted = holm([min(reading.p_holds, reading.p_refuted) for reading in readings])
    decisions = {
        id(reading): (HOLDS if reading.p_holds < reading.p_refuted else REFUTED) if p < ONE_SIDED_LEVEL else NOT_DECIDED
        for reading, p in zip(readings, adjusted, strict=True)
    }
    return [
        _verdict(number, claim, item, decisions)
        for number, (claim, item) in enumerate(zip(claims, judged, strict=True), start=1)
    ]


def _found(claim: Claim, evidence: Evidence) -> Judged:
    try:
        finding = claim.find(evidence)
        readings = list(_readings(finding))
        for reading in readings:
            reading.p_holds, reading.deciding  # noqa: B018  # a case with a single seed is not computed
        return finding, readings
    except NotComputedError as error:
        return error


def _readings(finding: Finding) -> Iterator[Reading]:
    """The readings under which a claim is judged, that of the presets first."""
    yield Reading("the presets", finding.cases, finding.any_of)
    if finding.free_v:
        largest_v = [case for case in finding.cases if case.policy.endswith("V=100")]
        if largest_v and len(largest_v) < len(finding.cases):
            yield Reading("V=100 only (reading 14)", largest_v)
            om = [case for case in largest_v if case.policy.startswith("mamab-om")]
            if om and len(om) < len(largest_v):
                yield Reading("OM at V=100 only (reading 14)", om)
    if finding.alternative is not None:
        yield Reading(*finding.alternative)
    if finding.literal is not None:
        try:
            yield Reading("the literal bonus (reading 11)", finding.literal())
        except NotComputedError:
            return


def _verdict(number: int, claim: Claim, item: Judged, decisions: dict[int, str]) -> Verdict:
    head = number, claim.figure, claim.text, claim.measure
    if isinstance(item, NotComputedError):
        return Verdict(*head, None, None, None, NOT_COMPUTED, 0, str(item))
    finding, readings = item
    outcomes = [decisions[id(reading)] for reading in readings]
    verdict = DEPENDS if {HOLDS, REFUTED} <= set(outcomes) else outcomes[0]
    shown = readings[0].deciding
    details = [f"shown: {shown.label}", readings[0].count]
    if verdict == DEPENDS:
        details.append(f"{outcomes[0]} under {readings[0].name}")
    details += [
        f"{outcome} under {reading.name}: {reading.count}"
        for reading, outcome in zip(readings[1:], outcomes[1:], strict=True)
    ]
    if finding.literal is not None and readings[-1].name != "the literal bonus (reading 11)":
        details.append("literal bonus: not computed")
    details += [finding.note] if finding.note else []
    plain = readings[0].uncorrected
    return Verdict(*head, *shown.interval, verdict, len(readings[0].cases), "; ".join(details), plain)


def table(verdicts: Sequence[Verdict], readings: Mapping[int, str] | None = None) -> str:
    """Format verdicts as a GitHub-Markdown table.

    Args:
        verdicts: The verdicts.
        readings: By claim, the readings of the map under which it holds; None without a map.
    """
    shares = readings or {}
    lines = [
        f"| # | claim | effect (95% interval) | verdict |{' readings |' if readings else ''} cases | detail |",
        f"|--:|---|---|---|{'--:|' if readings else ''}--:|---|",
    ]
    for verdict in verdicts:
        effect = ""
        if verdict.effect is not None:
            effect = f"{verdict.effect:.3g} [{verdict.low:.3g}, {verdict.high:.3g}] {verdict.measure}"
        claim, cases = f"{verdict.figure}: {verdict.claim}", str(verdict.cases or "")
        share = [shares.get(verdict.number, "")] if readings else []
        row = (str(verdict.number), claim, effect, verdict.verdict, *share, cases, verdict.detail)
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |")
    return "\n".join(lines) + "\n"
