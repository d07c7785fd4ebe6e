"""`fedlane testbed`: a real federation over shaped links on this machine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedlane.cli.session import InterruptedRunError, messages, new_folder, screen
from fedlane.files import file_name
from fedlane.number_text import number_text
from fedlane.validate import InputError, missing_extra

if TYPE_CHECKING:  # imported inside functions, to keep `fedlane --help` fast
    from fedlane.flower.testbed.spec import TestbedSpec
    from fedlane.flower.testbed.testbed import Testbed, TestbedResult
    from fedlane.records import FloatArray
    from fedlane.scenario import Scenario

CLIENTS, LANES, ROUNDS, DEADLINE_S, RATES = 6, 3, 40, 30.0, "1:20"
LARGEST = {"--clients": 16_000, "--lanes": 1000, "--rounds": 1_000_000}
"""Clients that have an address, and more lanes and rounds than a testbed can have."""


def run_testbed(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="[SCENARIO]", help="Take clients, lanes, rounds, deadline and rates from a scenario."),
    ] = None,
    clients: Annotated[
        int | None, typer.Option("--clients", metavar="U", help=f"Clients (default: {CLIENTS}).")
    ] = None,
    lanes: Annotated[int | None, typer.Option("--lanes", metavar="N", help=f"Lanes (default: {LANES}).")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="T", help=f"Rounds (default: {ROUNDS}).")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="P", help="Policy, for example mamab-om:V=10; repeatable (default: lane)."),
    ] = None,
    deadline: Annotated[
        float | None, typer.Option("--deadline", metavar="S", help=f"Round deadline in s (default: {DEADLINE_S:g}).")
    ] = None,
    rates: Annotated[
        str | None, typer.Option("--rates", metavar="LOW:HIGH", help=f"Log-uniform rates, Mbit/s (default: {RATES}).")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="FILE", help="Throughput trace to replay (a path, or a file in FEDLANE_DATA)."),
    ] = None,
    payload: Annotated[int, typer.Option("--payload", metavar="BYTES", help="Size of the model.")] = 1_000_000,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Seed of rates, data and policy.")] = 0,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="First measure Flower's share of a delay, for the prediction.")
    ] = False,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", metavar="FILE", help="Use the result of an earlier --calibrate.")
    ] = None,
    stock_nodes: Annotated[
        bool, typer.Option("--stock-nodes", help="Start Flower's own SuperNodes, which poll less often.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Output folder: new or empty.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors.")] = False,
) -> None:
    """Run a real federation over shaped links on this machine (Linux, root).

    Creates a network namespace for the base station and for each client, sets a rate for each pair of client and lane,
    and starts Flower's processes with TLS and node keys. Only DIR remains afterwards.
    """
    options = TestbedOptions(scenario, clients, lanes, rounds, deadline, rates, trace, payload, seed, stock_nodes)
    folder, rows = _run(options, policy or ["lane"], calibrate, calibration, out, quiet or as_json)
    if as_json:
        print(json.dumps({"folder": str(folder), "runs": rows}))
    elif not quiet:
        screen.print(_table(rows))
        screen.print(f"Saved to {folder}", highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class TestbedOptions:
    """The command's options that describe the testbed; None stands for the scenario's value, or the default."""

    scenario: str | None
    clients: int | None
    lanes: int | None
    rounds: int | None
    deadline_s: float | None
    rates: str | None
    trace: str | None
    payload_bytes: int
    seed: int
    stock_nodes: bool

    def spec(self) -> "TestbedSpec":
        """Return the testbed with all values resolved."""
        from fedlane.flower.testbed.spec import TestbedSpec

        if sum(source is not None for source in (self.scenario, self.rates, self.trace)) > 1:
            raise InputError("a scenario, --rates and --trace cannot be combined: each one defines the links")
        if self.seed < 0:
            raise InputError(f"--seed must be at least 0, got {self.seed}")
        scenario = self._load_scenario()
        network = scenario.network if scenario else None
        clients = network.clients if network else CLIENTS if self.clients is None else self.clients
        lanes = network.channels if network else LANES if self.lanes is None else self.lanes
        rounds = self.rounds if self.rounds is not None else scenario.rounds if scenario else ROUNDS
        deadline_s = self.deadline_s if self.deadline_s is not None else network.deadline_s if network else DEADLINE_S
        for field, value in (("--clients", clients), ("--lanes", lanes), ("--rounds", rounds)):
            if not 1 <= value <= LARGEST[field]:
                raise InputError(f"{field} must be at least 1 and at most {LARGEST[field]:,}, got {value}")
        rates_mbps = self._rates_mbps(scenario, clients, lanes, rounds)
        return TestbedSpec(
            clients, lanes, rounds, deadline_s, self.payload_bytes, self.seed, rates_mbps, self.stock_nodes
        )

    def _load_scenario(self) -> "Scenario | None":
        from fedlane.scenario import Scenario

        if self.scenario is None:
            return None
        changes = {"network.clients": self.clients, "network.channels": self.lanes}
        changes = {key: value for key, value in changes.items() if value is not None}
        scenario = Scenario.load(self.scenario)
        return scenario.with_values(changes) if changes else scenario

    def _rates_mbps(self, scenario: "Scenario | None", clients: int, lanes: int, rounds: int) -> "FloatArray":
        from fedlane.flower.testbed.rates import draw_rates, parse_range, replay_trace, scenario_rates

        if scenario is not None:
            return scenario_rates(scenario, self.seed)
        if self.trace is not None:
            return replay_trace(self.trace, clients, lanes, rounds, self.seed)
        return draw_rates(clients, lanes, *parse_range(self.rates or RATES), self.seed)


def _run(
    options: TestbedOptions,
    policies: list[str],
    calibrate: bool,
    calibration_file: Path | None,
    out: Path | None,
    quiet: bool,
) -> tuple[Path, list[dict[str, object]]]:
    """Check all options, run the policies one after the other, and return the folder and a row per policy."""
    try:
        from fedlane.flower.testbed.calibration import Calibration
        from fedlane.flower.testbed.testbed import Testbed
    except ModuleNotFoundError as error:
        raise missing_extra("fedlane testbed", "flower") from error
    from fedlane.flower.testbed.links import unsupported_reason
    from fedlane.simulation.results import RunFolder

    named = _named_policies(policies)
    if calibrate and calibration_file is not None:
        raise InputError("--calibrate and --calibration cannot be combined")
    calibration = None if calibration_file is None else Calibration.read(calibration_file)
    spec = options.spec()
    spec.check(calibration)
    reason = unsupported_reason()
    if reason is not None:
        raise InputError(f"the testbed cannot run on this machine: {reason}")
    folder = RunFolder.create(out or new_folder("testbed")).path
    with TestbedProgress(quiet) as progress:
        testbed = Testbed(spec, folder, progress.step, calibration)
        try:
            results = _run_policies(testbed, named, calibrate, progress)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted: links and processes were removed; finished runs are in {folder}"
            ) from None
    rows = [_row(result, testbed) for result in results]
    (folder / "testbed.json").write_text(json.dumps(rows, indent=1) + "\n")
    return folder, rows


def _named_policies(policies: list[str]) -> dict[str, str]:
    """Return {folder name: policy}; raise `InputError` for duplicates and policies that no real federation can run."""
    from fedlane.scheduling import make_policy
    from fedlane.scheduling.policy import check_federated

    named = {file_name(policy): policy for policy in policies}
    if len(named) < len(policies):
        raise InputError(f"--policy names the same policy twice: {', '.join(policies)}")
    for policy in policies:
        check_federated(make_policy(policy, {}))
    return named


class TestbedProgress(Progress):
    """A progress bar of the current step; without a terminal, one line per step."""

    def __init__(self, quiet: bool) -> None:
        self._print_steps = not quiet and not messages.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"))
        hidden = quiet or not messages.is_terminal
        super().__init__(*columns, TimeElapsedColumn(), console=messages, transient=True, disable=hidden)
        self._bar = self.add_task("preparing", total=None)

    def step(self, text: str, rounds: int | None = None) -> None:
        """Begin a step, which may have a known number of rounds."""
        self.update(self._bar, description=text, total=rounds, completed=None if rounds is None else 0)
        if self._print_steps:
            messages.print(text, highlight=False, markup=False)

    def round(self, rounds_done: int) -> None:
        """Show the number of rounds done."""
        self.update(self._bar, completed=rounds_done)


def _run_policies(
    testbed: "Testbed", policies: Mapping[str, str], calibrate: bool, progress: TestbedProgress
) -> "list[TestbedResult]":
    with testbed:
        if calibrate:
            progress.step("calibrating")
            testbed.calibrate(progress.round)
        results = []
        for name, policy in policies.items():
            progress.step(f"running {policy}", testbed.spec.rounds)
            results.append(testbed.run(policy, name, progress.round))
        return results


def _row(result: "TestbedResult", testbed: "Testbed") -> dict[str, object]:
    """Return the figures of one run; the prediction is None without a calibration."""
    from fedlane.flower.testbed.prediction import predict_total_s
    from fedlane.report.seed_measures import problem_shortfall

    summary, calibration, scenario = result.run.summary, testbed.calibration, testbed.folder / "simulation.toml"
    return {
        "policy": result.policy,
        "folder": str(result.folder),
        "wall_s": result.wall_s,
        "predicted_s": (
            None if calibration is None else predict_total_s(scenario, result.policy, testbed.spec.seed, calibration)
        ),
        "mean_round_s": summary["mean_round_s"]["mean"],
        "late_share": summary["late_share"]["mean"],
        "quota_shortfall": summary["quota_shortfall"]["mean"],
        "problem_shortfall": float(problem_shortfall(result.run.tables, summary).mean()),
        "final_accuracy": summary["final_accuracy"]["mean"],
        "network_over_expected": result.network_ratio,
    }


def _table(rows: list[dict[str, object]]) -> Table:
    table = Table("policy", "wall-clock", "predicted", "mean round", "late", "quota shortfall", "link / (size / rate)")

    def number(value: object, form: str, unit: str = "") -> str:
        return number_text(value, f"{{:{form}}}") + unit if isinstance(value, float | int) else "-"

    for row in rows:
        table.add_row(
            str(row["policy"]),
            number(row["wall_s"], ".1f", " s"),
            number(row["predicted_s"], ".1f", " s"),
            number(row["mean_round_s"], ".2f", " s"),
            number(row["late_share"], ".1%"),
            number(row["problem_shortfall"], ".3f"),
            number(row["network_over_expected"], ".3f"),
        )
    return table
