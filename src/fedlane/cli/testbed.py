"""`fedlane testbed`: a real federation over real links on this machine."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedlane.cli.session import InterruptedRunError, messages, new_folder, screen
from fedlane.files import file_name
from fedlane.validate import InputError

if TYPE_CHECKING:
    from fedlane.flower.testbed.calibration import Calibration
    from fedlane.flower.testbed.testbed import Played, TestbedSpec

CLIENTS, LANES, ROUNDS, DEADLINE_S, RATES = 6, 3, 40, 30.0, "1:20"


def run_testbed(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="[SCENARIO]", help="Take clients, lanes, rounds, deadline and rates from a scenario."),
    ] = None,
    clients: Annotated[int | None, typer.Option("--clients", metavar="U", help=f"Client nodes ({CLIENTS}).")] = None,
    lanes: Annotated[int | None, typer.Option("--lanes", metavar="N", help=f"Lanes ({LANES}).")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="T", help=f"Rounds ({ROUNDS}).")] = None,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", metavar="P", help="As lane or mamab-om:V=10; once for each (lane).")
    ] = None,
    deadline: Annotated[
        float | None, typer.Option("--deadline", metavar="S", help=f"Seconds that a round may take ({DEADLINE_S:g}).")
    ] = None,
    rates: Annotated[
        str | None, typer.Option("--rates", metavar="LOW:HIGH", help=f"Mbit/s, log-uniform per pair ({RATES}).")
    ] = None,
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="FILE", help="Replay a throughput trace instead (FEDLANE_DATA).")
    ] = None,
    payload: Annotated[int, typer.Option("--payload", metavar="BYTES", help="Size of the model.")] = 1_000_000,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Of rates, data and policy.")] = 0,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="First measure what Flower itself adds to a round, for the prediction.")
    ] = False,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", metavar="FILE", help="Take what an earlier --calibrate measured.")
    ] = None,
    stock_nodes: Annotated[
        bool, typer.Option("--stock-nodes", help="Start Flower's own SuperNodes, with all their waits.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Output folder: new or empty.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors.")] = False,
) -> None:
    """Run a real federation over shaped links on this machine (Linux, root).

    A network namespace for the base station and for every client, Flower's processes with TLS and node keys, and a
    rate of its own for every pair of client and lane. Everything but DIR is gone afterwards.
    """
    from fedlane.flower.testbed import links
    from fedlane.scheduling import make_policy
    from fedlane.simulation.results import RunFolder

    try:
        from fedlane.flower.testbed.calibration import Calibration
        from fedlane.flower.testbed.testbed import Testbed
    except ImportError as error:
        raise InputError(f"the testbed needs Flower: install fedlane[flower] ({error.name} is missing)") from None

    chosen = policy or ["lane"]
    names = [file_name(text) for text in chosen]
    if len(set(names)) < len(names):
        raise InputError(f"--policy names the same policy twice: {', '.join(chosen)}")
    for text in chosen:
        if make_policy(text, {}).requires:
            raise InputError(f"policy {text} needs to see what no federation can measure")
    if calibrate and calibration is not None:
        raise InputError("--calibrate and --calibration exclude each other")
    measured = None if calibration is None else Calibration.read(calibration)
    setting = _setting(scenario, clients, lanes, rounds, deadline, rates, trace, payload, seed, stock_nodes)
    setting.check(measured)
    reason = links.missing()
    if reason is not None:
        raise InputError(f"the testbed cannot run here: {reason}")
    folder = RunFolder.create(out or new_folder("testbed")).path
    quiet = quiet or as_json
    hidden = quiet or not messages.is_terminal
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"))
    with Progress(*columns, TimeElapsedColumn(), console=messages, transient=True, disable=hidden) as progress:
        bar = progress.add_task("preparing", total=None)

        def say(text: str) -> None:
            progress.update(bar, description=text, total=None)
            if hidden and not quiet:
                messages.print(text, highlight=False, markup=False)

        def follow(round: int) -> None:
            progress.update(bar, completed=round)

        played: list[Played] = []
        try:
            with Testbed(setting, folder, say, measured) as bed:
                if calibrate:
                    say("calibrating")
                    bed.calibrate(follow)
                for text in chosen:
                    say(f"playing {text}")
                    progress.update(bar, total=setting.rounds, completed=0)
                    played.append(bed.play(text, follow))
                known = bed.calibration
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted: links and processes are gone; what was played is in {folder}"
            ) from None
    predicted = {one.policy: _predicted_s(folder / "simulation.toml", one.policy, setting, known) for one in played}
    rows = [_row(one, predicted[one.policy]) for one in played]
    (folder / "testbed.json").write_text(json.dumps(rows, indent=1) + "\n")
    if as_json:
        print(json.dumps({"folder": str(folder), "runs": rows}))
    elif not quiet:
        screen.print(_table(rows))
        screen.print(f"Saved to {folder}", highlight=False, markup=False, soft_wrap=True)


def _setting(
    scenario: str | None,
    clients: int | None,
    lanes: int | None,
    rounds: int | None,
    deadline: float | None,
    rates: str | None,
    trace: str | None,
    payload: int,
    seed: int,
    stock_nodes: bool,
) -> "TestbedSpec":
    """What was asked for, each value once."""
    from fedlane.flower.testbed import rates as source
    from fedlane.flower.testbed.testbed import TestbedSpec
    from fedlane.scenario import Scenario

    if sum(given is not None for given in (scenario, rates, trace)) > 1:
        raise InputError("a scenario, --rates and --trace exclude each other: each says what the links are")
    if seed < 0:
        raise InputError(f"--seed must be at least 0, got {seed}")
    base = None if scenario is None else Scenario.load(scenario)
    if base is not None and (clients is not None or lanes is not None):
        changes = {"network.clients": clients, "network.channels": lanes}
        base = base.with_values({key: value for key, value in changes.items() if value is not None})
    users = base.network.clients if base else CLIENTS if clients is None else clients
    width = base.network.channels if base else LANES if lanes is None else lanes
    length = rounds if rounds is not None else base.rounds if base else ROUNDS
    for field, value in (("--clients", users), ("--lanes", width), ("--rounds", length)):
        if value < 1:
            raise InputError(f"{field} must be at least 1, got {value}")
    if base is not None:
        table = source.of_scenario(base, seed)
    elif trace is not None:
        table = source.replayed(trace, users, width, length, seed)
    else:
        table = source.drawn(users, width, *source.parse_range(rates or RATES), seed)
    limit = deadline if deadline is not None else base.network.deadline_s if base else DEADLINE_S
    return TestbedSpec(users, width, length, limit, payload, seed, table, stock_nodes)


def _predicted_s(scenario: Path, policy: str, setting: "TestbedSpec", known: "Calibration | None") -> float | None:
    """What simulation says the rounds take in all, the time between them included; None without a calibration."""
    if known is None:
        return None
    from fedlane.scenario import Scenario
    from fedlane.simulation.run import Simulation

    simulation = Simulation(Scenario.load(scenario), policy, [setting.seed], learning=False)
    while not simulation.finished:
        simulation.step()
    return float(simulation.trace.delay_s.sum()) + known.between_s * setting.rounds


def _row(one: "Played", predicted_s: float | None) -> dict[str, object]:
    summary = one.run.summary
    return {
        "policy": one.policy,
        "folder": str(one.folder),
        "wall_s": one.wall_s,
        "predicted_s": predicted_s,
        "mean_round_s": summary["mean_round_s"]["mean"],
        "late_share": summary["late_share"]["mean"],
        "quota_shortfall": summary["quota_shortfall"]["mean"],
        "final_accuracy": summary["final_accuracy"]["mean"],
        "network_over_expected": one.network_ratio,
    }


def _table(rows: list[dict[str, object]]) -> Table:
    table = Table("policy", "wall-clock", "predicted", "mean round", "late", "quota missed by", "link / (size / rate)")

    def number(value: object, form: str, unit: str = "") -> str:
        return f"{value:{form}}{unit}" if isinstance(value, float | int) else "-"

    for row in rows:
        table.add_row(
            str(row["policy"]),
            number(row["wall_s"], ".1f", " s"),
            number(row["predicted_s"], ".1f", " s"),
            number(row["mean_round_s"], ".2f", " s"),
            number(row["late_share"], ".1%"),
            number(row["quota_shortfall"], ".3f"),
            number(row["network_over_expected"], ".3f"),
        )
    return table
