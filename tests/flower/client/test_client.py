"""LaneClient and LaneMod with real Flower messages and a ledger on disk."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedlane.flower import LaneMod, lane_app, new_ledger
from fedlane.flower.client.reply import CLIENT_ERROR
from fedlane.flower.client.switch import CommandSwitch
from fedlane.flower.client.weights import first_arrays
from fedlane.flower.protocol import KEY, LOSSES, Hello, Introduction, LossReport, Report
from fedlane.privacy.ledger import ClientLedger, LedgerInUseError, read_accounts
from fedlane.validate import InputError
from support.lane_clients import (
    COUNTS,
    SHAPE,
    context,
    make_client,
    message,
    order,
    records,
    reply_of,
    report_of,
    uploads_on_disk,
)
from support.terminal import fedlane


@pytest.fixture
def ledger(tmp_path):
    return new_ledger(tmp_path / "ledger", "anna")


def arrays_of(record):
    return {name: array.numpy() for name, array in record.items()}


def test_an_order_is_charged_trained_and_reported(tmp_path, ledger):
    sent = first_arrays("softmax", SHAPE, 3)
    reply = reply_of(make_client(tmp_path), order(sent))
    report = report_of(reply)
    assert (report.client, report.round, report.lane, report.status, report.reason) == ("anna", 4, 1, "trained", "")
    assert (report.uploads, report.max_uploads, report.delta) == (1, 3, 1e-5)
    assert 0 < report.epsilon < 8
    assert report.compute_s > 0
    assert uploads_on_disk(ledger) == {"data": 1}
    update = reply.content["arrays"]
    assert list(update) == list(sent)
    for name, array in update.items():
        assert (array.dtype, array.shape) == (sent[name].dtype, sent[name].shape)
        assert not np.array_equal(array.numpy(), sent[name].numpy())


@pytest.mark.parametrize(("epsilon", "deviation"), [(8.0, 30 * 2**0.5 * 1.5 / 300), (None, 0.0)])
def test_losses_are_reported_only_if_the_client_says_so(tmp_path, ledger, epsilon, deviation):
    """All records are in every step. The model predicts nothing, so that every loss is ln 3, below the clip of 1.5."""
    sent = ArrayRecord({name: Array(0 * array.numpy()) for name, array in first_arrays("softmax", SHAPE, 3).items()})
    settings = {"epsilon": epsilon, "batch_size": 300, "loss_clip": 1.5, "loss_noise": 30.0}
    silent = reply_of(make_client(tmp_path, **settings), order(sent))
    assert report_of(silent).status == "trained"
    assert LOSSES not in silent.content
    reply = reply_of(make_client(tmp_path, **settings, report_losses=True), order(sent, round=5))
    losses = LossReport.read(reply.content)
    assert losses.protected == (epsilon is not None)
    assert losses.mean == pytest.approx(np.log(3), abs=5 * deviation + 1e-6)
    assert losses.rms**2 == pytest.approx(np.log(3) ** 2, abs=5 * 1.5 * deviation + 1e-6)
    assert (losses.mean == pytest.approx(np.log(3), abs=1e-6)) == (epsilon is None)


def test_losses_with_less_noise_than_a_step_are_refused_before_anything_is_charged(tmp_path, ledger, caplog):
    client = make_client(tmp_path, report_losses=True, loss_noise=0.3)
    report = report_of(reply_of(client, order()))
    assert (report.status, report.reason) == ("failed", CLIENT_ERROR)
    assert "privacy.loss_noise must be greater than the noise multiplier of a step" in caplog.text
    assert uploads_on_disk(ledger) == {}


def test_only_the_update_and_the_released_size_depend_on_the_data(tmp_path, ledger):
    """The number of examples in a reply is the released one, whose standard deviation is 10 sqrt(3)."""
    reply = reply_of(make_client(tmp_path), order())
    assert set(reply.content) == {"arrays", "metrics", KEY}
    assert set(reply.content["metrics"]) == {"num-examples"}
    claimed_size = reply.content["metrics"]["num-examples"]
    histogram = read_accounts(ledger)[1]["data"].histogram
    assert claimed_size == pytest.approx(sum(histogram), abs=0.11)
    assert claimed_size != 300
    assert abs(claimed_size - 300) < 6 * 10 * 3**0.5


def test_a_client_refuses_once_its_budget_is_spent(tmp_path, ledger):
    client = make_client(tmp_path)
    for count in range(1, 4):
        report = report_of(reply_of(client, order(server_count=count - 1)))
        assert (report.status, report.uploads) == ("trained", count)
    assert report.epsilon == pytest.approx(8.0, rel=1e-3)
    reply = reply_of(client, order(server_count=3))
    report = report_of(reply)
    assert (report.status, report.uploads, report.max_uploads) == ("refused", 3, 3)
    assert "budget of data set data is spent" in report.reason
    assert set(reply.content) == {KEY}
    assert uploads_on_disk(ledger) == {"data": 3}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"client": "berta"}, "for client 'berta', but this is 'anna'"),
        ({"iterations": 3}, "3 local iterations, but this client's terms say 2"),
        ({"federation": "g"}, "from federation 'g'"),
        ({"server_count": 1}, "was rolled back"),
    ],
)
def test_orders_that_are_not_for_this_client_are_refused(tmp_path, ledger, changes, reason):
    reply = reply_of(make_client(tmp_path, federation="f"), order(**changes))
    report = report_of(reply)
    assert report.status == "refused"
    assert reason in report.reason
    assert set(reply.content) == {KEY}
    assert not sum(uploads_on_disk(ledger).values())


def test_a_damaged_or_missing_ledger_is_refused(tmp_path, ledger):
    client = make_client(tmp_path)
    assert report_of(reply_of(client, order())).status == "trained"
    content = bytearray(ledger.read_bytes())
    content[700] ^= 1
    ledger.write_bytes(content)
    report = report_of(reply_of(client, order(server_count=1)))
    assert (report.status, "is damaged" in report.reason) == ("refused", True)
    ledger.unlink()
    for client in (make_client(tmp_path), make_client(tmp_path, create_ledger=True)):  # an order never creates a ledger
        report = report_of(reply_of(client, order(server_count=1)))
        assert report.status == "refused"
        assert "is missing" in report.reason
        assert "new_ledger" in report.reason
    assert not ledger.exists()
    # A hello does not create one either where a ledger existed before.
    reply = reply_of(make_client(tmp_path, create_ledger=True), message("query", **{KEY: Hello("f").record()}))
    assert "cannot be reset" in reply.error.reason


def test_changed_terms_are_refused(tmp_path, ledger):
    assert report_of(reply_of(make_client(tmp_path), order())).status == "trained"
    for changes in (
        {"max_uploads": 4},
        {"epsilon": 9.0},
        {"batch_size": 20},
        {"data": lambda c: tuple(np.concatenate([part, part]) for part in records())},  # half of them in a step
    ):
        report = report_of(reply_of(make_client(tmp_path, **changes), order(server_count=1)))
        assert (report.status, "holds different terms" in report.reason) == ("refused", True), changes
    report = report_of(reply_of(make_client(tmp_path, name="berta"), order(client="berta")))
    assert report.reason == "ledger ledger belongs to another client"
    assert uploads_on_disk(ledger) == {"data": 1}


def test_the_noise_is_calibrated_once_and_then_read_from_the_ledger(tmp_path, ledger, monkeypatch):
    """A new version of the accountant, or an empty cache, neither changes the noise nor takes time."""
    assert report_of(reply_of(make_client(tmp_path), order())).status == "trained"
    monkeypatch.setattr(
        "fedlane.flower.client.training.make_mechanism", lambda *_, **__: pytest.fail("calibrated again")
    )
    assert report_of(reply_of(make_client(tmp_path), order(server_count=1))).uploads == 2


def _without_last(data):
    return data[0][:-1], data[1][:-1]


def test_a_second_upload_at_the_same_time_fails_without_a_charge(tmp_path, ledger):
    with ClientLedger(ledger):
        report = report_of(reply_of(make_client(tmp_path), order()))
    assert (report.status, "in use" in report.reason) == ("failed", True)
    assert uploads_on_disk(ledger) == {}


def test_the_ledger_is_locked_during_training(tmp_path, ledger):
    uploads_when_locked = []

    class LedgerOpener(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, 3)

        def forward(self, x):
            try:
                ClientLedger(ledger).close()
            except LedgerInUseError:
                uploads_when_locked.append(uploads_on_disk(ledger)["data"])
            return self.layer(x.flatten(1))

    arrays = ArrayRecord(LedgerOpener().state_dict())
    assert report_of(reply_of(make_client(tmp_path, model=LedgerOpener), order(arrays))).status == "trained"
    assert set(uploads_when_locked) == {1}  # for every record, and already charged


def bad_arrays(**changes):
    return ArrayRecord({**first_arrays("softmax", SHAPE, 3), **changes})


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        (bad_arrays(**{"layer0.bias": Array(np.full(3, np.nan, np.float32))}), "not finite"),
        (bad_arrays(**{"layer0.bias": Array(np.full(3, 1e9, np.float32))}), "weights above 1000"),
        (
            bad_arrays(**{"layer0.bias": Array(np.zeros(4, np.float32))}),
            "'layer0.bias' must be float (3,), got float32 (4,)",
        ),
        (
            bad_arrays(**{"layer0.bias": Array(np.zeros(3, np.int64))}),
            "'layer0.bias' must be float (3,), got int64 (3,)",
        ),
        (bad_arrays(extra=Array(np.zeros(3, np.float32))), "this client's have different arrays: extra"),
        (ArrayRecord(), "have different arrays"),
    ],
)
def test_invalid_server_models_fail_without_a_charge(tmp_path, ledger, arrays, reason):
    report = report_of(reply_of(make_client(tmp_path), order(arrays)))
    assert report.status == "failed"
    assert reason in report.reason
    assert not sum(uploads_on_disk(ledger).values())


def test_of_errors_in_user_code_only_a_constant_text_is_sent(tmp_path, ledger):
    def broken(context):
        raise KeyError("patient 17 has no label")

    report = report_of(reply_of(make_client(tmp_path, data=broken), order()))
    assert (report.status, report.reason) == ("failed", CLIENT_ERROR)
    reply = reply_of(make_client(tmp_path, data=broken), message("query", **{KEY: Hello("f").record()}))
    assert reply.error.reason == CLIENT_ERROR
    for kind in ("train", "query", "evaluate"):
        assert lane_app(broken)(message(kind), context()).error.reason == CLIENT_ERROR


def test_a_switch_runs_before_training_and_its_failure_is_not_charged(tmp_path, ledger, caplog):
    calls = []

    def slow(lane):
        calls.append((lane, uploads_on_disk(ledger)))
        time.sleep(0.02)

    begin = time.perf_counter()
    report = report_of(reply_of(make_client(tmp_path, switch=slow), order(lane=2)))
    assert calls == [(2, {})]
    assert report.switch_s >= 0.02
    assert report.compute_s + report.switch_s <= time.perf_counter() - begin  # measured separately
    for switch, reason in ((CommandSwitch("false {lane}"), "status 1"), (lambda lane: 1 / 0, "ZeroDivisionError")):
        report = report_of(reply_of(make_client(tmp_path, switch=switch), order(lane=1)))
        assert (report.status, report.uploads) == ("failed", 0)
        assert report.reason == "cannot switch to lane 1"
        assert reason in caplog.text
    assert uploads_on_disk(ledger) == {"data": 1}


def test_the_histogram_is_released_once(tmp_path):
    client = make_client(tmp_path, create_ledger=True)
    hello = message("query", **{KEY: Hello("f").record()})
    first, second = (Introduction.read(reply_of(client, hello).content) for _ in range(2))
    assert first == second
    assert (first.name, first.epsilon, first.max_uploads, first.uploads, first.local_iterations) == ("anna", 8, 3, 0, 2)
    assert first.label_counts != COUNTS
    assert np.abs(np.subtract(first.label_counts, COUNTS)).max() < 60
    terms = read_accounts(tmp_path / "ledger")[1]["data"].terms
    assert first.upload_noise == pytest.approx(terms.step_noise * 2**0.5 / 300)
    assert report_of(reply_of(client, order())).uploads == 1
    assert Introduction.read(reply_of(client, hello).content).uploads == 1
    other = make_client(tmp_path / "other", create_ledger=True)
    assert Introduction.read(reply_of(other, hello).content).label_counts != first.label_counts


def test_a_client_without_privacy_needs_no_ledger(tmp_path):
    client = make_client(tmp_path, epsilon=None, ledger=None)
    introduction = Introduction.read(reply_of(client, message("query", **{KEY: Hello("f").record()})).content)
    assert (introduction.size, introduction.label_counts, introduction.epsilon, introduction.max_uploads) == (
        300,
        COUNTS,
        0,
        0,
    )
    reply = reply_of(client, order())
    assert (report_of(reply).status, report_of(reply).max_uploads) == ("trained", 0)
    assert reply.content["metrics"]["num-examples"] == 300


def test_a_private_client_evaluates_only_on_evaluate_on(tmp_path, ledger):
    request = message("evaluate", arrays=first_arrays("softmax", SHAPE, 3), config=ConfigRecord())
    reply = reply_of(make_client(tmp_path), request)
    assert "reports no loss or accuracy" in reply.error.reason
    reply = reply_of(make_client(tmp_path, evaluate_on=lambda c: _without_last(records())), request)
    metrics = reply.content["metrics"]
    assert metrics["num-examples"] == 299
    weights, bias = (arrays_of(request.content["arrays"])[f"layer0.{part}"] for part in ("weight", "bias"))
    images, labels = _without_last(records())
    scores = images.reshape(299, -1) / 255 @ weights.T + bias
    assert metrics["accuracy"] == pytest.approx((scores.argmax(1) == labels).mean())
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert metrics["loss"] == pytest.approx(-np.log(probabilities[np.arange(299), labels]).mean(), rel=1e-5)


def test_messages_without_an_order_get_an_error_reply(tmp_path, ledger):
    reply = reply_of(make_client(tmp_path), message("train", arrays=first_arrays("softmax", SHAPE, 3)))
    assert "carries no Order" in reply.error.reason
    assert uploads_on_disk(ledger) == {}


def test_name_and_ledger_default_to_the_node_configuration(tmp_path):
    new_ledger(tmp_path / "a" / "my.ledger", "carl")
    client = make_client(tmp_path, name=None, ledger=None)
    node = context(**{"fedlane-name": "carl", "fedlane-ledger": str(tmp_path / "a" / "my.ledger"), "partition-id": 3})
    assert report_of(reply_of(client, order(client="carl"), node)).status == "trained"
    report = report_of(reply_of(client, order(client="client-3"), context(**{"partition-id": 3})))
    assert (report.status, "needs a ledger" in report.reason) == ("refused", True)
    assert report_of(reply_of(client, order(client="x"))).client == "node-7"
    app = lane_app(lambda c: make_client(tmp_path, name=f"client of run {c.run_id}"))
    assert Report.read(app(order(), context()).content).client == "client of run 1"


def test_a_client_killed_during_training_has_spent_the_upload(tmp_path, ledger, monkeypatch):
    monkeypatch.setattr(
        "fedlane.flower.client.training.train_strictly", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of this process do not concern the child
        child = os.fork()
    if child == 0:
        try:
            reply_of(make_client(tmp_path), order())
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert uploads_on_disk(ledger) == {"data": 1}


def test_lane_mod_wraps_a_training_function():
    switched = []
    lanes = LaneMod(size=40, label_counts=(30, 10), local_iterations=2, name="anna", switch=switched.append)
    app = ClientApp(mods=[lanes])
    app.query()(lanes.introduce)

    @app.train()
    def train(message, context):
        time.sleep(0.02)
        if message.content["config"]["lr"] > 1:
            raise ValueError("a secret")
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 40})}), reply_to=message)

    introduction = Introduction.read(app(message("query", **{KEY: Hello("f").record()}), context()).content)
    assert (introduction.name, introduction.size, introduction.label_counts, introduction.epsilon) == (
        "anna",
        40,
        (30, 10),
        0,
    )
    reply = app(order(lane=2), context())
    report = report_of(reply)
    assert (report.status, report.lane, switched) == ("trained", 2, [2])
    assert report.compute_s >= 0.02
    assert reply.content["metrics"]["num-examples"] == 40
    assert report_of(app(order(iterations=1), context())).status == "refused"
    failing = order()
    failing.content["config"]["lr"] = 2.0
    report = report_of(app(failing, context()))
    assert (report.status, report.reason) == ("failed", CLIENT_ERROR)
    plain = message("train", config=ConfigRecord({"lr": 1.0}))
    assert set(app(plain, context()).content) == {"metrics"}


@pytest.mark.slow  # it starts a process
def test_importing_the_client_loads_neither_torch_nor_the_accountant():
    heavy = ["torch", "numba", "scipy", "dp_accounting", "pyarrow", "pydantic"]
    code = f"import sys, json, fedlane.flower.client; print(json.dumps([m for m in {heavy} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_invalid_settings_are_rejected(tmp_path, ledger, caplog):
    with pytest.raises(InputError, match="classes must be at least 2"):
        make_client(tmp_path, classes=1)
    for changes, reason in (
        ({"learning_rate": 0}, "learning_rate must be greater than 0"),
        ({"delta": 0.0}, "delta must be greater than 0"),
        ({"data": lambda c: (np.zeros((3, 1, 4, 4), int), np.zeros(3, int))}, "bytes or floats"),
    ):
        report = report_of(reply_of(make_client(tmp_path, **changes), order()))
        assert (report.status, report.reason, reason in caplog.text) == ("failed", CLIENT_ERROR, True)


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"classes": 2}, "labels must be integers from 0 to 1"),
        ({"data": lambda c: (np.full((3, 1, 4, 4), np.inf), np.zeros(3, int))}, "inputs must be finite"),
        ({"data": lambda c: (np.full((3, 1, 4, 4), 1e36), np.zeros(3, int))}, "got 1e+36"),
        ({"data": lambda c: (np.full((3, 1, 4, 4), np.nan), np.zeros(3, int))}, "got nan"),
        ({"data": lambda c: (np.zeros((3, 1, 4, 4), np.uint8), np.zeros(4, int))}, "got shapes (3, 1, 4, 4) and (4,)"),
        ({"learning_rate": 1e39, "epsilon": None}, "training diverged"),
    ],
)
def test_what_is_wrong_with_records_is_logged_and_not_sent(tmp_path, ledger, caplog, changes, detail):
    report = report_of(reply_of(make_client(tmp_path, **changes), order()))
    assert (report.status, report.reason) == ("failed", CLIENT_ERROR)
    assert detail in caplog.text


def test_the_command_line_creates_a_ledger_once(tmp_path):
    def fedlane_privacy(*arguments):
        done = fedlane("privacy", *arguments, cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr

    path = tmp_path / "new" / "my.ledger"
    assert fedlane_privacy("new-ledger", path, "--client", "anna")[0] == 0
    code, output = fedlane_privacy("new-ledger", path, "--client", "anna")
    assert (code, "cannot be reset" in output) == (2, True)
    code, output = fedlane_privacy("account", path)
    assert (code, "no privacy has been spent" in output) == (0, True)
    with ClientLedger(path) as ledger:
        assert (ledger.client, ledger.accounts) == ("anna", {})
