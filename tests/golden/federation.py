"""A Flower federation in this process: a client joins late, one is late, one is absent, and the server crashes.

It uses `LaneStrategy` as an operator does, on a grid of invented clients whose delays are given, in virtual time.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord
from flwr.serverapp.strategy import FedAdam
from flwr.supercore.task_identity import TaskIdentity
from records import part, run_parts
from virtual_time import Crash, VirtualTime

from fedlane import Run
from fedlane.flower import LaneStrategy, ScheduleSettings
from support.local_grid import LocalGrid, Node

ROUNDS, DEADLINE_S = 14, 6.01
CRASHES, CRASH_AFTER_S = 8, 0.8
"""Round in which the server crashes, and seconds from sending its orders until then: none has been answered."""
HELLO_S = 0.13
"""Time in which a node introduces itself; a round takes longer, so that a new client can be chosen in the next one."""
MODEL = {"w": np.arange(6, dtype=np.float32), "n": np.array([3], np.int64)}
"""The model before the first round."""
LATE, LOST = ("d", 1), ("b", 3)
"""Client and number of its order whose update comes after the deadline, and of one whose update never comes."""
POLICIES = ("lane", "round-robin")
"""The choices of the second are the same on every machine."""
JOINS, LEAVES, COMES_BACK = 3, 5, 9
"""Rounds before which client e joins, client d leaves (or later, if it has an order) and client d comes back."""


class Client(Node):
    """A client with a budget of 7 uploads, whose delay follows from its number, the round and the lane."""

    def __init__(self, number: int) -> None:
        super().__init__("abcde"[number], limit=7, epsilon=8.0, size=50.0 + 10 * number)
        self.number = number

    def train(self, weights: np.ndarray) -> np.ndarray:
        return weights + weights.dtype.type(1 + self.number)

    def delay_s(self, message: Message) -> float | None:
        """Seconds until the reply to a message is there; None if it is lost."""
        if message.metadata.message_type != MessageType.TRAIN:
            return HELLO_S
        order, which = self.orders[-1], (self.name, len(self.orders))
        if which == LOST:
            return None
        late = DEADLINE_S if which == LATE else 0.0
        return 0.61 + 0.5 * order.lane + 0.3 * self.number + 0.07 * (order.round % 3) + late


class TimedGrid(LocalGrid):
    """A grid on which a reply arrives when its client's delay is over."""

    clock: VirtualTime

    def push_messages(self, messages: list[Message]) -> list[str]:
        ids = super().push_messages(messages)
        for message, key in zip(messages, ids, strict=True):
            delay_s = self.nodes[message.metadata.dst_node_id].delay_s(message)
            if key in self.replies and delay_s is not None:
                self.due[key] = self.clock.now_s + delay_s
        return ids

    def pull_messages(self, message_ids: list[str]) -> list[Message]:
        arrived = [key for key in message_ids if self.due.get(key, np.inf) <= self.clock.now_s]
        return super().pull_messages(arrived)


class Federation:
    """The clients, which outlive the server, and the server's folder."""

    def __init__(self, folder: Path, policy: str) -> None:
        self.policy = policy
        self.folder, self.clients = folder, [Client(number) for number in range(5)]
        self.grid = TimedGrid(*self.clients[:4])
        self.grid.due, self.crashes = {}, False

    def serve(self, rounds: int = ROUNDS) -> dict[str, np.ndarray]:
        """Run a server until it has played all rounds; return its model."""
        server = LaneStrategy(
            FedAdam(eta=0.5, fraction_evaluate=0.0),
            state_dir=self.folder,
            schedule=ScheduleSettings(lanes=2, deadline_s=DEADLINE_S, policy=self.policy, seed=3, min_clients=4),
            federation="golden",
            before_round=self._come_and_go,
        )
        initial = ArrayRecord({name: Array(array) for name, array in MODEL.items()})
        identity = mock.patch.multiple(TaskIdentity, _run_id=1, _task_id=1, _node_id=1)  # which messages carry
        with identity, VirtualTime("fedlane.flower") as self.grid.clock:
            self.grid.due.clear()  # a server that starts again does not hear the replies to its predecessor
            result = server.start(self.grid, initial, num_rounds=rounds, evaluate_fn=_evaluate)
        return {name: array.numpy() for name, array in result.arrays.items()}

    def crash(self) -> None:
        """Run a server until it crashes, in the middle of a round."""
        self.crashes = True
        try:
            self.serve()
        except Crash:
            self.crashes = False
            return
        raise AssertionError("the server did not crash")

    def record(self) -> dict[str, Any]:
        """The parts of the run folder, of the orders that clients received, and of the server's journal.

        ``present`` is always true today, although client d was away: a known fault, and a part of its own for that.
        """
        run = Run.load(self.folder)
        orders = [(order.round, client.number, order.lane) for client in self.clients for order in client.orders]
        told = [(order.server_count, order.iterations) for client in self.clients for order in client.orders]
        roster = {key: run.summary["flower"][key] for key in ("clients", "joined_round", "dropped")}
        metrics = [run.rounds[name].to_numpy() for name in ("accuracy", "loss")]
        return {
            **run_parts(run.tables, decimals=6),
            "orders": part(np.array(orders)),
            "counts": part(np.array(told)),
            "roster": part(np.frombuffer(json.dumps(roster).encode(), np.uint8)),
            "journal": part(np.frombuffer((self.folder / "orders.jsonl").read_bytes(), np.uint8)),
            "metrics": part(*metrics),
            "model": part(*(run.model[name] for name in sorted(run.model))),
        }

    def _come_and_go(self, round: int, chosen: Mapping[str, int]) -> None:
        """Called by the server before each round's orders are sent, so a change shows in the next round."""
        nodes = self.grid.nodes
        if round + 1 == JOINS:
            nodes[200] = self.clients[4]
        if LEAVES <= round + 1 < COMES_BACK and "d" not in chosen:
            nodes.pop(103, None)
        if round + 1 == COMES_BACK:
            nodes[103] = self.clients[3]
        if self.crashes and round == CRASHES:
            self.grid.clock.crash_at_s = self.grid.clock.now_s + CRASH_AFTER_S


def _evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
    weights = arrays["w"].numpy()
    return MetricRecord({"accuracy": float(weights[0]) / 100.0, "loss": float(np.square(weights).mean())})
