"""The command line's privacy part: `fedlane privacy calibrate`, `account`, `audit`."""

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress
from rich.table import Table

from fedlane.session import check_writable, messages, screen
from fedlane.validate import InputError, at_least

if TYPE_CHECKING:  # imported where they are used: `fedlane --help` answers at once
    from fedlane.privacy import Terms

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


@app.command()
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
            rows = _scenario_rows(scenario, set_ or [], seed)
        else:
            if set_:
                raise InputError("--set changes a scenario, and none is given")
            needed = _all_given(epsilon=epsilon, delta=delta, size=size, batch=batch, uploads=uploads)
            rows = [_calibrated_row(iterations=iterations, histogram_noise=histogram_noise, **needed)]
    if as_json:
        print(json.dumps(rows if scenario is not None else rows[0]))
        return
    _print_table(rows)


@app.command()
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
            rows = _ledger_rows(ledger)
        elif mechanism == Mechanism.paper:
            needed = _all_given(epsilon=epsilon, delta=delta, size=size, batch=batch, uploads=uploads)
            rows = _paper_rows(iterations=iterations, **needed)
        else:
            needed = _all_given(noise=noise, delta=delta, size=size, batch=batch, uploads=uploads)
            rows = [_rigorous_row(iterations=iterations, **needed)]
    if as_json:
        print(json.dumps([_json_safe(row) for row in rows]))
        return
    _print_table(rows)


@app.command()
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


def _calibrated_row(
    epsilon: float, delta: float, size: int, batch: int, uploads: int, iterations: int, histogram_noise: float
) -> dict[str, Any]:
    from fedlane.privacy import account, calibrate
    from fedlane.privacy.calibrate import resolution

    rate, steps = min(1.0, batch / size), iterations * uploads
    noise = calibrate(epsilon, delta, sample_rate=rate, steps=steps, histogram_noise=histogram_noise)
    spent = account(noise, rate, steps, delta, histogram_noise=histogram_noise, interval=resolution(epsilon))
    return {
        "noise_multiplier": noise,
        "epsilon": spent,
        "delta": delta,
        "sample_rate": rate,
        "steps": steps,
        "histogram_noise": histogram_noise,
    }


def _scenario_rows(name: str, settings: list[str], seed: int) -> list[dict[str, Any]]:
    from fedlane.scenario import Scenario
    from fedlane.simulation.setup import prepare

    scenario = Scenario.load(name).with_settings(["privacy.mechanism=rigorous", *settings])
    if scenario.privacy.mechanism != "rigorous":
        raise InputError("only the mechanism rigorous is calibrated")
    setup = prepare(scenario, [seed])
    spec = setup.mechanism
    return [
        {
            "client": i,
            "size": int(setup.label_counts[0, i].sum()),
            "batch": int(spec.batch_size[0, i]),
            "sample_rate": float(spec.sample_rate[0, i]),
            "uploads": int(spec.max_uploads[i]),
            "epsilon": float(spec.epsilon[i]),
            "delta": float(spec.delta[i]),
            "noise_multiplier": float(spec.step_noise[0, i]),
        }
        for i in range(len(spec.epsilon))
    ]


def _ledger_rows(path: Path) -> list[dict[str, Any]]:
    from fedlane.privacy.ledger import read_accounts
    from fedlane.privacy.run_ledger import NAME, read_run_accounts

    file = path / NAME if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"ledger {file} does not exist" + (" (a run without a mechanism has none)" * path.is_dir()))
    with file.open("rb") as content:
        simulated = content.read(14).startswith(b'{"kind": "run"')
    if not simulated:
        client, accounts = read_accounts(file)
        return [
            {"client": client, "dataset": dataset, **_spent_row(entry.terms, entry.uploads)}
            for dataset, entry in accounts.items()
        ]
    run = read_run_accounts(file)
    return [
        {
            "seed": seed,
            "client": client,
            "dataset": run.dataset,
            **_spent_row(run.terms[run.kind[r, client]], int(run.uploads[r, client])),
        }
        for r, seed in enumerate(run.seeds)
        for client in range(run.kind.shape[1])
    ]


_KNOWN: dict[tuple[Any, int], dict[str, Any]] = {}


def _spent_row(terms: "Terms", uploads: int) -> dict[str, Any]:
    from fedlane.privacy import spent

    if (terms, uploads) not in _KNOWN:
        figures = spent(terms, uploads)
        _KNOWN[terms, uploads] = {
            "mechanism": terms.mechanism,
            "uploads": uploads,
            "of": terms.max_uploads,
            "epsilon_agreed": terms.epsilon,
            "delta": terms.delta,
            "epsilon": figures.epsilon,
            "epsilon_paper": figures.epsilon_paper,
        }
    return _KNOWN[terms, uploads]


def _paper_rows(
    epsilon: float, delta: float, size: int, batch: int, uploads: int, iterations: int
) -> list[dict[str, Any]]:
    """What the paper's figures are worth, one below the other."""
    from fedlane.privacy.paper import composed_gaussian, formula_6, leak, paper_noise

    batch = min(batch, size)
    noise, rate = float(paper_noise(epsilon, delta, size, batch, iterations)), batch / size
    return [
        {"figure": "paper formula (6)", "uploads": uploads, "epsilon": float(formula_6(epsilon, delta, uploads))},
        {
            "figure": "tight, if every round were Gaussian and exactly (epsilon, delta)-DP",
            "uploads": uploads,
            "epsilon": composed_gaussian(epsilon, delta, uploads),
        },
        {
            "figure": "what the paper's noise leaks, at least",
            "uploads": 1,
            "epsilon": leak(noise, rate, iterations, delta),
        },
        {
            "figure": "what the paper's noise leaks, at least",
            "uploads": uploads,
            "epsilon": leak(noise, rate, iterations, delta, uploads),
        },
    ]


def _rigorous_row(noise: float, delta: float, size: int, batch: int, uploads: int, iterations: int) -> dict[str, Any]:
    from fedlane.privacy import account

    rate, steps = min(1.0, batch / size), iterations * uploads
    return {
        "epsilon": account(noise, rate, steps, delta),
        "delta": delta,
        "noise_multiplier": noise,
        "sample_rate": rate,
        "steps": steps,
    }


def _json_safe(row: dict[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and math.isinf(value) else value for key, value in row.items()}


def _print_table(rows: list[dict[str, Any]]) -> None:
    """The rows as a table; what is the same in all of them stands above it."""
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
    table = Table()
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
