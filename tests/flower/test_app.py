"""The example app in real processes: clients train privately, and ledgers and server agree."""

from pathlib import Path

import pytest

from fedlane.privacy.accountant import epsilon_curve
from fedlane.privacy.ledger import read_accounts
from fedlane.simulation.results import Run
from support.superlink import Federation

APP = Path(__file__).parents[2] / "examples" / "flower-app"
ROUNDS, CLIENTS = 2, 2


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_the_example_app_trains_and_counts_uploads(tmp_path):
    ledgers = [tmp_path / f"{number}.ledger" for number in range(CLIENTS)]
    with Federation(tmp_path / "federation") as federation:
        for number, ledger in enumerate(ledgers):
            switch = f"mkdir -p {tmp_path}/switched/{number}-{{lane}}"
            config = {"fedlane-ledger": str(ledger), "fedlane-switch": switch}
            federation.start_node(number, preload=["fedlane.flower.node.preload"] * number, **config)
        config = {"rounds": ROUNDS, "clients": CLIENTS, "hidden": 16, "lanes": 2, "deadline-s": 200.0}
        run = federation.run(APP, {**config, "state-dir": str(tmp_path / "state")})
        run.wait(500)
    saved = Run.load(tmp_path / "state")
    rounds, clients = saved.rounds.to_pydict(), saved.clients.to_pydict()
    assert rounds["punctual"] == [CLIENTS] * ROUNDS
    used = {f"{row['client']}-{row['channel']}" for row in saved.assignments.to_pylist()}
    assert {path.name for path in (tmp_path / "switched").iterdir()} == used
    assert all(0 < accuracy < 1 for accuracy in rounds["accuracy"])
    for ledger, number in zip(ledgers, range(CLIENTS), strict=True):
        name, accounts = read_accounts(ledger)
        assert (name, accounts["data"].uploads) == (f"client-{number}", ROUNDS)
    assert clients["uploads"][:CLIENTS] == [ROUNDS] * CLIENTS
    spent = epsilon_curve(accounts["data"].terms, 100)[ROUNDS]
    assert clients["epsilon"][:CLIENTS] == pytest.approx([spent] * CLIENTS)
