"""One hostile client of five: the others keep accepting the model, and their training continues."""

import io

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MessageType, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from fedlane.flower.protocol import KEY, Report
from fedlane.flower.server.aggregation import Aggregation
from fedlane.flower.server.state_files import Saved, StateStore
from fedlane.flower.server.strategy_arrays import to_arrays
from fedlane.learning.system_random import check_global_model
from fedlane.simulation.results import Run
from fedlane.validate import InputError
from support.local_grid import LocalGrid, Node, reply, strategy
from support.wire_records import introduction

SHAPES = {"large": (200, 100), "bias": (10,)}
MODEL = ArrayRecord({name: Array(np.full(shape, 0.05, np.float32)) for name, shape in SHAPES.items()})


class Honest(Node):
    """Refuses a model as LaneClient does; otherwise moves it towards 1 with some noise."""

    def __init__(self, name):
        super().__init__(name)
        self.rng, self.refusals = np.random.default_rng(len(name)), 0

    def __call__(self, message):
        answer = super().__call__(message)
        if message.metadata.message_type == MessageType.TRAIN:
            try:
                for array in message.content["arrays"].values():
                    check_global_model(torch.from_numpy(array.numpy().reshape(1, -1)))
            except InputError as error:
                self.refusals += 1
                answer[KEY]["status"], answer[KEY]["reason"] = "failed", str(error)
        return answer

    def train(self, weights):
        return weights + np.float32(0.1) * (1 - weights) + self.rng.normal(scale=0.01, size=weights.shape).astype("f")


class Hostile(Node):
    """Adds its own change to the model, and claims as many records as the protocol allows."""

    def __init__(self, change, size=1e9):
        super().__init__("a")  # the first client, so it is judged first
        self.change, self.size = change, size

    def __call__(self, message):
        answer = super().__call__(message)
        if message.metadata.message_type == MessageType.QUERY:
            claims = introduction("a", (), size=self.size, max_uploads=50, uploads=len(self.orders), upload_noise=1e-9)
            return RecordDict({KEY: claims.record()})
        if message.metadata.message_type == MessageType.TRAIN:
            answer["metrics"]["num-examples"] = 10 * self.size
        return answer

    def train(self, weights):
        return self.change(weights, len(self.orders) - 1)


def spike(length):
    """All of the change in one weight of the large array."""

    def change(weights, order):
        moved = weights.copy()
        moved.flat[0] += length if weights.size > 10 else 0
        return moved

    return change


def flat(length):
    """The same change of every weight."""
    return lambda weights, order: weights + np.float32(length / np.sqrt(weights.size))


def growing(factor):
    """A change that grows with every order."""
    return lambda weights, order: spike(0.5 * factor**order)(weights, order)


ATTACKS = {
    f"{shape.__name__} {length:g}": shape(length) for shape in (spike, flat) for length in (1, 30, 140, 900, 1390)
}
ATTACKS |= {f"growing by {factor:g}": growing(factor) for factor in (1.5, 4.0)}


@pytest.mark.parametrize("lanes", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("attack", ATTACKS)
def test_one_hostile_client_does_not_stop_the_others(tmp_path, attack, lanes):
    honest = [Honest(name) for name in "bcde"]
    grid = LocalGrid(Hostile(ATTACKS[attack]), *honest)
    rounds = {1: 10, 2: 7, 5: 5}[lanes]
    settings = {"lanes": lanes, "min_clients": 5, "policy": "round-robin"}
    strategy(tmp_path, FedAvg(fraction_evaluate=0.0), **settings).start(grid, MODEL, num_rounds=rounds)
    result = strategy(tmp_path, FedAvg(fraction_evaluate=0.0), **settings).start(grid, MODEL, num_rounds=rounds + 2)
    run = Run.load(tmp_path)
    assert sum(node.refusals for node in honest) == 0
    assert not set(run.summary["flower"]["dropped"]) & set("bcde")
    late = [row for row in run.assignments.to_pylist() if row["client"] != 0 and not row["punctual"]]
    assert late == []
    for name in SHAPES:
        weights = result.arrays[name].numpy()
        assert np.abs(weights).max() <= 1000
    if attack in ("spike 900", "spike 1390", "flat 900", "flat 1390"):  # far above the others: nothing of it is used
        assert 0.05 < weights.mean() < 1.1
        assert run.summary["flower"]["dropped"]["a"] == len(grid.nodes[100].orders)


@pytest.mark.slow
@pytest.mark.parametrize("make", [FedAvg, FedAdam, lambda: FedAvgM(server_momentum=0.9)])
def test_a_patient_client_that_uses_the_whole_bound_does_not_stop_the_others(tmp_path, make):
    """In every round it moves 50 weights as far as the bound and the range allow; the others' updates still pass."""
    inner = make()
    server = strategy(tmp_path, inner)
    guard, aggregation, rng = server.state.guard, Aggregation(inner), np.random.default_rng(0)
    model = {name: np.full(shape, 0.05, np.float32) for name, shape in SHAPES.items()}
    for round in range(250):
        aggregation.content(round + 1, to_arrays(model), ConfigRecord())
        limit = guard.bounds.limits(model, 5).arrays["large"]
        pushed = model["large"].copy()
        pushed.flat[:50] = np.minimum(pushed.flat[:50] + 0.99 * limit / np.sqrt(50), 999.9)
        replies = [reply("hostile", {**model, "large": pushed}, 1e9)]
        for client in "bcde":
            noisy = {name: old + rng.normal(scale=0.3, size=old.shape).astype("f") for name, old in model.items()}
            replies.append(reply(client, noisy))
        updates = [guard.inspect(m.content, Report.read(m.content), model, 1e9) for m in replies]
        reasons = guard.judge(updates, model, 5)
        assert reasons[1:] == [""] * 4
        accepted = [message for message, reason in zip(replies, reasons, strict=True) if not reason]
        new = aggregation.aggregate(round + 1, accepted, model).arrays
        assert new is not None
        model = {name: new[name].numpy() for name in model}
        for array in model.values():
            check_global_model(torch.from_numpy(array.reshape(1, -1)))
    assert np.abs(model["large"]).max() <= 500


def test_a_model_that_clients_would_refuse_is_not_adopted(caplog):
    """A strategy that leaves the range is set back to the limit, in its own copy as well, and the cause is named."""
    model = {"w": np.zeros(4, np.float32), "n": np.zeros(1, np.int64)}

    class Eager(FedAvg):
        """Goes 1000 times as far as the updates, and keeps its model in three forms."""

        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            self.record = ArrayRecord({"n": arrays["n"], "w": Array(self.scale * arrays["w"].numpy())})
            self.by_name = {name: array.numpy() for name, array in self.record.items()}
            self.in_order = [self.by_name["w"], self.by_name["n"]]
            self.step = {"w": self.by_name["w"] * 2}
            return ArrayRecord(dict(self.record)), metrics

    aggregation = Aggregation(Eager())

    def aggregate(scale):
        aggregation.inner.scale = np.float32(scale)
        moved = [np.float32([1, 0, 0, 0]), np.float32([0.1, 0, 0, 9])]
        replies = [reply(name, {"w": w, "n": np.array([7])}) for name, w in zip(("calm", "wild"), moved, strict=True)]
        return aggregation.aggregate(3, replies, model)

    held, inner = aggregate(1000.0), aggregation.inner
    assert held.arrays["w"].numpy().tolist() == [500, 0, 0, 500]
    assert held.arrays["n"].numpy().tolist() == [7]
    assert held.left_out == ()
    assert "round 2: weights are kept within 500; largest change there by wild" in caplog.text
    for kept in (inner.record["w"].numpy(), inner.by_name["w"], inner.in_order[0]):
        assert kept.tolist() == [500, 0, 0, 500]
    assert inner.step["w"].tolist() == pytest.approx([1100, 0, 0, 9000])  # it is not the model
    with np.errstate(invalid="ignore"):
        refused = aggregate(np.inf)
    assert (refused.arrays, refused.metrics, refused.left_out) == (None, None, ())
    assert "round 2: Eager failed to aggregate: the aggregated model is not finite" in caplog.text
    assert inner.by_name["w"].tolist() == [500, 0, 0, 500]


def test_a_weight_that_began_above_the_limit_may_stay_there_but_not_grow():
    model = {"w": np.float32([800, -800, 800, 0])}
    moved = {"w": np.float32([900, -900, 700, 900])}
    aggregated = Aggregation(FedAvg()).aggregate(1, [reply("a", moved), reply("b", moved)], model)
    assert aggregated.arrays["w"].numpy().tolist() == [800, -800, 700, 500]


def test_a_stored_model_that_clients_refuse_is_refused(tmp_path):
    """A state folder of an earlier version may hold one."""
    grid = LocalGrid(Node("a"))
    arrays = ArrayRecord({"w": Array(np.full(5, 1e4, np.float32))})
    with pytest.raises(InputError, match=r"initial_arrays has weights above 1000, which clients refuse"):
        strategy(tmp_path / "new").start(grid, arrays, num_rounds=1)
    strategy(tmp_path / "old", max_weight=1e5).start(grid, arrays, num_rounds=1)
    with pytest.raises(InputError, match=r"the model in state_dir .*old has weights above 1000, which clients refuse"):
        strategy(tmp_path / "old").start(grid, arrays, num_rounds=2)
    saved = StateStore(tmp_path / "old").load()
    StateStore(tmp_path / "old").save(Saved(saved.values, {**saved.arrays, "model.w": np.full(5, np.nan, np.float32)}))
    with pytest.raises(InputError, match="is not finite, which clients refuse"):
        strategy(tmp_path / "old").start(grid, arrays, num_rounds=2)


def forged(array):
    """An array of the right type and shape whose content is something else."""
    buffer = io.BytesIO()
    np.savez(buffer, w=array)
    return Array(str(array.dtype), array.shape, "numpy.ndarray", buffer.getvalue())


@pytest.mark.parametrize("fault", ["archive", "inspection"])
def test_no_reply_ends_the_federation(tmp_path, monkeypatch, caplog, fault):
    """An archive in place of an array is dropped, and so is a reply on which the guard's own code fails."""

    class Forger(Node):
        def __call__(self, message):
            answer = super().__call__(message)
            if message.metadata.message_type == MessageType.TRAIN and fault == "archive":
                answer["arrays"] = ArrayRecord({"w": forged(np.zeros(5, np.float32))})
            return answer

    honest = [Node(name) for name in "bc"]
    server = strategy(tmp_path, FedAvg(fraction_evaluate=0.0), lanes=3, min_clients=3, policy="round-robin")
    if fault == "inspection":
        inspect = server.state.guard.inspect

        def fails_for_one(content, report, *arguments):
            if report.client == "a":
                raise AttributeError("no such thing")
            return inspect(content, report, *arguments)

        monkeypatch.setattr(server.state.guard, "inspect", fails_for_one)
    result = server.start(LocalGrid(Forger("a"), *honest), ArrayRecord({"w": Array(np.zeros(5, np.float32))}), 3)
    assert [len(node.orders) for node in honest] == [3, 3]
    assert np.all(result.arrays["w"].numpy() == 3)
    assert server.state.dropped == {"a": 3}
    assert {"archive": "it is a NpzFile", "inspection": "AttributeError: no such thing"}[fault] in caplog.text


@pytest.mark.parametrize("epsilon", [2**62, 2**53 + 1, 10**12, -1.0, 1e308])
def test_a_reported_epsilon_does_not_stop_the_run_folder(tmp_path, epsilon):
    class Boaster(Node):
        def __call__(self, message):
            answer = super().__call__(message)
            if message.metadata.message_type == MessageType.TRAIN:
                answer[KEY]["epsilon"] = epsilon
            return answer

    settings = {"lanes": 3, "min_clients": 3, "policy": "round-robin"}
    model = ArrayRecord({"w": Array(np.zeros(5, np.float32))})
    strategy(tmp_path, **settings).start(LocalGrid(Boaster("a"), Node("b"), Node("c")), model, num_rounds=2)
    run = Run.load(tmp_path)
    assert run.summary["rounds"] == 2
    assert run.clients["epsilon"].to_pylist()[1:] == [pytest.approx(0.2)] * 2
    assert run.summary["flower"]["dropped"] == ({} if epsilon == 10**12 else {"a": 2})
