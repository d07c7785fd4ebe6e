"""The journal and the checkpoint, the arrays of the wrapped strategy, and the strategy's settings."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx

from fedlane.flower import GuardSettings, LaneStrategy, ScheduleSettings
from fedlane.flower.protocol import Order
from fedlane.flower.server.aggregation import Aggregation
from fedlane.flower.server.state_files import CHECKPOINT, JOURNAL, Saved, StateStore
from fedlane.flower.server.strategy_arrays import to_arrays
from fedlane.validate import InputError
from support.local_grid import LocalGrid, Node, strategy

MODEL = {"w": np.arange(4, dtype=np.float32), "n": np.array([3], np.int64)}


def test_the_checkpoint_is_read_back(tmp_path):
    store = StateStore(tmp_path / "new" / "state")
    assert store.load() is None
    store.save(Saved({"a": [1, "ü"], "b": None}, {"model.0.weight": MODEL["w"], "model.n": MODEL["n"], "x": np.eye(2)}))
    saved = store.load()
    assert dict(saved.values) == {"a": [1, "ü"], "b": None}
    assert list(saved.part("model")) == ["0.weight", "n"]
    np.testing.assert_array_equal(saved.part("model")["0.weight"], MODEL["w"])


@pytest.mark.parametrize("damage", [b"", b"PK rubbish", None])
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    store = StateStore(tmp_path)
    store.save(Saved({}, {"x": np.zeros(100)}))
    whole = (tmp_path / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(whole[:-40] if damage is None else damage)
    with pytest.raises(InputError, match="damaged"):
        store.load()


def test_objects_are_never_unpickled(tmp_path):
    np.savez(tmp_path / CHECKPOINT, _values=np.array([{"version": 1}], object))
    with pytest.raises(InputError, match="damaged"):
        StateStore(tmp_path).load()


def test_the_journal_counts_orders(tmp_path):
    store = StateStore(tmp_path)
    assert store.charged() == {}
    store.charge(0, {"a": 0, "b": 1})
    store.charge(1, {"a": 1})
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"round": 2, "orders": {"a"')  # cut off by a crash, so it was never sent
    assert store.charged() == {"a": 2, "b": 1}
    store.charge(2, {"b": 0})
    assert store.charged() == {"a": 2, "b": 2}
    (tmp_path / JOURNAL).write_bytes(b"rubbish\n")
    with pytest.raises(InputError, match="line 1"):
        store.charged()


@pytest.fixture
def synced(monkeypatch):
    """Return a list of what is forced to disk: the name of each file or folder."""
    names, fsync = [], os.fsync

    def noted(number):
        names.append(Path(f"/proc/self/fd/{number}").readlink().name)
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    return names


def test_orders_are_forced_to_disk_before_charge_returns(tmp_path, synced):
    store = StateStore(tmp_path)
    store.charge(0, {"a": 0})
    assert synced == [JOURNAL, tmp_path.name]  # the folder too, because the file is new
    store.charge(1, {"a": 0})
    assert synced == [JOURNAL, tmp_path.name, JOURNAL]


def test_orders_are_forced_to_disk_before_they_are_sent(tmp_path, synced):
    class Receiver(Node):
        def __call__(self, message):
            if message.metadata.message_type == MessageType.TRAIN:
                rounds = [round for round, _ in StateStore(tmp_path).journal()]
                assert rounds == list(range(len(rounds)))
                assert synced.count(JOURNAL) == len(rounds) == Order.read(message.content).round + 1
            return super().__call__(message)

    node = Receiver("a")
    strategy(tmp_path).start(LocalGrid(node), to_arrays({"w": MODEL["w"]}), num_rounds=3)
    assert len(node.orders) == 3


@pytest.mark.parametrize("name", [JOURNAL, CHECKPOINT])
def test_a_full_disk_is_a_one_line_error(tmp_path, monkeypatch, name):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = StateStore(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=f"{name} cannot be written: No space left on device"):
        store.charge(0, {"a": 0}) if name == JOURNAL else store.save(Saved({}, {"w": np.zeros(9)}))


def test_two_servers_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("fedlane.flower.server.state_files.LOCK_WAIT_S", 0.2)
    code = (
        "import sys; from fedlane.flower.server.state_files import StateStore\n"
        "with StateStore(sys.argv[1]).locked(): print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "held\n"
    with pytest.raises(InputError, match="in use"), StateStore(tmp_path).locked():
        pass
    other.communicate("", timeout=120)
    with StateStore(tmp_path).locked():
        pass


def reply(arrays, weight=10):
    content = {"arrays": to_arrays(arrays), "metrics": MetricRecord({"num-examples": weight})}
    asked = Message(RecordDict({}), dst_node_id=1, message_type=MessageType.TRAIN)
    asked.metadata.__dict__["_message_id"] = "1"
    return Message(RecordDict(content), reply_to=asked)


@pytest.mark.parametrize(
    "make", [FedAvg, FedAdam, lambda: FedAvgM(server_momentum=0.9), lambda: FedProx(proximal_mu=0.5)]
)
def test_any_strategy_aggregates_and_is_restored(make):
    """The model keeps its types; a strategy restored from its arrays continues as if it had never stopped."""
    first, model = Aggregation(make()), MODEL
    models = []
    for inner_round in range(1, 4):
        content = first.content(inner_round, to_arrays(model), ConfigRecord({"lr": 0.1}))
        assert content["config"]["server-round"] == inner_round
        assert content["config"]["lr"] == 0.1
        assert content["config"].get("proximal-mu") == getattr(first.inner, "proximal_mu", None)
        moved = {"w": model["w"] + np.float32(inner_round), "n": model["n"] + 1}
        aggregated = first.aggregate(inner_round, [reply(moved), reply(moved, 30)], model)
        assert {name: array.numpy().dtype for name, array in aggregated.arrays.items()} == {
            "w": np.float32,
            "n": np.int64,
        }
        model = {name: array.numpy() for name, array in aggregated.arrays.items()}
        models.append((inner_round, model, {key: np.array(value) for key, value in first.memory().items()}))
    _, halfway, memory = models[1]
    restored = Aggregation(make())
    restored.restore(memory)
    restored.restore(memory)  # a strategy that is started twice
    restored.content(3, to_arrays(halfway), ConfigRecord())
    moved = {"w": halfway["w"] + np.float32(3), "n": halfway["n"] + 1}
    aggregated = restored.aggregate(3, [reply(moved), reply(moved, 30)], halfway)
    np.testing.assert_array_equal(aggregated.arrays["w"].numpy(), models[2][1]["w"])


def test_an_average_of_integers_is_rounded():
    replies = [reply({**MODEL, "n": np.array([4])}, 10), reply({**MODEL, "n": np.array([5])}, 30)]
    aggregated = Aggregation(FedAvg()).aggregate(1, replies, MODEL)
    assert aggregated.arrays["n"].numpy().tolist() == [5]  # 4.75


def test_a_strategy_that_fails_leaves_the_model_unchanged(caplog):
    class Breaks(FedAvg):
        def aggregate_train(self, server_round, replies):
            raise RuntimeError("out of luck")

    class Overflows(FedAvg):
        def aggregate_train(self, server_round, replies):
            return ArrayRecord({name: Array(array * np.nan) for name, array in MODEL.items()}), None

    for kind, why in ((Breaks, "out of luck"), (Overflows, "not finite")):
        assert Aggregation(kind()).aggregate(1, [reply(MODEL)], MODEL).arrays is None
        assert why in caplog.text
    with pytest.raises(InputError, match="fraction_train"):
        Aggregation(FedAvg(fraction_train=0.0)).content(1, to_arrays(MODEL), ConfigRecord())


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"lanes": 0}, "lanes must be at least 1"),
        ({"deadline_s": 0.0}, "deadline_s must be greater than 0"),
        ({"quotas": {"a": 1.5}}, "at most 1, got 1.5"),
        ({"policy": "lain"}, "did you mean 'lane'"),
        ({"max_update_norm": -1.0}, "max_update_norm"),
        ({"max_weight": 0.0}, "max_weight"),
        ({"capacity": 0}, "capacity"),
        ({"min_clients": 0}, "min_clients"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, wrong, reason):
    with pytest.raises(InputError, match=reason):
        LaneStrategy(**{"lanes": 2, "deadline_s": 5.0, "state_dir": tmp_path, **wrong})


def test_settings_by_keyword_and_in_groups_are_the_same(tmp_path):
    keywords = {"lanes": 2, "deadline_s": 5, "policy": "random", "seed": 4, "capacity": 9, "trust_names": True}
    flat = LaneStrategy(FedAvg(), state_dir=tmp_path / "flat", **keywords)
    schedule = ScheduleSettings(lanes=2, deadline_s=5, policy="random", seed=4)
    guard = GuardSettings(capacity=9, trust_names=True)
    groups = LaneStrategy(FedAvg(), state_dir=tmp_path / "groups", schedule=schedule, guard=guard)
    assert flat.schedule == groups.schedule == schedule
    assert flat.state.roster.capacity == groups.state.roster.capacity == 9
    assert flat.state.roster.trust_names is groups.state.roster.trust_names is True
    both = LaneStrategy(state_dir=tmp_path / "both", schedule=schedule, lanes=3, max_update_norm=1.5)
    assert (both.schedule.lanes, both.schedule.seed, both.state.guard.bounds.max_update_norm) == (3, 4, 1.5)


def test_an_unknown_or_missing_keyword_is_a_type_error(tmp_path):
    with pytest.raises(TypeError, match=r"LaneStrategy.__init__\(\) got an unexpected keyword argument 'lane'"):
        LaneStrategy(state_dir=tmp_path, lane=2, deadline_s=5.0)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'deadline_s'"):
        LaneStrategy(state_dir=tmp_path, lanes=2)
