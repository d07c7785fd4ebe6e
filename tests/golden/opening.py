"""Every use of FedLane's internal modules in these tests, so that only this file follows when a module moves.

A class or module may be renamed here. What the functions do, and the files they read and write, must stay the same.
"""

import contextlib
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from fedlane import Simulation

TERMS = {
    "mechanism": "rigorous",
    "sample_rate": 0.01,
    "local_iterations": 5,
    "step_noise": 0.7,
    "upload_noise": 0.0,
    "epsilon": 8.0,
    "delta": 1e-5,
    "max_uploads": 6,
    "histogram_noise": 10.0,
}
"""Terms of the stored client ledger."""
INTERRUPTED = 130
"""Exit status of `fedlane run` after Ctrl-C."""


def command(*arguments: object) -> int:
    """Run `fedlane ARGUMENTS` in this process and return its exit status."""
    from fedlane.cli import main

    with mock.patch.object(sys, "argv", ["fedlane", *map(str, arguments)]):
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def run_command(case: Any, folder: Path, *options: object) -> int:
    """`fedlane run` with a case's scenario, policy and seeds, without a path in the command that the folder records."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    (folder.parent / "golden.toml").write_text(case.scenario.to_toml())
    learning = "--learning" if case.learning else "--no-learning"
    with contextlib.chdir(folder.parent):
        try:
            seeds = ("--policy", case.policy, "--seeds", len(case.seeds), learning, "--quiet")
            return command("run", "golden.toml", *seeds, "--out", folder.name, *options)
        finally:
            Path("golden.toml").unlink()


def interrupted_run(case: Any, rounds: int, folder: Path) -> None:
    """Write the run folder that `fedlane run` leaves behind when Ctrl-C is pressed in a round."""
    step = Simulation.step

    def step_with_ctrl_c(simulation: Simulation) -> Any:
        if simulation.round == rounds - 1:
            signal.raise_signal(signal.SIGINT)
        return step(simulation)

    with mock.patch.object(Simulation, "step", step_with_ctrl_c):
        status = run_command(case, folder)
    assert status == INTERRUPTED, status


def run_accounts(folder: Path) -> Any:
    """The verified ledger of a run folder."""
    from fedlane.privacy.run_ledger import read_run_accounts

    return read_run_accounts(folder / "ledger.jsonl")


def create_client_ledger(path: Path) -> None:
    """A client's ledger with two data sets, a label histogram and four uploads, three of them seen by the server."""
    from fedlane.privacy.ledger import ClientLedger, Terms

    with ClientLedger.create(path, "client 7") as ledger:
        ledger.open_account("images", Terms(**TERMS))
        ledger.open_account("letters", Terms(**TERMS))
        ledger.histogram("images", lambda: [10.25, 3.5, -1.0])
        for round, server_count in ((0, 0), (3, 1), (4, 2)):
            ledger.reserve("images", round, server_count=server_count)
        ledger.reserve("letters", 5, server_count=0)


def open_client_ledger(path: Path) -> Any:
    """The ledger, locked; use it as a context."""
    from fedlane.privacy.ledger import ClientLedger

    return ClientLedger(path)


def ledger_terms() -> Any:
    """The terms under which the accounts of the stored client ledger were opened."""
    from fedlane.privacy.ledger import Terms

    return Terms(**TERMS)


def reproduction(folder: Path) -> tuple[Any, Any]:
    """The store of `fedlane reproduce --quick --out FOLDER`, and the cell of it that is stored here with its curves."""
    from fedlane.experiments.store import Experiment, ResultStore

    return ResultStore(folder / "quick", rounds=100), Experiment("fashion-mnist", "lane")
