"""What the privacy commands show, as plain rows: one dict of named values each."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlane.validate import InputError

if TYPE_CHECKING:  # imported where they are used: `fedlane --help` answers at once
    from fedlane.privacy import Terms


def calibrated_row(
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


def scenario_rows(name: str, settings: list[str], seed: int) -> list[dict[str, Any]]:
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


def ledger_rows(path: Path) -> list[dict[str, Any]]:
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


def paper_rows(
    epsilon: float, delta: float, size: int, batch: int, uploads: int, iterations: int
) -> list[dict[str, Any]]:
    """What the paper's figures are worth, one below the other."""
    from fedlane.privacy.paper import composed_gaussian, formula_6, leakage_lower_bound, paper_noise

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
            "epsilon": leakage_lower_bound(noise, rate, iterations, delta),
        },
        {
            "figure": "what the paper's noise leaks, at least",
            "uploads": uploads,
            "epsilon": leakage_lower_bound(noise, rate, iterations, delta, uploads),
        },
    ]


def rigorous_row(noise: float, delta: float, size: int, batch: int, uploads: int, iterations: int) -> dict[str, Any]:
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
    return {key: None if isinstance(value, float) and math.isinf(value) else value for key, value in row.items()}
