"""An honest client adds 1 to every weight, so that a model says what went into it; the others are told how to fail.

Each appends a line to its own file before it trains, as a ledger does: what it really uploaded.
"""

import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedlane.flower.protocol import KEY, REFUSED, TRAINED, Hello, Introduction, Order, Report

app = ClientApp()
EPSILON_EACH = 0.25


def _name(context):
    return str(context.node_config.get("name", f"client-{context.node_config['partition-id']}"))


def _limit(context):
    return int(context.node_config.get("limit", 50))


def _made(context):
    """The client's file, and how many uploads it holds."""
    path = Path(context.run_config["folder"]) / f"{_name(context)}.uploads"
    return path, len(path.read_text().splitlines()) if path.exists() else 0


@app.query()
def hello(message, context):
    Hello.read(message.content)
    made, limit = _made(context)[1], _limit(context)
    said = Introduction(_name(context), 100.0, (50.0, 50.0), 15.0, 1e-5, limit, made, 10, 2, 0.1)
    return Message(RecordDict({KEY: said.record()}), reply_to=message)


@app.train()
def train(message, context):
    order = Order.read(message.content)
    path, made = _made(context)
    limit = _limit(context)
    if made >= limit or order.server_count > made:
        reason = "budget is spent" if made >= limit else f"rolled back: {made} against {order.server_count}"
        return _reply(message, order, REFUSED, reason, made, limit, {})
    with path.open("a") as file:
        file.write(f"{order.round} {order.lane}\n")
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".parent").write_bytes(Path(f"/proc/{os.getppid()}/cmdline").read_bytes())
    faults = str(context.node_config.get("faults", "")).split(",")  # one for each upload, then none
    fault = faults[made] if made < len(faults) else ""
    if fault == "silent":
        time.sleep(3 * order.deadline_s)
    began = time.perf_counter()
    weights = message.content["arrays"]["w"].numpy() + np.float32(1.0)
    if fault == "nan":
        weights[3] = np.nan
    elif fault == "shape":
        weights = weights[:-1]
    elif fault == "norm":
        weights = weights * np.float32(1e12)
    elif fault == "imposter":
        order = Order(**{**vars(order), "client": "client-0"})
    elif fault == "greedy":
        return _reply(message, order, TRAINED, "", made + 1, limit, {"w": weights}, examples=10**12)
    time.sleep(float(context.node_config.get("nap", 0.0)))
    compute_s = time.perf_counter() - began
    return _reply(message, order, TRAINED, "", made + 1, limit, {"w": weights}, compute_s)


def _reply(message, order, status, reason, uploads, limit, arrays, compute_s=0.0, examples=100):
    report = Report(
        *(order.client, order.round, order.lane, status, reason, compute_s, 0.0),
        *(uploads, limit, EPSILON_EACH * uploads, 1e-5),
    )
    content = {KEY: report.record()}
    if arrays:
        if "n" in message.content["arrays"]:
            arrays["n"] = message.content["arrays"]["n"].numpy() + 1
        content["arrays"] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        content["metrics"] = MetricRecord({"num-examples": examples, f"of-{order.client}": 1.0, "seconds": compute_s})
    return Message(RecordDict(content), reply_to=message)
