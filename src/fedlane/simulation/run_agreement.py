"""Whether a run's ledger agrees with the rest of its folder: with the scenario's mechanism, and with the tables.

A ledger's digests detect damage, but not forgery, because anyone who edits a ledger can recompute them. Its terms
follow from the scenario and the seeds, so they are compared with the terms of a run with that scenario and those seeds.
A folder in which all files were changed consistently describes another run; this cannot be detected.
"""

from pathlib import Path

import numpy as np

from fedlane.learning.own_data import runs_user_code
from fedlane.parquet_tables import column_indices, read_table
from fedlane.privacy import Terms, mechanism_of
from fedlane.privacy.accountant import exceeds_budget
from fedlane.privacy.run_ledger import NAME as LEDGER
from fedlane.privacy.run_ledger import RunAccounts, read_run_accounts
from fedlane.records import IntArray
from fedlane.scenario import Scenario
from fedlane.simulation.setup import uncalibrated_mechanism
from fedlane.validate import InputError

SAME_RATE = 1e-9
"""Relative difference of rates and noises that rounding explains."""
TIGHT_BUDGET = 0.99
"""Share of the agreed epsilon that a calibrated noise uses at least, over all uploads that the budget covers."""


def read_agreeing_accounts(folder: Path, scenario: Scenario) -> RunAccounts:
    """Return the accounts of a run folder's ledger, after comparing them with the other files.

    The noise of "rigorous" is not calibrated again. It is right if all uploads of the budget together spend nearly the
    agreed epsilon, and not more.

    Args:
        folder: The run folder.
        scenario: Its scenario.

    Raises:
        InputError: The ledger cannot be read, or does not agree with the scenario or with the table of clients.
    """
    accounts = read_run_accounts(folder / LEDGER)
    if accounts.kind.shape[1] != scenario.network.clients:
        raise InputError(f"ledger of {folder} does not match its scenario: the number of clients differs")
    if accounts.dataset != scenario.data.dataset:
        raise InputError(f"ledger of {folder} does not match its scenario: the data set differs")
    _check_terms(folder, scenario, accounts)
    _check_uploads(folder, accounts.uploads)
    return accounts


def _check_terms(folder: Path, scenario: Scenario, accounts: RunAccounts) -> None:
    """Raise an `InputError` unless all terms are those of the scenario's mechanism."""
    spec = uncalibrated_mechanism(scenario, accounts.seeds)
    rates_unknown = runs_user_code(scenario.data.dataset)  # they follow from the number of records
    calibrated: set[Terms] = set()
    for (replica, client), kind in np.ndenumerate(accounts.kind):
        terms, expected = accounts.terms[kind], Terms.of(spec, replica, client)
        same = _agreed(terms) == _agreed(expected)
        same &= rates_unknown or bool(np.allclose(_amounts(terms), _amounts(expected), rtol=SAME_RATE, atol=0.0))
        if not same:
            raise InputError(f"ledger of {folder} does not match its scenario: the terms of client {client} differ")
        if mechanism_of(terms.mechanism).is_calibrated and terms not in calibrated:
            _check_noise(folder, client, terms)
            calibrated.add(terms)


def _agreed(terms: Terms) -> tuple[object, ...]:
    return terms.mechanism, terms.epsilon, terms.delta, terms.max_uploads, terms.local_iterations


def _amounts(terms: Terms) -> tuple[float, ...]:
    """Return the rate and the noises that are not calibrated."""
    calibrated = mechanism_of(terms.mechanism).is_calibrated
    step_noise = 0.0 if calibrated else terms.step_noise
    return terms.sample_rate, step_noise, terms.upload_noise, terms.histogram_noise


def _check_noise(folder: Path, client: int, terms: Terms) -> None:
    """Raise an `InputError` unless the noise is the one that the budget needs."""
    epsilon = mechanism_of(terms.mechanism).epsilon_after(terms, terms.max_uploads)
    if epsilon < TIGHT_BUDGET * terms.epsilon or exceeds_budget(terms, terms.max_uploads, epsilon):
        raise InputError(
            f"ledger of {folder} does not match its scenario: with the noise of client {client}, "
            f"{terms.max_uploads} uploads spend epsilon {epsilon:.4g} instead of {terms.epsilon:g}"
        )


def _check_uploads(folder: Path, uploads: IntArray) -> None:
    """Raise an `InputError` if the ledger has fewer uploads than the table of clients; a run may be ahead of it."""
    path = folder / "clients.parquet"
    if not path.exists():
        return
    table = read_table(path, ["replica", "client", "uploads"])
    place = column_indices(table, "replica"), column_indices(table, "client")
    if any(index.size and index.max() >= size for index, size in zip(place, uploads.shape, strict=True)):
        raise InputError(f"ledger of {folder} does not match clients.parquet: the number of clients differs")
    if np.any(uploads[place] < column_indices(table, "uploads")):
        raise InputError(f"ledger of {folder} does not match clients.parquet: it has fewer uploads")
