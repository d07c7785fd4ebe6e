"""The results of `fedlane privacy calibrate` and `account`: rows of named values, and their table."""

import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from fedlane.cli.session import messages, screen, warn
from fedlane.files import open_regular
from fedlane.validate import InputError, printable

if TYPE_CHECKING:  # imported inside functions, to keep `fedlane --help` fast
    from fedlane.privacy import Terms
    from fedlane.privacy.run_ledger import RunAccounts

ALWAYS_COLUMNS = frozenset({"client", "uploads", "epsilon"})
"""Values that have a column even if they are the same in all rows."""


def calibrated_row(
    epsilon: float, delta: float, size: int, batch: int, uploads: int, iterations: int, histogram_noise: float
) -> dict[str, Any]:
    """Return the noise multiplier of one client, and the epsilon that it spends."""
    from fedlane.privacy import account, calibrate
    from fedlane.privacy.composition import resolution

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


def scenario_rows(name: str, settings: list[str], seed: int) -> list[dict[str, Any]]:
    """Return the noise multiplier of every client of a scenario."""
    from fedlane.privacy import mechanism_of
    from fedlane.scenario import Scenario
    from fedlane.simulation.setup import prepare

    scenario = Scenario.load(name).with_settings(["privacy.mechanism=rigorous", *settings])
    if not mechanism_of(scenario.privacy.mechanism).is_calibrated:
        raise InputError(f"privacy.mechanism must be rigorous to be calibrated, got '{scenario.privacy.mechanism}'")
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


def warn_of_delta(clients: list[dict[str, Any]], scenario: str | None = None) -> None:
    """Print one line if a delta is not below 1/|D|.

    Args:
        clients: Delta and size, the number of records, of each client.
        scenario: The scenario, if it has the values; otherwise they come from options.
    """
    from fedlane.privacy import delta_remark

    deltas, sizes = ([client[key] for client in clients] for key in ("delta", "size"))
    line = delta_remark(deltas, sizes, "--delta" if scenario is None else "privacy.delta")
    if line is not None:
        warn(line)


def ledger_rows(path: Path) -> list[dict[str, Any]]:
    """Return the privacy that each client of a ledger has spent, per data set; ``path`` is a ledger or a run folder."""
    from fedlane.privacy.ledger import read_accounts
    from fedlane.privacy.run_ledger import NAME, read_run_accounts

    file = path / NAME if path.is_dir() else path
    if not file.exists():
        reason = " (a run without a privacy mechanism has none)" if path.is_dir() else ""
        raise InputError(f"ledger {file} does not exist{reason}")
    try:
        with open_regular(file) as content:
            simulated = content.read(14).startswith(b'{"kind": "run"')
    except OSError as error:
        raise InputError(f"ledger {file} cannot be read: {error.strerror}") from error
    if not simulated:
        client, accounts = read_accounts(file)
        return [
            {"client": client, "dataset": dataset, **_spent_row(entry.terms, entry.uploads)}
            for dataset, entry in accounts.items()
        ]
    run = _run_accounts(path) if path.is_dir() else read_run_accounts(file)
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


def _run_accounts(folder: Path) -> "RunAccounts":
    """Return the accounts of a run folder, after comparing its ledger with the other files."""
    from fedlane.scenario import Scenario
    from fedlane.simulation.run_agreement import read_agreeing_accounts

    file = folder / "scenario.toml"
    if not file.is_file():
        raise InputError(f"{folder} is not a run folder: scenario.toml is missing (for a ledger alone, name its file)")
    return read_agreeing_accounts(folder, Scenario.load(file.absolute()))


@cache
def _spent_row(terms: "Terms", uploads: int) -> dict[str, Any]:
    from fedlane.privacy import mechanism_of, spent
    from fedlane.privacy.accountant import exceeds_budget

    result = spent(terms, uploads)
    return {
        "mechanism": terms.mechanism,
        "uploads": uploads,
        "of": terms.max_uploads,
        "epsilon_agreed": terms.epsilon,
        "delta": terms.delta,
        "epsilon": result.epsilon,
        "epsilon_paper": result.epsilon_paper if mechanism_of(terms.mechanism).is_lower_bound else None,
        "budget": "EXCEEDED" if exceeds_budget(terms, uploads, result.epsilon) else "kept",
    }


def paper_rows(
    epsilon: float, delta: float, size: int, batch: int, uploads: int, iterations: int
) -> list[dict[str, Any]]:
    """Return the epsilon of the paper's uploads by its formula, by tight composition, and as a leakage lower bound."""
    from fedlane.privacy.paper import composed_gaussian, formula_6, leakage_lower_bound, paper_noise

    batch = min(batch, size)
    noise, rate = float(paper_noise(epsilon, delta, size, batch, iterations)), batch / size
    rows: list[dict[str, Any]] = [
        {"figure": "paper formula (6)", "uploads": uploads, "epsilon": float(formula_6(epsilon, delta, uploads))},
        {
            "figure": "tight, if every round were Gaussian and exactly (epsilon, delta)-DP",
            "uploads": uploads,
            "epsilon": composed_gaussian(epsilon, delta, uploads),
        },
        {
            "figure": "lower bound on what the paper's noise leaks",
            "uploads": 1,
            "epsilon": leakage_lower_bound(noise, rate, iterations, delta),
        },
        {
            "figure": "lower bound on what the paper's noise leaks",
            "uploads": uploads,
            "epsilon": leakage_lower_bound(noise, rate, iterations, delta, uploads),
        },
    ]
    return [{**row, "delta": delta} for row in rows]


def rigorous_row(noise: float, delta: float, size: int, batch: int, uploads: int, iterations: int) -> dict[str, Any]:
    """Return the epsilon that one client's uploads spend."""
    from fedlane.privacy import account

    rate, steps = min(1.0, batch / size), iterations * uploads
    return {
        "epsilon": account(noise, rate, steps, delta),
        "delta": delta,
        "noise_multiplier": noise,
        "sample_rate": rate,
        "steps": steps,
    }


def json_safe(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with None for infinite values, which JSON does not have."""
    return {key: None if isinstance(value, float) and math.isinf(value) else value for key, value in row.items()}


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print the rows as a table; values that are the same in all of them are printed above it."""
    from fedlane.privacy import mechanism_of

    if not rows:
        screen.print("No data set has an account yet, so no privacy has been spent.")
        return
    shown = {key: value for key, value in rows[0].items() if any(row[key] is not None for row in rows)}
    if len(rows) > 1:
        same = {key for key in shown if all(row[key] == rows[0][key] for row in rows)} - ALWAYS_COLUMNS
        if same:
            screen.print(" · ".join(f"{_label(key)} {_text(rows[0][key])}" for key in shown if key in same))
        shown = {key: value for key, value in shown.items() if key not in same}
    table = Table(show_header=len(rows) > 1)
    if len(rows) == 1:
        for key, value in shown.items():
            table.add_row(_label(key), _text(value))
    else:
        for key, value in shown.items():
            table.add_column(_label(key), justify="left" if isinstance(value, str) else "right")
        for row in rows:
            table.add_row(*(_text(row[key]) for key in shown))
    screen.print(table)
    leaking = [row for row in rows if "mechanism" in row and mechanism_of(row["mechanism"]).is_lower_bound]
    if any(row["epsilon"] > row["epsilon_paper"] for row in leaking):
        messages.print(
            "Warning: the mechanism 'paper' leaks at least the epsilon shown, which is more than the paper's formula.",
            style="yellow",
            highlight=False,
        )
    exceeded = sum(row.get("budget") == "EXCEEDED" for row in rows)
    if exceeded:
        verdict = f"FAILED: {exceeded} of {len(rows)} accounts exceed the agreed budget."
        screen.print(verdict, style="red", highlight=False)


def _label(key: str) -> str:
    return {"epsilon_paper": "by formula (6)", "of": "uploads allowed"}.get(key, key.replace("_", " "))


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else escape(printable(str(value)))
