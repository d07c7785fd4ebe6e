"""Hostile clients against the wrapped strategy: no honest client loses a round, whatever the strategy remembers."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MessageType, MetricRecord
from flwr.serverapp.strategy import Bulyan, FedAdam, FedAvg, FedAvgM, FedTrimmedAvg, FedYogi, QFedAvg

from fedlane.flower.protocol import Report
from fedlane.flower.server.aggregation import Aggregation
from fedlane.flower.server.guard import Guard
from fedlane.flower.server.strategy_arrays import to_arrays, to_model
from fedlane.simulation.results import Run
from support.local_grid import LocalGrid, Node, reply, strategy

MODEL = {"large": np.full((200, 100), 0.05, np.float32), "bias": np.full(10, 0.05, np.float32)}


def honest(client, model, rng, loss=0.5):
    """Return an update towards 1 with noise."""
    moved = {
        name: array + np.float32(0.1) * (1 - array) + rng.normal(scale=0.3, size=array.shape).astype("f")
        for name, array in model.items()
    }
    return reply(client, moved, 10, train_loss=loss)


def pushed(client, model, limits):
    """Return an update of one weight by 0.99 of its bound, with as much weight in the average as it can get."""
    large = model["large"].copy()
    large.flat[0] = min(large.flat[0] + 0.99 * limits.arrays["large"], 999.9)
    return reply(client, {**model, "large": large}, 1000, train_loss=0.5)


def play(inner, rounds, hostile, others, attack):
    """Play rounds with everybody in each; return the last model, and the clients left out in each round.

    No honest update may be refused, and no round may end without a model.
    """
    guard, aggregation, rng = Guard(), Aggregation(inner), np.random.default_rng(0)
    model, left_out = MODEL, []
    for number in range(rounds):
        aggregation.content(number + 1, to_arrays(model), ConfigRecord())
        replies = [attack(f"a{k}", model, guard.bounds.limits(model, hostile + others)) for k in range(hostile)]
        replies += [honest(f"h{k}", model, rng) for k in range(others)]
        updates = [guard.inspect(m.content, Report.read(m.content), model, 100.0) for m in replies]
        reasons = guard.judge(updates, model, hostile + others)
        assert reasons[hostile:] == [""] * others
        accepted = [message for message, reason in zip(replies, reasons, strict=True) if not reason]
        aggregated = aggregation.aggregate(number + 1, accepted, model)
        assert aggregated.arrays is not None, f"round {number} is lost"
        model = to_model(aggregated.arrays)
        left_out.append(aggregated.left_out)
    return model, left_out


STRATEGIES = {
    "FedAvgM 0.9": lambda: FedAvgM(server_momentum=0.9),
    "FedAvgM twice the rate": lambda: FedAvgM(server_learning_rate=2.0),
    "FedAdam": FedAdam,
    "FedYogi": FedYogi,
    "FedTrimmedAvg": FedTrimmedAvg,
    "Bulyan": lambda: Bulyan(num_malicious_nodes=0),
}


SIDES = [(1, 3), pytest.param(1, 4, marks=pytest.mark.slow), pytest.param(2, 3, marks=pytest.mark.slow)]
"""Numbers of hostile clients and of others."""


@pytest.mark.parametrize(("hostile", "others"), SIDES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_no_round_is_lost_to_clients_that_use_the_whole_bound(name, hostile, others):
    """A strategy's momentum, its rate, or its way of reading replies do not turn one weight into lost rounds."""
    model, left_out = play(STRATEGIES[name](), 30, hostile, others, pushed)
    assert np.abs(model["large"]).max() <= 500
    assert set(left_out) == {()}
    assert np.median(model["large"]) > (0.5 if name != "FedYogi" else 0.1)  # its rate is small


@pytest.mark.parametrize("hostile", [1, 2])
@pytest.mark.parametrize(("loss", "q"), [(None, 0.1), (float("nan"), 0.1), (-1.0, 0.1), ([1.0], 0.1), (1e308, 1.0)])
def test_a_minority_s_metrics_do_not_stop_a_strategy_that_needs_them(loss, q, hostile):
    """QFedAvg needs every reply's loss as a number; those without one are left out, and the others are aggregated."""
    rng = np.random.default_rng(1)

    def lie(client, model, limits):
        answer = honest(client, model, rng)
        if loss is None:
            del answer.content["metrics"]["train_loss"]
        else:
            answer.content["metrics"]["train_loss"] = loss
        return answer

    model, left_out = play(QFedAvg(client_learning_rate=0.1, q=q), 4, hostile, 3, lie)
    assert left_out == [tuple(f"a{k}" for k in range(hostile))] * 4
    assert np.all(model["large"] != MODEL["large"])


def test_a_strategy_that_needs_several_replies_goes_on_without_one(caplog):
    class AtLeastThree(FedAvg):
        def aggregate_train(self, server_round, replies):
            if len([reply.content["metrics"]["train_loss"] for reply in replies]) < 3:
                raise ValueError("too few")
            return super().aggregate_train(server_round, replies)

    def silent(client, model, limits):
        return reply(client, model)

    _, left_out = play(AtLeastThree(), 2, 1, 3, silent)
    assert left_out == [("a0",)] * 2
    assert "round 1: the updates of a0 are left out" in caplog.text


def test_a_whole_federation_goes_on(tmp_path):
    """The clients that are left out are counted in the summary."""

    class Learner(Node):
        loss = 0.5

        def __call__(self, message):
            answer = super().__call__(message)
            if message.metadata.message_type == MessageType.TRAIN:
                answer["metrics"]["train_loss"] = self.loss
            return answer

    class Liar(Learner):
        loss = -1.0

    inner = QFedAvg(client_learning_rate=0.1, q=0.1, fraction_evaluate=0.0)
    server = strategy(tmp_path, inner, lanes=4, min_clients=4, policy="round-robin")
    model = ArrayRecord({"w": Array(np.zeros(5, np.float32))})
    result = server.start(LocalGrid(Liar("a"), *map(Learner, "bcd")), model, num_rounds=3)
    assert Run.load(tmp_path).summary["flower"]["dropped"] == {"a": 3}
    assert np.all(result.arrays["w"].numpy() > 0)


LIES = [
    {"num-examples": 10**12, "accuracy": 1.0},
    {"num-examples": 10, "accuracy": 1e308},
    {"num-examples": 10, "accuracy": -5.0},
    {"num-examples": 10, "accuracy": 2**62},
    {"num-examples": 10, "accuracy": [1.0]},
    {"num-examples": 10, "accuracy": float("nan")},
    {"num-examples": 10},
    {"num-examples": 10, "accuracy": 0.5, "loss": 1e308},
]


@pytest.mark.parametrize("lie", LIES)
def test_one_client_does_not_decide_the_evaluation(tmp_path, lie):
    class Liar(Node):
        def __call__(self, message):
            answer = super().__call__(message)
            if message.metadata.message_type == MessageType.EVALUATE:
                answer["metrics"] = MetricRecord(lie)
            return answer

    server = strategy(tmp_path, FedAvg(fraction_evaluate=1.0), lanes=5, min_clients=5, policy="round-robin")
    model = ArrayRecord({"w": Array(np.zeros(5, np.float32))})
    server.start(LocalGrid(Liar("a"), *map(Node, "bcde")), model, num_rounds=2)
    accuracy = Run.load(tmp_path).summary["final_accuracy"]["mean"]
    assert accuracy == pytest.approx(0.5 if lie["num-examples"] == 10 else (4 * 0.5 + 3) / 7)


def test_weights_that_begin_above_the_limit_may_shrink_but_not_grow():
    """Clients accept weights up to 10, the limit is 5, and a model begins with 8 and -8: nothing is cut down to 5."""
    model = {"w": np.array([8.0, -8.0, 1.0], np.float32)}
    aggregation = Aggregation(FedAvg(), max_weight=10.0)
    for change, expected in ((0.25, [8.0, -8.0, 5.0]), (-0.25, [7.75, -7.75, 0.75])):
        moved = {"w": model["w"] + np.array([change, -change, 20 * change if change > 0 else change], np.float32)}
        aggregated = aggregation.aggregate(1, [reply("a", moved), reply("b", moved)], model)
        np.testing.assert_allclose(to_model(aggregated.arrays)["w"], expected, rtol=1e-6)
