"""The example app in real processes: clients train privately, and ledgers and server agree."""

from pathlib import Path

import pytest

from fedlane.privacy.accountant import epsilon_curve
from fedlane.privacy.ledger import read_accounts
from fedlane.simulation.results import Run

pytestmark = [pytest.mark.xdist_group("flower"), pytest.mark.slow]
APP = Path(__file__).parents[3] / "examples" / "flower-app"
ROUNDS, LANES, CLIENTS = 2, 2, 3


def test_the_example_app_trains_and_counts_uploads(tmp_path, federation):
    config = {"rounds": ROUNDS, "clients": CLIENTS, "hidden": 16, "lanes": LANES, "deadline-s": 200.0}
    run = federation.run(APP, {**config, "state-dir": str(tmp_path / "state")})
    run.wait(500)
    saved = Run.load(tmp_path / "state")
    rounds, assignments = saved.rounds.to_pydict(), saved.assignments.to_pylist()
    assert rounds["punctual"] == [LANES] * ROUNDS, run.log()
    assert all(0 < accuracy < 1 for accuracy in rounds["accuracy"])
    used = {f"{row['client']}-{row['channel']}" for row in assignments}
    assert {path.name for path in (federation.folder / "switched").iterdir()} == used
    for client in saved.clients.to_pylist()[:CLIENTS]:
        number = client["client"]
        name, accounts = read_accounts(federation.ledger(number))
        uploads = accounts["data"].uploads
        assert name == f"client-{number}"
        assert uploads == client["uploads"] == sum(row["client"] == number for row in assignments)
        assert client["epsilon"] == pytest.approx(epsilon_curve(accounts["data"].terms, 100)[uploads])
