"""`fedlane privacy audit`: the plan from its options or from a run, the trials, and the report."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress
from rich.table import Table

from fedlane.cli.compiling import announce_compilation
from fedlane.cli.privacy_accounts import json_safe
from fedlane.cli.session import check_writable, messages, screen
from fedlane.learning.own_data import is_own_data

if TYPE_CHECKING:  # imported inside functions, to keep `fedlane --help` fast
    from fedlane.privacy.audit_statistics import AuditResult, SamplingResult
    from fedlane.simulation.audit import AuditPlan
    from fedlane.simulation.clipping_audit import ClippingResult
    from fedlane.simulation.run_audit import TargetAudit

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

    bars = Progress(console=messages, transient=True, disable=not show_progress)
    with announce_compilation(messages, quiet=not show_progress), bars as progress:
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
        "loss_noise": plan.loss_noise,
    }


def run_folder_audit(run: Path, options: Mapping[str, Any], *, full: bool, out: Path | None, as_json: bool) -> None:
    """Audit the uploads of a run, and print the report.

    Args:
        run: The run folder.
        options: Trials (None for the default), confidence, seed and device.
        full: Whether the whole MLP is trained on full-size images, with fewer trials.
        out: Picture of the first audit; None for none.
        as_json: Whether the report is printed as JSON.
    """
    from fedlane.simulation.run_audit import audit_target, run_targets

    check_figure(out)
    trials = options["trials"] or (FULL_TRIALS if full else TRIALS)
    fields = {**options, "trials": trials, **({"pixels": FULL_PIXELS} if full else {})}
    scenario, targets = run_targets(run, **fields)
    show_progress = not as_json and messages.is_terminal
    bars = Progress(console=messages, transient=True, disable=not show_progress)
    with announce_compilation(messages, quiet=not show_progress), bars as progress:
        bar = progress.add_task("trials", total=2 * trials * len(targets))
        audits = [
            audit_target(target, lambda done, before=2 * trials * k: progress.update(bar, completed=before + done))  # type: ignore[misc]
            for k, target in enumerate(targets)
        ]
    model = scenario.learning.model
    own = [part for part, is_own in (("model", ":" in model), ("data", is_own_data(scenario.data.dataset))) if is_own]
    target = {} if own else {"model": model, "dataset": scenario.data.dataset}  # a user's are not loaded
    clipping = clipping_audit(seed=options["seed"], device=options["device"], **target)
    draw_figure(audits[0].result, out)
    if as_json:
        kinds = [json_safe(_target_report(entry)) for entry in audits]
        print(json.dumps({"run": str(run), "kinds": kinds, "clipping": clipping.report()}))
        return
    for entry in audits:
        _print_target(entry)
    _print_clipping(clipping)
    if own:
        text = f"The run's own {' and '.join(own)} was not loaded; uploads of an mlp were attacked."
        messages.print(text, highlight=False)


def clipping_audit(
    *, seed: int, device: str = "cpu", model: str = "mlp", dataset: str = "fashion-mnist-mini"
) -> "ClippingResult":
    """Search for weights under which clipping fails."""
    from fedlane.simulation.clipping_audit import audit_clipping

    return audit_clipping(model, dataset, seed=seed, device=device)


def check_figure(out: Path | None) -> None:
    """Check that a picture can be written to a file, if there is one."""
    if out is not None:
        from fedlane.report.figures import check_picture

        check_picture(out)
        check_writable(out)


def draw_figure(result: "AuditResult", out: Path | None) -> None:
    """Draw an audit into a file, if there is one."""
    if out is not None:
        from fedlane.report.figures import audit_figure

        audit_figure(result, out)


def print_audit(
    plan: "AuditPlan", result: "AuditResult", samples: "SamplingResult | None", clipping: "ClippingResult"
) -> None:
    """Print the audit as a table, the verdict, and the result of the search for weights that break clipping."""
    screen.print(_audit_table(f"mechanism {plan.mechanism}", plan, result, samples))
    refuted = result.flagged or (samples is not None and samples.flagged)
    screen.print(f"The claim is {_REFUTED if refuted else 'not refuted.'}", style=_style(refuted), highlight=False)
    _print_clipping(clipping)


_REFUTED = "REFUTED: the mechanism leaks more than it claims."


def _style(refuted: bool, *, weak: bool = False) -> str:
    return "red" if refuted else "yellow" if weak else "green"


def _audit_table(subject: str, plan: "AuditPlan", result: "AuditResult", samples: "SamplingResult | None") -> Table:
    from fedlane.privacy import mechanism_of

    title = f"Audit of one upload · {subject} · {result.trials:,} trials · epsilon at delta {result.delta:g}"
    table = Table(title=title)
    table.add_column("quantity")
    table.add_column("value", justify="right")
    table.add_row("claimed epsilon", f"{result.claim:g} at delta {result.delta:g}")
    table.add_row(f"measured lower bound on epsilon ({result.confidence:.1%} confidence)", f"{result.epsilon_low:.3f}")
    table.add_row("  without assumptions about the mechanism", f"{result.epsilon_low_any:.3f}")
    table.add_row("attack: false and true positive rates", f"{result.false_positive:.4f}, {result.true_positive:.4f}")
    if plan.loss_noise is not None:
        protected = mechanism_of(plan.mechanism).is_calibrated
        noise = f"noise multiplier {plan.loss_noise:g}" if protected else "exact, outside the claim"
        table.add_row("losses, attacked with the upload" if protected else "losses, not attacked", noise)
    if samples is not None:
        table.add_row("Poisson samples: smallest p-value of four tests", f"{samples.smallest:.3f}")
    return table


def _target_report(entry: "TargetAudit") -> dict[str, Any]:
    target, half_noise = entry.target, entry.half_noise
    return {
        **audit_report(target.plan, entry.result, entry.samples),
        "sample_rate": target.terms.sample_rate,
        "batch_size": target.batch_size,
        "attacked_batch_size": target.plan.batch_size,
        "local_iterations": target.plan.local_iterations,
        "step_noise": target.terms.step_noise,
        "upload_noise": target.terms.upload_noise,
        "clients": target.clients,
        "uploads": target.uploads,
        "epsilon_accounted": target.accounted,
        "epsilon_agreed": target.terms.epsilon,
        "max_uploads": target.terms.max_uploads,
        "budget_exceeded": target.exceeded,
        "largest_epsilon": entry.largest,
        "half_noise_epsilon_low": None if half_noise is None else half_noise.epsilon_low,
        "refutes_half_noise": entry.refutes_half_noise,
        "refuted": entry.refuted,
    }


def _print_target(entry: "TargetAudit") -> None:
    """Print the audit of one kind of clients with the attack's power, and the verdict."""
    from fedlane.privacy import mechanism_of

    target, terms = entry.target, entry.target.terms
    mechanism = mechanism_of(terms.mechanism)
    subject = f"mechanism {terms.mechanism}, {_clients(target.clients)}"
    table = _audit_table(subject, target.plan, entry.result, entry.samples)
    noise = mechanism.noise(terms.step_noise, terms.upload_noise)
    table.add_row(
        "sample rate, noise multiplier, steps", f"{terms.sample_rate:.4g}, {noise:.4g}, {terms.local_iterations}"
    )
    accounted = f"> {target.accounted:.4g}" if mechanism.is_lower_bound else f"{target.accounted:.4g}"
    table.add_row(
        f"accounted after {target.uploads} uploads (most of a client)", f"{accounted}, agreed {terms.epsilon:g}"
    )
    table.add_row("power: largest epsilon that these trials can show", f"{entry.largest:.3f}")
    if entry.half_noise is not None:
        found = f"{entry.half_noise.epsilon_low:.3f}, {'refuted' if entry.refutes_half_noise else 'not refuted'}"
        table.add_row("power: the same attack on half the noise", found)
    screen.print(table)
    weak = not entry.refutes_half_noise
    power = "The attack would have refuted half the noise."
    if weak:
        power = "This says little: the attack would not have refuted half the noise either."
    verdict = _REFUTED if entry.refuted else f"not refuted. {power}"
    screen.print(f"The claim is {verdict}", style=_style(entry.refuted, weak=weak), highlight=False)
    if target.exceeded:
        screen.print(
            f"FAILED: a client made {target.uploads} uploads of {terms.max_uploads} and spent epsilon {accounted}, "
            f"agreed {terms.epsilon:g}.",
            style=_style(True),
            highlight=False,
            soft_wrap=True,
        )


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"


def _print_clipping(clipping: "ClippingResult") -> None:
    """Print the largest contributions that a hostile server's weights caused, in one line."""
    screen.print(
        f"Search for weights that break clipping ({clipping.model}, {clipping.tried} tried): "
        f"{'FOUND' if clipping.flagged else 'none found'}. "
        f"One record contributed at most {clipping.real:.7f} C on real clients (limit 1 C) and "
        f"{clipping.simulated:.7f} C in simulations (limit {clipping.simulated_limit:.7f} C), and at most "
        f"{clipping.losses:.7f} of the bound to released losses (limit 1).",
        style=_style(clipping.flagged),
        highlight=False,
        soft_wrap=True,
    )
