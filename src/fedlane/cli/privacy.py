"""The command line's privacy part: `fedlane privacy calibrate`, `account`, `audit`, `new-ledger`."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress
from rich.table import Table

from fedlane.cli.help import examples
from fedlane.cli.privacy_rows import calibrated_row, json_safe, ledger_rows, paper_rows, rigorous_row, scenario_rows
from fedlane.cli.session import check_writable, messages, screen
from fedlane.validate import InputError, at_least

LARGEST = 1e12

app = typer.Typer(no_args_is_help=True, help="Noise for a budget, what was spent, and proof by experiment.")


class Mechanism(StrEnum):
    paper = "paper"
    rigorous = "rigorous"


EpsilonOption = Annotated[float | None, typer.Option("--epsilon", metavar="E", help="What the client agreed to.")]
DeltaOption = Annotated[float | None, typer.Option("--delta", metavar="D", help="Its delta.")]
SizeOption = Annotated[int | None, typer.Option("--size", metavar="N", help="Records of the client.")]
BatchOption = Annotated[
    int | None, typer.Option("--batch", metavar="B", help="Records in a step's sample, on average.")
]
StepsOption = Annotated[int, typer.Option("--iterations", metavar="TAU", help="Steps of an upload.")]
UploadsOption = Annotated[int | None, typer.Option("--uploads", metavar="K", help="Uploads that the budget is for.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a scenario value, as privacy.epsilon=4.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]


@app.command(
    epilog=examples(
        "fedlane privacy calibrate quickstart",
        "fedlane privacy calibrate --epsilon 8 --delta 1e-5 --size 6000 --batch 64 --uploads 250",
    )
)
def calibrate(
    scenario: Annotated[
        str | None, typer.Argument(metavar="[SCENARIO]", help="Calibrate every client of a scenario, or:")
    ] = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    size: SizeOption = None,
    batch: BatchOption = None,
    iterations: StepsOption = 5,
    uploads: UploadsOption = None,
    histogram_noise: Annotated[
        float,
        typer.Option("--histogram-noise", metavar="M", help="Noise of a label histogram release to pay for; 0: none."),
    ] = 0.0,
    set_: SetOption = None,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="The seed of the scenario's partition.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """The noise multiplier that keeps a client within its budget over all its uploads (mechanism rigorous)."""
    at_least("--iterations", iterations, 1)
    with messages.status("Calibrating"):
        if scenario is not None:
            if any(value is not None for value in (epsilon, delta, size, batch, uploads)):
                raise InputError("give a scenario, or --epsilon, --delta, --size, --batch and --uploads, not both")
            rows = scenario_rows(scenario, set_ or [], seed)
        else:
            if set_:
                raise InputError("--set changes a scenario, and none is given")
            needed = _all_given(epsilon=epsilon, delta=delta, size=size, batch=batch, uploads=uploads)
            rows = [calibrated_row(iterations=iterations, histogram_noise=histogram_noise, **needed)]
    if as_json:
        print(json.dumps(rows if scenario is not None else rows[0]))
        return
    _print_table(rows)


@app.command(epilog=examples("fedlane privacy account runs/mine", "fedlane privacy account client/ledger.jsonl"))
def account(
    ledger: Annotated[
        Path | None, typer.Argument(metavar="[LEDGER]", help="A client's ledger, a run's, or a run folder; or:")
    ] = None,
    mechanism: Annotated[Mechanism, typer.Option("--mechanism", help="What an upload is.")] = Mechanism.rigorous,
    noise: Annotated[
        float | None, typer.Option("--noise", metavar="Z", help="Noise multiplier of a step (rigorous).")
    ] = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    size: SizeOption = None,
    batch: BatchOption = None,
    iterations: StepsOption = 5,
    uploads: UploadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """What was spent: a table per client and data set from a ledger, or the account of uploads you describe."""
    at_least("--iterations", iterations, 1)
    with messages.status("Accounting"):
        if ledger is not None:
            if any(value is not None for value in (noise, epsilon, delta, size, batch, uploads)):
                raise InputError("a ledger holds all that is needed: leave the other options out")
            rows = ledger_rows(ledger)
        elif mechanism == Mechanism.paper:
            needed = _all_given(epsilon=epsilon, delta=delta, size=size, batch=batch, uploads=uploads)
            rows = paper_rows(iterations=iterations, **needed)
        else:
            needed = _all_given(noise=noise, delta=delta, size=size, batch=batch, uploads=uploads)
            rows = [rigorous_row(iterations=iterations, **needed)]
    if as_json:
        print(json.dumps([json_safe(row) for row in rows]))
        return
    _print_table(rows)


@app.command(epilog=examples("fedlane privacy audit", "fedlane privacy audit --mechanism paper --out audit.png"))
def audit(
    mechanism: Annotated[Mechanism, typer.Option("--mechanism", help="What to audit.")] = Mechanism.rigorous,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    size: SizeOption = None,
    batch: BatchOption = None,
    iterations: StepsOption = 5,
    full: Annotated[bool, typer.Option("--full", help="The paper's whole MLP, 784-64-10, with fewer trials.")] = False,
    trials: Annotated[
        int | None, typer.Option("--trials", metavar="K", help="Trials (20000; 4000 with --full).")
    ] = None,
    confidence: Annotated[float, typer.Option("--confidence", metavar="P", help="Of the lower bound.")] = 0.999,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="The seed of data, model and noise.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Draw the audit into a PNG or PDF.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what an upload leaks, through the code that trains: a lower bound on epsilon beside the claim."""
    from fedlane.simulation.audit import AuditPlan, audit, audit_samples

    at_least("--iterations", iterations, 1)
    at_least("--seed", seed, 0)
    given = {"epsilon": epsilon, "delta": delta, "records": size, "batch_size": batch}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if size is not None and batch is None and mechanism == Mechanism.rigorous:
        changes["batch_size"] = size
    changes["trials"] = trials if trials is not None else 4000 if full else 20_000
    if full:
        changes["pixels"] = 28
    plan = AuditPlan.of(mechanism.value, **changes, local_iterations=iterations, confidence=confidence, seed=seed)
    if out is not None:
        from fedlane.report.figures import check_picture

        check_picture(out)
        check_writable(out)
    with Progress(console=messages, transient=True, disable=as_json or not messages.is_terminal) as progress:
        bar = progress.add_task("trials", total=plan.trials)
        result = audit(plan, progress=lambda done: progress.update(bar, completed=done))
    samples = audit_samples(plan) if mechanism == Mechanism.rigorous else None
    if out is not None:
        from fedlane.report.figures import audit_figure

        audit_figure(result.scores, result.threshold, result.claim, result.epsilon_low, result.confidence, out)
    report = {
        "mechanism": mechanism.value,
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
    if as_json:
        print(json.dumps(report))
        return
    table = Table(title=f"Audit of one upload · mechanism {mechanism.value} · {result.trials:,} trials")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("claimed epsilon", f"{result.claim:g} at delta {result.delta:g}")
    table.add_row(f"measured: at least, with {result.confidence:.1%} confidence", f"{result.epsilon_low:.3f}")
    table.add_row("  without assuming anything of the mechanism", f"{result.epsilon_low_any:.3f}")
    table.add_row("attack: false and true positives", f"{result.false_positive:.4f}, {result.true_positive:.4f}")
    if samples is not None:
        table.add_row("Poisson samples: smallest p-value of four tests", f"{samples.smallest:.3f}")
    screen.print(table)
    broken = result.flagged or (samples is not None and samples.flagged)
    verdict = "REFUTED: it leaks more than it claims." if broken else "not refuted."
    screen.print(f"The claim is {verdict}", style="red" if broken else "green", highlight=False)


@app.command("new-ledger", epilog=examples("fedlane privacy new-ledger ledger.jsonl --client hospital-3"))
def new_ledger(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The ledger's file, on the client's own disk.")],
    client: Annotated[str, typer.Option("--client", metavar="NAME", help="The client's name in its federation.")],
) -> None:
    """Make the ledger of a new client, once. One that exists, or existed, is refused."""
    from fedlane.flower.client.ledger_file import new_ledger

    made = new_ledger(path, client)
    messages.print(f"{made} is the ledger of client {client}. Keep it out of backups that restore it.", markup=False)


def _all_given(**values: float | None) -> dict[str, Any]:
    """The values, if every one is there and greater than 0."""
    for name, value in values.items():
        if value is None:
            others = ", ".join(f"--{other}" for other in values if other != name)
            raise InputError(f"--{name} is missing: without a file, {others} and --{name} are all needed")
        if not 0 < value <= LARGEST:
            raise InputError(f"--{name} must be greater than 0 and at most {LARGEST:g}, got {value:g}")
    if (delta := values.get("delta")) is not None and delta >= 1:
        raise InputError(f"--delta must be less than 1, got {delta:g}")
    return dict(values)


def _print_table(rows: list[dict[str, Any]]) -> None:
    """The rows as a table; what is the same in all of them stands above it."""
    if not rows:
        screen.print("No data set has an account yet: nothing is spent.")
        return
    shown = dict(rows[0])
    if len(rows) > 1:
        same = {key for key in shown if all(row[key] == rows[0][key] for row in rows)} - {
            "client",
            "uploads",
            "epsilon",
        }
        if same:
            screen.print(" · ".join(f"{_words(key)} {_text(rows[0][key])}" for key in shown if key in same))
        shown = {key: value for key, value in shown.items() if key not in same}
    table = Table(show_header=len(rows) > 1)
    if len(rows) == 1:
        for key, value in shown.items():
            table.add_row(_words(key), _text(value))
    else:
        for heading, value in shown.items():
            table.add_column(_words(heading), justify="left" if isinstance(value, str) else "right")
        for row in rows:
            table.add_row(*(_text(row[key]) for key in shown))
    screen.print(table)
    if any(row.get("mechanism") == "paper" and row["epsilon"] > row["epsilon_paper"] for row in rows):
        messages.print(
            "Warning: the mechanism paper leaks at least the epsilon shown, more than the paper's formula says.",
            style="yellow",
            highlight=False,
        )


def _words(key: str) -> str:
    return {"epsilon_paper": "by formula (6)", "of": "uploads allowed"}.get(key, key.replace("_", " "))


def _text(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
