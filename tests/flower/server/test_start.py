"""Whole federations in this process, on a grid whose nodes are functions: many cases without a network."""

import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg
from typer.testing import CliRunner

from fedlane.cli import app as command
from fedlane.flower.protocol import KEY, LOSSES, LossReport, Order, Report
from fedlane.flower.server.grid import exchange
from fedlane.flower.server.state_files import Saved, StateStore
from fedlane.scenario import Scenario
from fedlane.scheduling import Policy
from fedlane.simulation import simulate
from fedlane.simulation.results import Run
from fedlane.trackers.values import headline
from fedlane.validate import InputError
from support.local_grid import ARRAYS, LocalGrid, Node, strategy
from support.loss_policy import LargestLoss


def test_the_run_folder_is_that_of_a_simulation(tmp_path):
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
    assert run.settings is None
    (session,) = run.provenance["sessions"]
    assert (run.provenance["kind"], session["command"], session["device"]) == ("flower", None, None)
    assert session["versions"]["flwr"]
    assert json.loads((tmp_path / "real" / "status.json").read_text())["state"] == "finished"


@pytest.mark.slow
def test_report_and_compare_read_the_folder_of_a_federation_like_any_other(tmp_path):
    strategy(tmp_path / "real", min_clients=2).start(LocalGrid(Node("a"), Node("b")), ARRAYS, num_rounds=6)
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


class LargestFirst(Policy):
    """Serves the clients with the most records; its state remembers the sizes that every round showed it."""

    name = "largest-first"

    def init(self, problem):
        return {"seen": problem.sizes.copy()}

    def select(self, state, context, rng):
        rank = np.argsort(np.argsort(-np.where(context.available, context.problem.sizes, -1.0)))
        return np.where(context.available & (rank < context.problem.channels), rank, -1)

    def update(self, state, feedback):
        return {"seen": feedback.context.problem.sizes.copy()}


def test_a_policy_sees_the_sizes_that_clients_claim(tmp_path):
    """Also after a restart, whose first rounds are played before any client introduces itself again."""
    grid = LocalGrid(Node("a", size=50.0), Node("b", size=200.0), Node("c", size=100.0))
    settings = {"policy": LargestFirst(), "min_clients": 3, "lanes": 1}
    strategy(tmp_path, **settings).start(grid, ARRAYS, num_rounds=4)
    assert [len(node.orders) for node in grid.nodes.values()] == [0, 4, 0]
    assert StateStore(tmp_path).load().arrays["scheduler.state.seen"].tolist() == [[50.0, 200.0, 100.0]]
    StateStore(tmp_path).charge(4, {"b": 0})  # a round that a crash cut off
    continued = strategy(tmp_path, **settings)
    grid.nodes[200] = Node("d", size=250.0)
    continued.start(grid, ARRAYS, num_rounds=8)
    assert continued.state.scheduler.problem.sizes.tolist() == [[50.0, 200.0, 100.0, 250.0]]
    assert grid.nodes[200].orders
    grid.nodes[300] = Node("e", size=1e12)
    continued.start(grid, ARRAYS, num_rounds=10)
    assert continued.state.scheduler.problem.sizes.tolist() == [[50.0, 200.0, 100.0, 250.0, 600.0]]


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


def test_a_client_that_is_not_connected_is_owed_no_turn(tmp_path):
    """Its queue stands still while it is away; the run folder counts its rounds, and knows no energy."""
    grid = LocalGrid(Node("a"), Node("b"), Node("c"))
    away = grid.nodes[102]

    def before(round, chosen):
        if round == 1:
            del grid.nodes[102]
        if round == 5:
            grid.nodes[102] = away

    settings = {"policy": "round-robin", "quotas": dict.fromkeys("abc", 0.3), "min_clients": 3, "lanes": 1}
    strategy(tmp_path, **settings, before_round=before).start(grid, ARRAYS, num_rounds=8)
    run = Run.load(tmp_path)
    queue = run.client_rounds["queue"].to_numpy().reshape(8, 3)[:, 2]
    available = run.client_rounds["available"].to_numpy(zero_copy_only=False).reshape(8, 3)[:, 2]
    present = run.client_rounds["present"].to_numpy(zero_copy_only=False).reshape(8, 3)
    assert available.tolist() == present[:, 2].tolist() == [True, True, False, False, False, False, True, True]
    assert present[:, :2].all()
    np.testing.assert_allclose(np.diff(queue)[1:5], 0.0)  # rounds 2 to 5, in which it was away
    assert run.clients["present_share"].to_pylist() == [1.0, 1.0, 0.5]
    served = run.clients["participation"].to_numpy()[2] * 8
    assert run.clients["shortfall"].to_pylist()[2] == pytest.approx(max(0.3 - served / 4, 0.0))
    assert run.clients["energy_j"].null_count == 3
    assert run.assignments["energy_j"].null_count == len(run.assignments)
    assert "energy_j" not in run.summary
    assert run.summary["present_share"]["mean"] == pytest.approx(5 / 6)


def test_a_late_client_has_no_delays_in_the_run_folder(tmp_path):
    """The server cut its upload off, so nobody knows them; the round lasts until the deadline."""

    class Silent(Node):
        def __call__(self, message):
            return None if message.metadata.message_type == MessageType.TRAIN else super().__call__(message)

    grid = LocalGrid(Node("a"), Silent("b"))
    strategy(tmp_path, lanes=2, min_clients=2, deadline_s=0.5).start(grid, ARRAYS, num_rounds=1)
    run = Run.load(tmp_path)
    by_client = {row["client"]: row for row in run.assignments.to_pylist()}
    assert [by_client[1][name] for name in ("download_s", "compute_s", "upload_s", "delay_s")] == [None] * 4
    assert (by_client[0]["punctual"], by_client[1]["punctual"]) == (True, False)
    assert by_client[0]["delay_s"] < 0.5
    assert run.rounds["delay_s"].to_pylist() == [0.5]


def test_a_state_of_another_version_of_the_policy_is_refused(tmp_path):
    grid = LocalGrid(Node("a"), Node("b"))
    strategy(tmp_path, policy="cs-ucb-q", min_clients=2).start(grid, ARRAYS, num_rounds=2)
    store = StateStore(tmp_path)
    saved = store.load()
    assert saved.values["policy_version"] == 2
    for other in ({"policy_version": 1}, {}):
        store.save(Saved({k: v for k, v in saved.values.items() if k != "policy_version"} | other, saved.arrays))
        with pytest.raises(InputError, match=f"has policy_version {other.get('policy_version')}, not 2"):
            strategy(tmp_path, policy="cs-ucb-q", min_clients=2).start(grid, ARRAYS, num_rounds=3)


class Reporting(Node):
    """Reports a loss with every update."""

    def __init__(self, name, loss, **changes):
        super().__init__(name)
        self.report = {**LossReport(loss, loss + 1.0, protected=True).record(), **changes}

    def __call__(self, message):
        content = super().__call__(message)
        if message.metadata.message_type == MessageType.TRAIN:
            content[LOSSES] = ConfigRecord(self.report)
        return content


def test_reported_losses_reach_a_policy_that_requires_them(tmp_path):
    """Each is served once, and then the client with the largest loss; the reports survive a restart."""
    grid = LocalGrid(Reporting("a", 0.5), Reporting("b", 2.5), Reporting("c", -0.1))
    settings = {"policy": LargestLoss(), "min_clients": 3, "lanes": 1}
    with pytest.raises(InputError, match="set losses=True in LaneStrategy and report_losses=True in every LaneClient"):
        strategy(tmp_path / "off", **settings).start(grid, ARRAYS, num_rounds=1)
    served = strategy(tmp_path / "on", **settings, losses=True)
    served.start(grid, ARRAYS, num_rounds=6)
    assert [len(node.orders) for node in grid.nodes.values()] == [1, 4, 1]
    continued = strategy(tmp_path / "on", **settings, losses=True)
    grid.nodes[200] = Node("d")  # which reports none
    continued.start(grid, ARRAYS, num_rounds=9)
    losses = continued.state.scheduler.losses.latest()
    np.testing.assert_array_equal(losses.mean, [[0.5, 2.5, -0.1, np.nan]])
    np.testing.assert_array_equal(losses.rms, [[1.5, 3.5, 0.9, np.nan]])
    assert losses.protected
    assert [len(grid.nodes[at].orders) for at in (100, 102)] == [1, 1]
    assert grid.nodes[200].orders
    saved = StateStore(tmp_path / "on").load()
    wrong = {**saved.arrays, "scheduler.losses.mean": np.full((1, 4), 1e30)}
    StateStore(tmp_path / "on").save(replace(saved, arrays=wrong))
    with pytest.raises(InputError, match="losses must be at most 1e"):
        strategy(tmp_path / "on", **settings, losses=True).start(grid, ARRAYS, num_rounds=10)


@pytest.mark.parametrize("changes", [{"mean": "much"}, {"rms": -1.0}, {"mean": 1e13}, {"protected": 1}, {"kind": "x"}])
def test_a_reply_with_malformed_losses_is_dropped(tmp_path, changes):
    grid = LocalGrid(Reporting("a", 0.5, **changes), Reporting("b", 2.5))
    settings = {"policy": LargestLoss(), "min_clients": 2, "lanes": 2, "losses": True}
    served = strategy(tmp_path, **settings)
    served.start(grid, ARRAYS, num_rounds=2)
    assert served.state.dropped == {"a": 2}
    assert np.isnan(served.state.scheduler.losses.latest().mean).tolist() == [[True, False]]


@pytest.mark.parametrize("trust_names", [True, False])
def test_a_restarted_node_is_taken_back_as_soon_as_its_old_id_has_left(tmp_path, caplog, trust_names):
    """Its old id stays listed for 3 rounds, as Flower does until a heartbeat is missed."""
    grid, hellos = LocalGrid(Node("a"), Node("b")), []

    class Restarted(Node):
        def __call__(self, message):
            hellos.extend([1] * (message.metadata.message_type == MessageType.QUERY))
            return super().__call__(message)

    again = Restarted("a")

    def before(round, chosen):
        if round == 2:
            grid.nodes[100] = lambda message: None
            again.orders.extend([None] * 3)  # the same client: its ledger has its uploads
            grid.nodes[300] = again
        if round == 5:
            del grid.nodes[100]

    settings = {"min_clients": 2, "before_round": before, "trust_names": trust_names, "deadline_s": 0.5}
    strategy(tmp_path, **settings).start(grid, ARRAYS, num_rounds=10)
    rounds = [order.round for order in again.orders if order is not None]
    assert "node 300 is refused: the name 'a' belongs to node 100" in caplog.text
    assert rounds == ([6, 7, 8, 9] if trust_names else [])
    assert len(hellos) == 1
    if trust_names:
        assert Run.load(tmp_path).summary["flower"]["clients"] == ["a", "b"]


class Careful(Node):
    """Refuses an order that counts more uploads than its ledger, as LaneClient does."""

    refusals = 0

    def __call__(self, message):
        if message.metadata.message_type == MessageType.TRAIN:
            order = Order.read(message.content)
            if order.server_count > len(self.orders):
                self.refusals += 1
                report = Report(order.client, order.round, order.lane, "refused", "rolled back", 0, 0, 0, 50, 0.1, 1e-5)
                return RecordDict({KEY: report.record()})
        return super().__call__(message)


class Thief(Node):
    """Introduces itself with another client's name, and claims almost all of its budget."""

    def __call__(self, message):
        self.orders += [None] * 100  # whatever the server counts
        answer = super().__call__(message)
        if message.metadata.message_type != MessageType.EVALUATE:
            answer[KEY]["uploads"] = 49
        return answer


@pytest.mark.parametrize("stays", [True, False])
def test_a_node_that_takes_a_name_does_not_use_up_its_owner_s_budget(tmp_path, stays):
    """The owner's connection drops for two rounds. It gets its name back, even if the other node stays connected."""
    owner, thief = Careful("b"), Thief("b")
    grid = LocalGrid(owner, Node("c"), Node("d"))

    def before(round, chosen):
        if round == 2:
            grid.nodes[200] = thief
        if round == 5:
            del grid.nodes[100]
        if round == 7:
            grid.nodes[100] = owner
            if not stays:
                del grid.nodes[200]

    settings = {"lanes": 3, "min_clients": 3, "policy": "round-robin", "trust_names": True, "before_round": before}
    server = strategy(tmp_path, **settings)
    server.start(grid, ARRAYS, num_rounds=12)
    assert owner.refusals == 0
    assert [order.round for order in owner.orders][-2:] == [10, 11]
    assert any(order is not None for order in thief.orders)
    member = server.state.roster.members[0]
    assert (member.name, member.node_id, member.uploads, member.barred) == ("b", 100, len(owner.orders), "")
    strategy(tmp_path, **{**settings, "before_round": None}).start(grid, ARRAYS, num_rounds=14)
    assert [order.round for order in owner.orders][-2:] == [12, 13]


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
    assert rows[-1]["epsilon"] is None  # one order is unanswered


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
    assert run.client_rounds["epsilon"].to_pylist() == [None, pytest.approx(0.1), pytest.approx(0.2)]


def test_a_client_whose_last_answer_was_lost_is_unreported(tmp_path):
    """Neither its last figure, which may be too small, nor its whole budget is called spent."""

    class Silent(Node):
        def __call__(self, message):
            answer = super().__call__(message)
            return None if len(self.orders) == 3 else answer

    grid = LocalGrid(Silent("a", epsilon=8.0), Node("b", epsilon=8.0))
    strategy(tmp_path / "one", min_clients=2, deadline_s=2.0).start(grid, ARRAYS, num_rounds=4)
    run = Run.load(tmp_path / "one")
    assert run.clients["epsilon"].to_pylist() == [None, pytest.approx(0.4)]
    privacy = run.summary["privacy"]
    assert privacy["epsilon"] == {"smallest": pytest.approx(0.4), "largest": pytest.approx(0.4)}
    assert (privacy["unreported"], privacy["clients"]) == (1, 2)
    printed = CliRunner().invoke(command, ["show", str(tmp_path / "one")]).output
    assert "0.400 of 8 at delta 1e-05 (1 unreported)" in printed
    assert "1 of 2 clients have not answered their last order" in " ".join(printed.split())
    assert headline(run.summary)["epsilon"] == pytest.approx(0.4)
    strategy(tmp_path / "none", deadline_s=2.0).start(LocalGrid(Silent("a")), ARRAYS, num_rounds=3)
    summary = Run.load(tmp_path / "none").summary
    assert summary["privacy"]["epsilon"] == {"smallest": None, "largest": None}
    assert "epsilon" not in headline(summary)
    for folder in ("one", "none"):
        words = ["report", str(tmp_path / folder), "--out", str(tmp_path / f"{folder}.html")]
        assert CliRunner().invoke(command, words).exit_code == 0
    assert "unreported" in CliRunner().invoke(command, ["show", str(tmp_path / "none")]).output


def test_a_round_cut_off_by_a_crash_counts_as_played(tmp_path, caplog):
    grid = LocalGrid(Node("a"), Node("b"))
    strategy(tmp_path, lanes=1, min_clients=2).start(grid, ARRAYS, num_rounds=2)
    StateStore(tmp_path).charge(2, {"a": 0})  # sent, or not even that, before the server was killed
    with pytest.raises(InputError, match="num_rounds must be at least the 3 rounds begun, got 2"):
        strategy(tmp_path, lanes=1).start(grid, ARRAYS, num_rounds=2)
    strategy(tmp_path, lanes=1).start(grid, ARRAYS, num_rounds=3)  # nothing is left to do
    run = Run.load(tmp_path)
    assert "round 2: a crash cut it off; its 1 orders count as late" in caplog.text
    assert run.rounds["punctual"].to_pylist() == [1, 1, 0]
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "finished"
    strategy(tmp_path, lanes=1).start(grid, ARRAYS, num_rounds=4)
    run = Run.load(tmp_path)
    assert run.rounds["punctual"].to_pylist() == [1, 1, 0, 1]
    assert [row["client"] for row in run.assignments.to_pylist() if row["round"] == 2] == [0]
    assert sum(run.clients["uploads"].to_pylist()) == 4
    assert sorted(order.round for node in grid.nodes.values() for order in node.orders) == [0, 1, 3]


@pytest.mark.parametrize("crashed", [0, 2])
def test_a_round_cut_off_by_a_crash_has_no_predictions_and_the_others_keep_theirs(tmp_path, monkeypatch, crashed):
    """Also if it is the first one; and the federation can be continued more than once."""
    grid, rounds = LocalGrid(Node("a"), Node("b")), iter(range(6))

    def dies(grid, messages, deadline_s):
        arrivals = exchange(grid, messages, deadline_s)
        if next(rounds) == crashed:
            raise KeyboardInterrupt
        return arrivals

    monkeypatch.setattr("fedlane.flower.server.strategy.exchange", dies)
    with pytest.raises(KeyboardInterrupt):
        strategy(tmp_path, min_clients=2).start(grid, ARRAYS, num_rounds=4)
    for number in (4, 6):
        strategy(tmp_path, min_clients=2).start(grid, ARRAYS, num_rounds=number)
    run = Run.load(tmp_path)
    rows = run.assignments.to_pylist()
    assert [row["round"] for row in rows if row["predicted_low_s"] is None] == [crashed] * 2
    stated = [row for row in rows if row["predicted_low_s"] is not None]
    inside = [row["predicted_low_s"] <= row["delay_s"] <= row["predicted_high_s"] for row in stated]
    assert len(stated) == 10
    assert run.summary["coverage_90"]["mean"] == pytest.approx(np.mean(inside))


@pytest.mark.parametrize("times", [8, pytest.param(30, marks=pytest.mark.slow)])
def test_a_crash_loop_charges_nobody_twice_for_a_round(tmp_path, monkeypatch, times):
    """The server dies some times in a row after it has sent its orders, then recovers."""
    grid, crashes = LocalGrid(*(Node(name) for name in "abc")), iter(range(times))

    def dies(grid, messages, deadline_s):
        arrivals = exchange(grid, messages, deadline_s)
        if next(crashes, None) is not None:
            raise KeyboardInterrupt
        return arrivals

    monkeypatch.setattr("fedlane.flower.server.strategy.exchange", dies)
    starts = 0
    while True:
        starts += 1
        try:
            result = strategy(tmp_path, min_clients=3).start(grid, ARRAYS, num_rounds=times + 4)
            break
        except KeyboardInterrupt:
            assert starts <= times
    for node in grid.nodes.values():
        rounds = [order.round for order in node.orders]
        assert len(rounds) == len(set(rounds))
    journal = [(round, name) for round, orders in StateStore(tmp_path).journal() for name in orders]
    assert len(journal) == len(set(journal)) == 2 * (times + 4)
    run = Run.load(tmp_path)
    assert run.rounds["round"].to_pylist() == list(range(times + 4))
    assert run.rounds["punctual"].to_pylist() == [0] * times + [2] * 4
    assert run.clients["uploads"].to_pylist() == [len(node.orders) for node in grid.nodes.values()]
    assert result.arrays["w"].numpy()[0] == 4


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
        ends.append((result.arrays["w"].numpy().tolist(), last.state.guard.values()))
    assert set(ends[0][1]["norms"]) == set(ends[0][1]["array_norms"]) == {"a", "b"}
    assert ends[0] == ends[1]
    sessions = Run.load(tmp_path / "halves").provenance["sessions"]
    assert [session["first_round"] for session in sessions] == [0, 2]


def test_a_damaged_provenance_does_not_stop_a_federation(tmp_path, caplog):
    grid = LocalGrid(Node("a"), Node("b"))
    strategy(tmp_path, min_clients=2).start(grid, ARRAYS, num_rounds=1)
    (tmp_path / "provenance.json").write_text("{")
    strategy(tmp_path, min_clients=2).start(grid, ARRAYS, num_rounds=2)
    assert "the provenance of earlier sessions is lost" in caplog.text
    assert [session["first_round"] for session in Run.load(tmp_path).provenance["sessions"]] == [1]


def test_resuming_needs_the_same_federation(tmp_path):
    grid = LocalGrid(Node("a"), Node("b"))
    strategy(tmp_path).start(grid, ARRAYS, num_rounds=2)
    for wrong, reason in (({"lanes": 3}, "lanes 2, not 3"), ({"policy": "random"}, "policy 'lane', not 'random'")):
        with pytest.raises(InputError, match=reason):
            strategy(tmp_path, **wrong).start(grid, ARRAYS, num_rounds=4)
    with pytest.raises(InputError, match="holds a model that differs from initial_arrays"):
        strategy(tmp_path).start(grid, ArrayRecord({"w": Array(np.zeros(6, np.float32))}), num_rounds=4)
    with pytest.raises(InputError, match="at least the 2 rounds run so far"):
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


def test_the_losses_that_come_with_a_refused_update_are_not_used(tmp_path):
    class TooLarge(Reporting):
        def train(self, weights):
            return weights + np.float32(100)

    settings = {"policy": LargestLoss(), "min_clients": 2, "lanes": 2, "losses": True, "max_update_norm": 10.0}
    served = strategy(tmp_path, **settings)
    served.start(LocalGrid(TooLarge("a", 9.5), Reporting("b", 2.5)), ARRAYS, num_rounds=1)
    assert served.state.dropped == {"a": 1}
    np.testing.assert_array_equal(served.state.scheduler.losses.latest().mean, [[np.nan, 2.5]])
