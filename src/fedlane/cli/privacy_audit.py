"""`fedlane privacy audit`: the plan from its options, the trials, and the report."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.progress import Progress
from rich.table import Table

from fedlane.cli.session import messages, screen

if TYPE_CHECKING:  # imported inside functions, to keep `fedlane --help` fast
    from fedlane.privacy.audit_statistics import AuditResult, SamplingResult
    from fedlane.simulation.audit import AuditPlan

TRIALS, FULL_TRIALS = 20_000, 4000
FULL_PIXELS = 28


def audit_plan(mechanism: str, changes: Mapping[str, Any], *, full: bool, **options: Any) -> "AuditPlan":
    """Return the default audit of a mechanism, with the ``changes`` that are not None applied.

    Args:
        mechanism: "paper" or "rigorous".
        changes: Fields of `AuditPlan`; None for the default.
        full: Whether the whole MLP is trained on full-size images, with fewer trials.
        options: Further fields of `AuditPlan`.
    """
    from fedlane.privacy import mechanism_of
    from fedlane.simulation.audit import AuditPlan

    given = {name: value for name, value in changes.items() if value is not None}
    if "records" in given and mechanism_of(mechanism).sampling == "poisson":
        given.setdefault("batch_size", given["records"])
    given.setdefault("trials", FULL_TRIALS if full else TRIALS)
    return AuditPlan.of(mechanism, **given, **({"pixels": FULL_PIXELS} if full else {}), **options)


def run_audit(plan: "AuditPlan", *, show_progress: bool) -> "tuple[AuditResult, SamplingResult | None]":
    """Run the trials, and test the samples of a mechanism that uses Poisson sampling."""
    from fedlane.privacy import mechanism_of
    from fedlane.simulation.audit import audit, audit_samples

    with Progress(console=messages, transient=True, disable=not show_progress) as progress:
        bar = progress.add_task("trials", total=plan.trials)
        result = audit(plan, progress=lambda done: progress.update(bar, completed=done))
    return result, audit_samples(plan) if mechanism_of(plan.mechanism).sampling == "poisson" else None


def audit_report(plan: "AuditPlan", result: "AuditResult", samples: "SamplingResult | None") -> dict[str, Any]:
    """Return the audit as plain values, for JSON."""
    return {
        "mechanism": plan.mechanism,
        "claim": result.claim,
        "delta": result.delta,
        "epsilon_low": result.epsilon_low,
        "epsilon_low_any": result.epsilon_low_any,
        "epsilon_low_gaussian": result.epsilon_low_gaussian,
        "confidence": result.confidence,
        "trials": result.trials,
        "sample_rate": plan.batch_size / plan.records,
        "false_positive": result.false_positive,
        "true_positive": result.true_positive,
        "flagged": result.flagged,
        "samples_flagged": None if samples is None else samples.flagged,
    }


def print_audit(plan: "AuditPlan", result: "AuditResult", samples: "SamplingResult | None") -> None:
    """Print the audit as a table, and the verdict."""
    table = Table(title=f"Audit of one upload · mechanism {plan.mechanism} · {result.trials:,} trials")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    table.add_row("claimed epsilon", f"{result.claim:g} at delta {result.delta:g}")
    table.add_row(f"measured lower bound on epsilon ({result.confidence:.1%} confidence)", f"{result.epsilon_low:.3f}")
    table.add_row("  without assumptions about the mechanism", f"{result.epsilon_low_any:.3f}")
    table.add_row("attack: false and true positive rates", f"{result.false_positive:.4f}, {result.true_positive:.4f}")
    if samples is not None:
        table.add_row("Poisson samples: smallest p-value of four tests", f"{samples.smallest:.3f}")
    screen.print(table)
    refuted = result.flagged or (samples is not None and samples.flagged)
    verdict = "REFUTED: the mechanism leaks more than it claims." if refuted else "not refuted."
    screen.print(f"The claim is {verdict}", style="red" if refuted else "green", highlight=False)
