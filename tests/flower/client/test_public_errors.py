"""What a client's errors tell the server: nothing that FedLane did not write for it."""

import sys

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Error, Message
from flwr.clientapp import ClientApp

from fedlane.flower import LaneMod, lane_app, new_ledger
from fedlane.flower.client.reply import CLIENT_ERROR
from fedlane.flower.client.switch import CommandSwitch
from fedlane.flower.protocol import KEY, Hello, Report
from fedlane.privacy.ledger import LedgerError, read_accounts
from fedlane.validate import InputError
from support import lane_clients as t

SECRET = "patient-17-Smith"


def raising(error):
    def raise_error(*_):
        raise error

    return raise_error


def foreign_errors():
    """Return errors that user code may raise, some of them FedLane's own."""
    yield from (ValueError(SECRET), InputError(SECRET), LedgerError(SECRET), KeyError(SECRET))
    yield OSError(2, "cannot read", f"/data/{SECRET}.csv")
    try:
        read_accounts(f"/nowhere/{SECRET}")
    except LedgerError as error:
        yield error


def module(init=None, forward=None, outputs=3):
    """Return a class of modules that fails where it is told to."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, outputs)
            if init:
                init()

        def forward(self, x):
            if forward:
                forward()
            return self.layer(x.flatten(1))

    return Net


class Normalised(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(SECRET, torch.nn.BatchNorm1d(16))


def later(error):
    """Return a function that raises an error at its second call."""
    calls = []

    def forward():
        calls.append(1)
        if len(calls) > 1:
            raise error

    return forward


def hostile_settings(folder):
    """Return settings of a client whose errors quote a secret."""
    for error in foreign_errors():
        yield {"data": raising(error)}
        yield {"model": module(init=raising(error))}
        yield {"model": module(forward=raising(error))}
        yield {"model": module(forward=later(error))}
        yield {"switch": raising(error)}
    yield {"model": Normalised}
    yield {"model": type(SECRET.replace("-", "_"), (module(outputs=4),), {})}
    yield from ({"model": f"reply_modules:{name}"} for name in ("fail", "Net", SECRET))
    yield from ({"model": SECRET}, {"model": f"{SECRET}:Net"}, {"model": f"no.{SECRET}:Net"})
    yield {"switch": CommandSwitch(["sh", "-c", f"echo {SECRET} >&2; exit 3 # {{lane}}"])}
    yield {"switch": CommandSwitch([f"/nowhere/{SECRET}", "{lane}"])}
    yield from ({"dataset": SECRET + "x" * 400}, {"name": SECRET + "\n"}, {"delta": SECRET})
    yield {"ledger": folder / f"dir {SECRET}" / "x y" / "ledger"}
    yield from ({"ledger": f"{SECRET}/ledger"}, {"ledger": f"~{SECRET}/ledger"})
    (folder / SECRET).mkdir(exist_ok=True)
    (folder / SECRET / "ledger").write_bytes(SECRET.encode() * 32)
    yield {"ledger": folder / SECRET / "ledger"}
    yield {"data": lambda c: SECRET}
    yield {"data": lambda c: (np.array([[SECRET]], object), np.zeros(1, int))}
    yield {"data": lambda c: (np.zeros((3, *t.SHAPE), np.uint8), np.array([[SECRET]]))}


def reason_of(reply):
    return reply.error.reason if reply.has_error() else Report.read(reply.content).reason


def test_no_text_of_a_client_s_code_or_files_reaches_the_server(tmp_path, monkeypatch, caplog):
    source = "import torch\ndef fail():\n    raise OSError(2, 'x', '/data/{0}.csv')\nclass Net(torch.nn.Module):\n"
    source += "    def __init__(self):\n        raise ValueError('{0}')\n"
    (tmp_path / "reply_modules.py").write_text(source.format(SECRET))
    monkeypatch.syspath_prepend(tmp_path)
    new_ledger(tmp_path / "ledger", "anna")
    allowed = (CLIENT_ERROR, "cannot switch to lane 1", "ledger ledger is", "a ledger line holds 512 bytes", "")
    tried = 0
    for settings in hostile_settings(tmp_path):
        for kind in ("train", "query", "evaluate"):
            caplog.clear()
            request = t.message(kind, arrays=ArrayRecord(), **{KEY: Hello("f").record()})
            app = t.make_client(tmp_path, **{"evaluate_on": settings.get("data"), **settings}).app()
            reply = app(t.order() if kind == "train" else request, t.context())
            if kind == "query" and not reply.has_error():
                continue  # the switch and the model are not used for an introduction
            reason = reason_of(reply)
            assert SECRET not in reason
            assert SECRET.replace("-", "_") not in reason
            assert reason.startswith(allowed[:-1]) or "reports no loss" in reason, reason
            assert caplog.text
            if kind == "train" and "data" in settings:
                assert "Error" in caplog.text or SECRET in caplog.text
            tried += 1
    assert tried > 80
    sys.modules.pop("reply_modules", None)


def test_errors_of_functions_that_make_or_wrap_a_client_are_not_sent(tmp_path):
    for error in foreign_errors():
        for kind in ("train", "query", "evaluate"):
            assert lane_app(raising(error))(t.message(kind), t.context()).error.reason == CLIENT_ERROR
        app = ClientApp(mods=[LaneMod(size=40, local_iterations=2, name="anna")])
        app.train()(raising(error))
        assert reason_of(app(t.order(), t.context())) == CLIENT_ERROR


@pytest.mark.parametrize(
    "name", ["\x1b[2J\x1b]0;owned\x07 round 4: trained", "a\nclient anna, round 4: trained", "\u202e"]
)
def test_names_from_the_server_print_no_control_characters(tmp_path, caplog, name):
    """A terminal that shows the client's log would obey them, and a new line could look like another message."""
    new_ledger(tmp_path / "ledger", "anna")
    arrays = ArrayRecord({**t.first_arrays("softmax", t.SHAPE, 3), name: Array(np.zeros(1, np.float32))})
    constants = ArrayRecord({name: Array(np.zeros(16, np.float32))})

    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, 3)

        def forward(self, x):
            raise ValueError(name)

    replies = [
        t.reply_of(t.make_client(tmp_path), t.order(arrays)),
        t.reply_of(t.make_client(tmp_path), t.order(constants)),
        t.reply_of(t.make_client(tmp_path), t.order(client=name)),
        t.reply_of(t.make_client(tmp_path, federation="f"), t.order(federation=name)),
        t.reply_of(t.make_client(tmp_path, model=Odd), t.order()),
    ]
    for reply in replies:
        assert reason_of(reply).isprintable()
    assert len(caplog.records) >= len(replies)
    for record in caplog.records:
        text = record.getMessage()
        assert text.replace("\n", "").isprintable()
        assert "\n" not in text or "Traceback" in text


def test_a_reply_with_an_error_tells_only_that_there_is_one():
    app = ClientApp(mods=[LaneMod(size=40, local_iterations=2, name="anna")])

    @app.train()
    def train(message, context):
        return Message(Error(code=1717, reason=SECRET), reply_to=message)

    assert reason_of(app(t.order(), t.context())) == "the training function replied with an error"


def test_missing_arrays_are_counted_in_the_log_only(tmp_path, caplog):
    """The names of a client's own arrays may come from its data; those of the server's model are the server's."""
    new_ledger(tmp_path / "ledger", "anna")
    reply = t.reply_of(t.make_client(tmp_path), t.order(ArrayRecord({"other": Array(np.zeros(1, np.float32))})))
    assert reason_of(reply) == "the server's model and this client's have different arrays: other"
    assert "missing: layer0.bias, layer0.weight" in caplog.text
