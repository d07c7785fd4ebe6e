"""Whole federations in this process, on a grid whose nodes are functions: many cases without a network."""

import json
import threading

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg
from flwr.supercore.task_identity import TaskIdentity
from typer.testing import CliRunner

from fedlane.cli import app as command
from fedlane.flower import LaneStrategy
from fedlane.flower.protocol import KEY, Introduction, Order, Report
from fedlane.flower.server.state_files import StateStore
from fedlane.scenario import Scenario
from fedlane.simulation import simulate
from fedlane.simulation.results import Run
from fedlane.validate import InputError

ARRAYS = ArrayRecord({"w": Array(np.zeros(5, np.float32))})


@pytest.fixture(autouse=True)
def _identity(monkeypatch):
    """Give this process the identity that Flower writes into messages."""
    for name in ("run_id", "task_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


class Node:
    """An honest client: adds 1 to every weight and counts its uploads."""

    def __init__(self, name, limit=50, epsilon=10.0):
        self.name, self.limit, self.epsilon = name, limit, epsilon
        self.orders = []

    def __call__(self, message):
        if message.metadata.message_type == MessageType.QUERY:
            introduction = Introduction(
                self.name, 100.0, (60.0, 40.0), self.epsilon, 1e-5, self.limit, len(self.orders), 8, 2, 0.1
            )
            return RecordDict({KEY: introduction.record()})
        if message.metadata.message_type == MessageType.EVALUATE:
            return RecordDict({"metrics": MetricRecord({"num-examples": 10, "accuracy": 0.5})})
        order = Order.read(message.content)
        assert order.client == self.name
        assert order.server_count <= len(self.orders)
        self.orders.append(order)
        uploads = len(self.orders)
        report = Report(
            self.name, order.round, order.lane, "trained", "", 0.01, 0.0, uploads, self.limit, 0.1 * uploads, 1e-5
        )
        weights = message.content["arrays"]["w"].numpy() + np.float32(1)
        return RecordDict(
            {
                KEY: report.record(),
                "arrays": ArrayRecord({"w": Array(weights)}),
                "metrics": MetricRecord({"num-examples": 10}),
            }
        )


class LocalGrid:
    """A grid in this process; a node that returns None does not answer."""

    def __init__(self, *nodes):
        self.nodes = dict(enumerate(nodes, 100))
        self.replies, self.lock, self.count = {}, threading.Lock(), 0

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = str(self.count)
            answer = self.nodes[message.metadata.dst_node_id](message)
            if answer is not None:
                with self.lock:
                    self.replies[str(self.count)] = Message(answer, reply_to=message)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        with self.lock:
            return [self.replies.pop(key) for key in list(message_ids) if key in self.replies]


def strategy(folder, inner=None, **settings):
    values = {"lanes": 2, "deadline_s": 60.0, "state_dir": folder, **settings}
    return LaneStrategy(inner, **values)


def test_the_run_folder_is_that_of_a_simulation(tmp_path):
    """compare, report and Run.load read the folder of a federation like any other."""
    grid = LocalGrid(Node("b"), Node("a"), Node("c"))
    result = strategy(tmp_path / "real", min_clients=3, floor_s=4.2).start(
        grid,
        ARRAYS,
        num_rounds=6,
        evaluate_fn=lambda round, arrays: MetricRecord({"accuracy": round / 10, "loss": 1.0}),
    )
    np.testing.assert_array_equal(result.arrays["w"].numpy(), np.full(5, 6, np.float32))
    run = Run.load(tmp_path / "real")
    assert run.summary["flower"]["clients"] == ["a", "b", "c"]  # numbered by name, not by who answered first
    assert run.summary["flower"]["floor_s"] == 4.2
    assert run.rounds["accuracy"].to_pylist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert run.clients["x_m"].null_count == 3
    assert run.clients["uploads"].to_pylist() == [len(grid.nodes[at].orders) for at in (101, 100, 102)]
    assert run.client_rounds["epsilon"].to_numpy().reshape(6, 3)[-1].tolist() == run.clients["epsilon"].to_pylist()
    assert run.scenario.privacy.mechanism == "rigorous"
    assert run.scenario.network.payload_bits == 160.0
    assert Scenario.load(tmp_path / "real" / "scenario.toml") == run.scenario
    simulate("quickstart", rounds=5, learning=False).save(tmp_path / "simulated")
    for arguments in (["report", tmp_path / "real"], ["report", tmp_path / "real", tmp_path / "simulated"]):
        out = [str(word) for word in [*arguments, "--out", tmp_path / "report.html"]]
        printed = CliRunner().invoke(command, out)
        assert printed.exit_code == 0, printed.output
    words = ["compare", "quickstart", "--no-learning", "--rounds", "5", "--policy", "lane", "--json"]
    printed = CliRunner().invoke(command, [*words, "--with", str(tmp_path / "real"), "--out", str(tmp_path / "both")])
    assert printed.exit_code == 0, printed.output
    compared = json.loads(printed.stdout)["runs"][1]
    assert (compared["policy"], compared["rounds"]) == ("lane (real)", 6)
    assert json.loads((tmp_path / "real" / "status.json").read_text())["state"] == "finished"


def test_clients_join_and_leave(tmp_path, caplog):
    """A new client is tried next, one that left is recognised, and one that takes another's name is refused."""
    grid = LocalGrid(Node("a"), Node("b"))
    lanes = []

    def before(round, chosen):
        lanes.append(dict(chosen))
        if round == 3:
            grid.nodes[200], grid.nodes[300] = Node("new"), Node("a")
        if round == 8:
            del grid.nodes[100]
        if round == 12:
            grid.nodes[100] = first

    first = grid.nodes[100]
    with caplog.at_level("INFO", "fedlane.flower"):
        strategy(tmp_path, lanes=1, min_clients=2, before_round=before).start(grid, ARRAYS, num_rounds=20)
    tried = next(round for round, chosen in enumerate(lanes) if "new" in chosen)
    assert 4 <= tried <= 6
    assert not any("a" in chosen for chosen in lanes[9:13])
    assert any("a" in chosen for chosen in lanes[13:])
    assert grid.nodes[300].orders == []
    assert "node 300 is refused: the name 'a' belongs to node 100" in caplog.text
    run = Run.load(tmp_path)
    assert run.summary["flower"]["clients"] == ["a", "b", "new"]
    assert run.summary["flower"]["joined_round"][:2] == [0, 0]
    assert run.clients["uploads"].to_pylist()[0] == len(first.orders)


def test_a_base_station_that_cannot_switch_loses_only_the_round(tmp_path, caplog):
    def before(round, chosen):
        if round == 1:
            raise OSError("no such lane")

    grid = LocalGrid(Node("a"), Node("b"))
    result = strategy(tmp_path, min_clients=2, before_round=before).start(grid, ARRAYS, num_rounds=3)
    assert "round 1: before_round failed" in caplog.text
    run = Run.load(tmp_path)
    assert run.rounds["punctual"].to_pylist() == [2, 0, 2]
    assert run.rounds["delay_s"].to_pylist()[1] == 60.0
    assert [row["punctual"] for row in run.assignments.to_pylist() if row["round"] == 1] == [False, False]
    assert StateStore(tmp_path).charged() == {"a": 2, "b": 2}  # nothing was sent, so nothing is charged
    assert result.arrays["w"].numpy()[0] == 2


def test_a_late_client_is_not_asked_until_its_order_has_expired(tmp_path):
    class Slow(Node):
        def __call__(self, message):
            answer = super().__call__(message)
            return None if self.orders and len(self.orders) == 1 else answer

    slow, quick = Slow("slow"), Node("quick")
    strategy(tmp_path, min_clients=2, deadline_s=2.0).start(LocalGrid(slow, quick), ARRAYS, num_rounds=4)
    assert [order.round for order in quick.orders] == [0, 1, 2, 3]
    assert [order.round for order in slow.orders] == [0]
    rows = [row for row in Run.load(tmp_path).client_rounds.to_pylist() if row["client"] == 0]
    assert [row["available"] for row in rows] == [True, False, False, False]
    assert rows[-1]["epsilon"] == 10.0  # one order unanswered, so all that it agreed to


def test_an_order_that_was_lost_is_charged_but_not_held_against_the_client(tmp_path):
    """The order is not in the client's ledger, which would take a larger count as a sign that it was rolled back."""

    class Lossy(Node):
        lost = False

        def __call__(self, message):
            if message.metadata.message_type == MessageType.TRAIN and not self.lost:
                self.lost = True
                return None
            return super().__call__(message)

    node = Lossy("a")
    strategy(tmp_path, deadline_s=2.0).start(LocalGrid(node), ARRAYS, num_rounds=3)
    assert [(order.round, order.server_count) for order in node.orders] == [(1, 0), (2, 1)]
    run = Run.load(tmp_path)
    assert run.clients["uploads"].to_pylist() == [3]
    assert run.client_rounds["epsilon"].to_pylist() == pytest.approx([10.0, 0.1, 0.2])


def test_orders_of_a_round_cut_off_by_a_crash_are_counted(tmp_path):
    grid = LocalGrid(Node("a"))
    strategy(tmp_path).start(grid, ARRAYS, num_rounds=2)
    StateStore(tmp_path).charge(2, {"a": 0})  # sent before the server was killed
    strategy(tmp_path).start(grid, ARRAYS, num_rounds=3)
    assert Run.load(tmp_path).clients["uploads"].to_pylist() == [4]


def test_a_run_ends_when_all_budgets_are_spent(tmp_path, caplog):
    nodes = Node("a", limit=2), Node("b", limit=3)
    result = strategy(tmp_path, min_clients=2).start(LocalGrid(*nodes), ARRAYS, num_rounds=9)
    assert [len(node.orders) for node in nodes] == [2, 3]
    assert result.arrays["w"].numpy()[0] == 3
    assert "round 3: every client has spent its budget or refused" in caplog.text
    assert json.loads((tmp_path / "status.json").read_text()) == {"round": 3, "rounds": 9, "state": "interrupted"}
    again = strategy(tmp_path).start(LocalGrid(*nodes), ARRAYS, num_rounds=9)  # still no budget
    assert [len(node.orders) for node in nodes] == [2, 3]
    assert again.arrays["w"].numpy()[0] == 3


def test_no_client_has_a_budget_from_the_start(tmp_path):
    node = Node("a", limit=1)
    node.orders.append(None)
    result = strategy(tmp_path).start(LocalGrid(node), ARRAYS, num_rounds=3)
    assert len(node.orders) == 1
    assert result.arrays["w"].numpy()[0] == 0


def test_a_resumed_federation_is_as_if_it_had_never_stopped(tmp_path):
    """Including the moments of FedAdam and the norms of the guard."""
    ends = []
    for folder, stops in (("whole", [4]), ("halves", [2, 4])):
        grid = LocalGrid(Node("a"), Node("b"))
        for rounds in stops:
            last = strategy(tmp_path / folder, FedAdam(fraction_evaluate=0.0, beta_1=0.9, beta_2=0.99), min_clients=2)
            result = last.start(grid, ARRAYS, num_rounds=rounds)
        ends.append((result.arrays["w"].numpy().tolist(), last.state.guard.norms))
        assert last.state.guard.seen == 8
    assert ends[0] == ends[1]


def test_resuming_needs_the_same_federation(tmp_path):
    grid = LocalGrid(Node("a"), Node("b"))
    strategy(tmp_path).start(grid, ARRAYS, num_rounds=2)
    for wrong, reason in (({"lanes": 3}, "lanes 2, not 3"), ({"policy": "random"}, "policy 'lane', not 'random'")):
        with pytest.raises(InputError, match=reason):
            strategy(tmp_path, **wrong).start(grid, ARRAYS, num_rounds=4)
    with pytest.raises(InputError, match="holds a model that differs from initial_arrays"):
        strategy(tmp_path).start(grid, ArrayRecord({"w": Array(np.zeros(6, np.float32))}), num_rounds=4)
    with pytest.raises(InputError, match="at least the 2 rounds played"):
        strategy(tmp_path).start(grid, ARRAYS, num_rounds=1)
    assert strategy(tmp_path).start(grid, ARRAYS, num_rounds=4).arrays["w"].numpy()[0] == 4
    assert len(Run.load(tmp_path).rounds) == 4


def test_the_wrapped_strategy_evaluates_by_nodes(tmp_path):
    grid = LocalGrid(Node("a"), Node("b"))
    result = strategy(tmp_path, FedAvg(), min_clients=2, evaluate_every=2).start(grid, ARRAYS, num_rounds=5)
    assert sorted(result.evaluate_metrics_clientapp) == [2, 4, 5]
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == 0.5
    assert Run.load(tmp_path).rounds["accuracy"].to_pylist() == [None, 0.5, None, 0.5, 0.5]


def test_one_node_cannot_harm_the_others_evaluation(tmp_path):
    class Liar(Node):
        def __call__(self, message):
            if message.metadata.message_type == MessageType.EVALUATE:
                return RecordDict({"metrics": MetricRecord(self.metrics)})
            return super().__call__(message)

    for number, metrics in enumerate(
        (
            {"num-examples": float("nan"), "accuracy": 9.0},
            {"num-examples": -5, "accuracy": 9.0},
            {"num-examples": 10, "accuracy": 0.5, "extra": [1.0]},
        )
    ):
        liar = Liar("liar")
        liar.metrics = metrics
        result = strategy(tmp_path / str(number), FedAvg(), min_clients=2).start(LocalGrid(liar, Node("b")), ARRAYS, 1)
        assert dict(result.evaluate_metrics_clientapp[1]) == {"accuracy": 0.5}


def test_an_evaluation_that_fails_does_not_cost_the_round(tmp_path):
    """The uploads have been charged, so the model keeps them."""

    def evaluate(round, arrays):
        if round == 1:
            raise RuntimeError("out of memory")
        return None

    node = Node("a")
    with pytest.raises(RuntimeError, match="out of memory"):
        strategy(tmp_path).start(LocalGrid(node), ARRAYS, num_rounds=2, evaluate_fn=evaluate)
    result = strategy(tmp_path).start(LocalGrid(node), ARRAYS, num_rounds=2, evaluate_fn=evaluate)
    assert [order.round for order in node.orders] == [0, 1]
    assert result.arrays["w"].numpy()[0] == 2


def test_a_strategy_that_needs_two_nodes_evaluates_nothing_with_one(tmp_path):
    result = strategy(tmp_path / "one", FedAvg()).start(LocalGrid(Node("a")), ARRAYS, num_rounds=1)  # FedAvg needs two
    assert result.evaluate_metrics_clientapp == {}


def test_a_node_s_text_stays_within_its_line_of_the_log(tmp_path, caplog):
    class Forger(Node):
        def __call__(self, message):
            answer = super().__call__(message)
            if self.orders:
                answer[KEY]["status"], answer[KEY]["reason"] = "failed", "oh\nround 9, node 1: all is well" + "!" * 999
            return answer

    strategy(tmp_path, min_clients=2).start(LocalGrid(Forger("forger"), Node("b")), ARRAYS, num_rounds=1)
    (line,) = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert "client forger, lane" in line
    assert "failed: oh?round 9" in line
    assert len(line) < 700


def test_without_clients_the_wait_ends(tmp_path, caplog):
    with pytest.raises(
        InputError, match=r"within 2 s: 1 nodes were connected and 1 had introduced themselves \(min_clients is 3\)"
    ):
        strategy(tmp_path, min_clients=3).start(LocalGrid(Node("a")), ARRAYS, num_rounds=1, timeout=2.0)
    with pytest.raises(InputError, match="1 nodes were connected and 0 had introduced"):
        strategy(tmp_path).start(LocalGrid(lambda message: RecordDict({})), ARRAYS, num_rounds=1, timeout=2.0)
    assert "node 100 did not introduce itself: the message carries no Introduction" in caplog.text
    with pytest.raises(InputError, match="must be started"):
        strategy(tmp_path).configure_train(1, ARRAYS, None, None)
