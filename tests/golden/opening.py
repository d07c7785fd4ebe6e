"""Every import of FedLane's internal modules in these tests, so that only this file follows when a module moves.

A class or module may be renamed here. What the functions do, and the files they read and write, must stay the same.
"""

import contextlib
import hashlib
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from cases import arithmetic

from fedlane import make_policy

SETTINGS = {"federation": "golden", "lanes": 2, "deadline_s": 4.0, "policy": "lane"}
"""The settings of the stored Flower server."""
GUARD_MEMORY = frozenset({"norms", "updates_seen", "array_norms", "claims"})
"""Values of a server's checkpoint that the guard remembers."""
TERMS = ("rigorous", 0.01, 5, 0.7, 0.0, 8.0, 1e-5, 6, 10.0)
"""Terms of the stored client ledger: at most 6 uploads."""


@contextlib.contextmanager
def noise_of_the_time():
    """Draw simulated noise on a CPU as the stored results did: with PyTorch's generator, seeded for each row."""
    import torch

    from fedlane.learning import counter_rng

    def add_normals_(weights, key, counter, deviation):
        source, numbers = torch.Generator(), torch.empty(weights.shape[1])
        for row, seed, amount in zip(weights, counter_rng.bits(key, counter).tolist(), deviation.tolist(), strict=True):
            torch.randn(len(row), generator=source.manual_seed(seed), out=numbers)
            row.add_(numbers, alpha=amount)
        return weights

    with mock.patch.multiple(counter_rng, add_normals_=add_normals_, HAS_KERNELS=False):
        yield


def command(*arguments: object) -> int:
    """Run `fedlane ARGUMENTS` in this process and return its exit status."""
    from fedlane.cli import main

    with mock.patch.object(sys, "argv", ["fedlane", *map(str, arguments)]):
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def interrupt(simulation: Any, folder: Path) -> None:
    """Write the run folder that an interrupted `fedlane run` leaves behind."""
    from fedlane.simulation.results import RunFolder

    target = RunFolder.create(folder)
    target.write(simulation.result(), checkpoint=simulation.checkpoint(), interrupted=True)
    simulation.ledger.attach_file(target.path)


def run_accounts(folder: Path) -> Any:
    """The verified ledger of a run folder."""
    from fedlane.privacy.run_ledger import read_run_accounts

    return read_run_accounts(folder / "ledger.jsonl")


def create_client_ledger(path: Path) -> None:
    """A client's ledger with two data sets, a label histogram and four uploads, three of them seen by the server."""
    from fedlane.privacy.ledger import ClientLedger, Terms

    with ClientLedger.create(path, "client 7") as ledger:
        ledger.open_account("images", Terms(*TERMS))
        ledger.open_account("letters", Terms(*TERMS))
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

    return Terms(*TERMS)


def reproduction(folder: Path) -> tuple[Any, Any]:
    """The store of `fedlane reproduce --quick --out FOLDER`, and the cell of it that is stored here with its curves."""
    from fedlane.experiments.store import Experiment, ResultStore

    return ResultStore(folder / "quick", rounds=100), Experiment("fashion-mnist", "lane-2026")


@contextlib.contextmanager
def identity() -> Any:
    """Flower's messages carry the identity of the process that makes them."""
    from flwr.supercore.task_identity import TaskIdentity

    with mock.patch.multiple(TaskIdentity, _run_id=1, _task_id=1, _node_id=1):
        yield


class Server:
    """What a Flower server keeps in its state_dir, driven by invented clients with given delays."""

    def __init__(self, folder: Path, rounds: int) -> None:
        """Start in a new folder, or continue from the state that the folder holds."""
        from flwr.serverapp.strategy import FedAdam

        from fedlane.flower import GuardSettings
        from fedlane.flower.server.aggregation import to_arrays
        from fedlane.flower.server.scheduler import Scheduler
        from fedlane.flower.server.state import ServerState

        scheduler = Scheduler(make_policy("lane"), lanes=2, deadline_s=4.0, rounds=rounds, seed=3)
        self.memory = ServerState(folder, FedAdam(fraction_evaluate=0.0), GuardSettings(capacity=8), SETTINGS)
        self.memory.start(scheduler, to_arrays(initial_model()))

    @property
    def round(self) -> int:
        """Rounds played so far."""
        return int(self.memory.scheduler.round)

    @identity()
    def play(self) -> None:
        """Play one round as `LaneStrategy` does. A fifth client joins in round 3; some replies never come."""
        from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict

        from fedlane.flower.protocol import TRAINED, Introduction, Report
        from fedlane.flower.server.aggregation import to_arrays, to_model
        from fedlane.flower.server.scheduler import MeasuredDelay

        memory, round = self.memory, self.round
        scheduler, roster, model = memory.scheduler, memory.roster, to_model(memory.arrays)
        for number in range(len(roster.members), 4 if round < 3 else 5):
            counts = tuple(float((7 * number + 3 * label) % 11) for label in range(4))
            budget = (8.0, 1e-5, 6, 0)
            roster.admit(100 + number, Introduction(f"client-{number}", 50.0, counts, *budget, 8, 2, 0.3, 0.1), round)
        scheduler.set_quotas(roster.quotas(2, None))
        available = np.array([not member.spent for member in roster.members])
        lanes = {int(client): int(lane) for client, lane in enumerate(scheduler.select(available)) if lane >= 0}
        memory.store.charge(round, {roster.members[client].name: lane for client, lane in lanes.items()})
        memory.aggregation.content(round + 1, memory.arrays, ConfigRecord())
        measured, replies = {}, []
        for client, lane in lanes.items():
            member = roster.put(roster.members[client].ordered())
            measured[client] = MeasuredDelay(lane, None)
            if (round + client) % 5 == 4:
                memory.dropped[member.name] = memory.dropped.get(member.name, 0) + 1
                continue
            spent = member.uploads + 1, 6, 0.5 * (member.uploads + 1), 1e-5
            report = Report(member.name, round, lane, TRAINED, "", 0.25, 0.0, *spent)
            moved = {name: array + array.dtype.type(1 + client) for name, array in model.items()}
            content = {"arrays": to_arrays(moved), "metrics": MetricRecord({"num-examples": 10 + client})}
            asked = Message(RecordDict({}), dst_node_id=member.node_id, message_type=MessageType.TRAIN)
            asked.metadata.__dict__["_message_id"] = "1"
            reply = Message(RecordDict(content), reply_to=asked)
            assert memory.guard.judge([memory.guard.inspect(reply.content, report, model, 50.0)], model, 5) == [""]
            roster.put(member.heard(report))
            measured[client] = MeasuredDelay(lane, 1.0 + 0.5 * lane + 0.25 * client, 0.25)
            replies.append(reply)
        scheduler.learn(measured, available)
        scheduler.record_epsilon([member.epsilon for member in roster.members])
        made = memory.aggregation.aggregate(round + 1, replies, model)
        memory.arrays = memory.arrays if made.arrays is None else made.arrays
        memory.elapsed_s += 1.5
        memory.save()
        memory.write_run_folder(None, 0.25)


def initial_model() -> dict[str, np.ndarray]:
    """The model of the stored Flower server before its first round."""
    return {"w": np.arange(6, dtype=np.float32), "n": np.array([3], np.int64)}


def server_record(folder: Path) -> dict[str, Any]:
    """Digests of a server's checkpoint and journal, and the sums of its arrays.

    The guard's memory and the epsilon of clients that have not reported it are left out: they changed with issue 14.
    """
    from fedlane.flower.server.state_files import StateStore

    saved = StateStore(folder).load()
    assert saved is not None
    arrays = dict(saved.arrays)
    for name in ("trace.punctual", "present_rounds"):
        arrays.pop(f"scheduler.{name}", None)  # not stored when the digests were made
    arrays |= _with_invented_delays(arrays)
    del arrays["scheduler.epsilon"]
    values = {name: value for name, value in saved.values.items() if name not in GUARD_MEMORY}
    quota = (1.0 - make_policy("lane").quota_slack) * arrays["scheduler.quotas"]
    for name, constant in (("quota", quota), ("deadline_s", np.array([SETTINGS["deadline_s"]]))):
        arrays.setdefault(f"scheduler.state.{name}", constant)  # part of the policy's state at that time
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return {
        "state": {arithmetic(): digest.hexdigest()},
        "sums": {name: float(np.nansum(array)) for name, array in arrays.items() if array.dtype.kind in "fiub"},
        "orders": {arithmetic(): hashlib.sha256((folder / "orders.jsonl").read_bytes()).hexdigest()},
    }


def _with_invented_delays(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The trace as it was stored at that time: a client that did not answer was late by a millisecond."""
    total_s = float(SETTINGS["deadline_s"]) + 1e-3
    parts = {"download_s": total_s / 2, "compute_s": 0.0, "upload_s": total_s / 2}
    assigned = arrays["scheduler.trace.client"] >= 0
    return {
        name: np.where(assigned & np.isnan(arrays[name]), invented, arrays[name])
        for name, invented in ((f"scheduler.trace.{part}", value) for part, value in parts.items())
    }


def server_model(arrays: Any) -> dict[str, np.ndarray]:
    """The arrays of a Flower record by name."""
    return {name: array.numpy() for name, array in arrays.items()}
