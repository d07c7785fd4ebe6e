"""The `fedlane privacy` commands: `calibrate`, `account`, `audit` and `new-ledger`."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedlane.cli import privacy_accounts as accounts
from fedlane.cli import privacy_audit as auditing
from fedlane.cli.help import examples
from fedlane.cli.options import Device, DeviceOption
from fedlane.cli.session import messages
from fedlane.validate import InputError, at_least, printable

LARGEST = 1e12

app = typer.Typer(no_args_is_help=True, help="Calibrate noise, account for spent privacy, and audit mechanisms.")


class MechanismOption(StrEnum):
    """The mechanisms that make a privacy claim."""

    paper = "paper"
    rigorous = "rigorous"


EpsilonOption = Annotated[float | None, typer.Option("--epsilon", metavar="E", help="Agreed epsilon.")]
DeltaOption = Annotated[float | None, typer.Option("--delta", metavar="D", help="Target delta.")]
SizeOption = Annotated[int | None, typer.Option("--size", metavar="N", help="Number of the client's records.")]
BatchOption = Annotated[
    int | None, typer.Option("--batch", metavar="B", help="Mean number of records in a step's sample.")
]
StepsOption = Annotated[int, typer.Option("--iterations", metavar="TAU", help="Training steps per upload.")]
UploadsOption = Annotated[int | None, typer.Option("--uploads", metavar="K", help="Uploads that the budget covers.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a scenario value (privacy.epsilon=4).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")]


@app.command(
    epilog=examples(
        "fedlane privacy calibrate quickstart",
        "fedlane privacy calibrate --epsilon 8 --delta 1e-5 --size 6000 --batch 64 --uploads 250",
    )
)
def calibrate(
    scenario: Annotated[
        str | None, typer.Argument(metavar="[SCENARIO]", help="Calibrate the clients of a preset or TOML file.")
    ] = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    size: SizeOption = None,
    batch: BatchOption = None,
    iterations: StepsOption = 5,
    uploads: UploadsOption = None,
    histogram_noise: Annotated[
        float,
        typer.Option("--histogram-noise", metavar="M", help="Noise of a label-histogram release, in records; 0: none."),
    ] = 0.0,
    set_: SetOption = None,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Seed of the scenario's partition.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Print the noise multiplier that keeps a client within its budget over all its uploads (mechanism rigorous)."""
    at_least("--iterations", iterations, 1)
    with messages.status("Calibrating"):
        if scenario is not None:
            if any(value is not None for value in (epsilon, delta, size, batch, uploads)):
                raise InputError("a scenario cannot be combined with --epsilon, --delta, --size, --batch or --uploads")
            rows = accounts.scenario_rows(scenario, set_ or [], seed)
        else:
            if set_:
                raise InputError("--set needs a scenario to change")
            needed = _required(epsilon=epsilon, delta=delta, size=size, batch=batch, uploads=uploads)
            rows = [accounts.calibrated_row(iterations=iterations, histogram_noise=histogram_noise, **needed)]
    accounts.warn_of_delta(rows if scenario is not None else [{"delta": delta, "size": size}], scenario)
    if as_json:
        print(json.dumps(rows if scenario is not None else rows[0]))
        return
    accounts.print_rows(rows)


@app.command(epilog=examples("fedlane privacy account runs/mine", "fedlane privacy account client/ledger.jsonl"))
def account(
    ledger: Annotated[
        Path | None, typer.Argument(metavar="[LEDGER]", help="A client's ledger, a run's ledger or a run folder.")
    ] = None,
    mechanism: Annotated[MechanismOption, typer.Option(help="Mechanism of the uploads.")] = MechanismOption.rigorous,
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
    """Print the privacy spent, per client and data set of a ledger or for uploads described by options."""
    at_least("--iterations", iterations, 1)
    with messages.status("Accounting"):
        if ledger is not None:
            if any(value is not None for value in (noise, epsilon, delta, size, batch, uploads)):
                raise InputError("a ledger cannot be combined with options that describe uploads")
            rows = accounts.ledger_rows(ledger)
        elif mechanism == MechanismOption.paper:
            needed = _required(epsilon=epsilon, delta=delta, size=size, batch=batch, uploads=uploads)
            rows = accounts.paper_rows(iterations=iterations, **needed)
        else:
            needed = _required(noise=noise, delta=delta, size=size, batch=batch, uploads=uploads)
            rows = [accounts.rigorous_row(iterations=iterations, **needed)]
    if ledger is None:
        accounts.warn_of_delta([{"delta": delta, "size": size}])
    if as_json:
        print(json.dumps([accounts.json_safe(row) for row in rows]))
        return
    accounts.print_rows(rows)


@app.command(
    epilog=examples(
        "fedlane privacy audit",
        "fedlane privacy audit runs/mine",
        "fedlane privacy audit --loss-noise 4",
        "fedlane privacy audit --mechanism paper --out audit.png",
    )
)
def audit(
    context: typer.Context,
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Audit uploads as the clients of this run folder made them.")
    ] = None,
    mechanism: Annotated[MechanismOption, typer.Option(help="Mechanism to audit.")] = MechanismOption.rigorous,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    size: SizeOption = None,
    batch: BatchOption = None,
    iterations: StepsOption = 5,
    loss_noise: Annotated[
        float | None,
        typer.Option(
            metavar="Z", help="Also attack losses that are released with the upload, with this noise multiplier."
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Train the paper's whole MLP, 784-64-10.")] = False,
    device: DeviceOption = Device.cpu,
    trials: Annotated[
        int | None, typer.Option("--trials", metavar="K", help="Number of trials (default: 20000; 4000 with --full).")
    ] = None,
    confidence: Annotated[float, typer.Option(metavar="P", help="Confidence of the lower bound.")] = 0.999,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Seed of data, model and noise.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the audit into a PNG or PDF file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Attack uploads made by the training code, and print a lower bound on epsilon next to the claim."""
    at_least("--iterations", iterations, 1)
    at_least("--seed", seed, 0)
    if run is not None:
        _refuse_with_run(context)
        options = {"trials": trials, "confidence": confidence, "seed": seed, "device": device.value}
        auditing.run_folder_audit(run, options, full=full, out=out, as_json=as_json)
        return
    if loss_noise is not None and not 0 < loss_noise <= LARGEST:
        raise InputError(f"--loss-noise must be greater than 0 and at most {LARGEST:g}, got {loss_noise:g}")
    changes = {"epsilon": epsilon, "delta": delta, "records": size, "batch_size": batch, "trials": trials}
    changes["loss_noise"] = loss_noise
    options = {"local_iterations": iterations, "confidence": confidence, "seed": seed, "device": device.value}
    plan = auditing.audit_plan(mechanism.value, changes, full=full, **options)
    auditing.check_figure(out)
    result, samples = auditing.run_audit(plan, show_progress=not as_json and messages.is_terminal)
    clipping = auditing.clipping_audit(seed=seed, device=device.value)
    auditing.draw_figure(result, out)
    if as_json:
        print(json.dumps({**auditing.audit_report(plan, result, samples), "clipping": clipping.report()}))
        return
    auditing.print_audit(plan, result, samples, clipping)


@app.command("new-ledger", epilog=examples("fedlane privacy new-ledger ledger.jsonl --client hospital-3"))
def new_ledger(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="File to create, on the client's own disk.")],
    client: Annotated[str, typer.Option("--client", metavar="NAME", help="The client's name in its federation.")],
) -> None:
    """Create the ledger of a new client. An existing ledger is never replaced."""
    from fedlane.flower.client.ledger_file import new_ledger

    created = new_ledger(path, client)
    line = printable(f"Created ledger {created} of client {client}. Never restore it from a backup.")
    messages.print(line, markup=False)


def _refuse_with_run(context: typer.Context) -> None:
    """Raise an `InputError` if an option was given whose value a run determines."""
    for name in ("mechanism", "epsilon", "delta", "size", "batch", "iterations", "loss_noise"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise InputError(f"a run cannot be combined with --{option}: the audit takes its value from the run")


def _required(**values: float | None) -> dict[str, Any]:
    """Return the values if all of them are given and greater than 0."""
    for name, value in values.items():
        if value is None:
            others = ", ".join(f"--{other}" for other in values if other != name)
            raise InputError(f"--{name} is missing: {others} and --{name} are required together")
        if not 0 < value <= LARGEST:
            raise InputError(f"--{name} must be greater than 0 and at most {LARGEST:g}, got {value:g}")
    if (delta := values.get("delta")) is not None and delta >= 1:
        raise InputError(f"--delta must be less than 1, got {delta:g}")
    return dict(values)
