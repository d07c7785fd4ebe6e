"""An honest client adds 1 to every weight, so that the model shows what was aggregated; the others fail as configured.

Before it trains, each client appends a line to its own file, as a ledger does, so that tests know its real uploads.
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


def _uploads(context):
    """Return the client's file and the number of uploads in it."""
    path = Path(context.run_config["folder"]) / f"{_name(context)}.uploads"
    return path, len(path.read_text().splitlines()) if path.exists() else 0


@app.query()
def hello(message, context):
    Hello.read(message.content)
    uploads, limit = _uploads(context)[1], _limit(context)
    introduction = Introduction(_name(context), 100.0, (50.0, 50.0), 15.0, 1e-5, limit, uploads, 10, 2, 0.1)
    return Message(RecordDict({KEY: introduction.record()}), reply_to=message)


@app.train()
def train(message, context):
    order = Order.read(message.content)
    path, uploads = _uploads(context)
    limit = _limit(context)
    if uploads >= limit or order.server_count > uploads:
        reason = "budget is spent" if uploads >= limit else f"rolled back: {uploads} against {order.server_count}"
        return _reply(message, order, REFUSED, reason, uploads, limit, {})
    with path.open("a") as file:
        file.write(f"{order.round} {order.lane}\n")
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".parent").write_bytes(Path(f"/proc/{os.getppid()}/cmdline").read_bytes())
    faults = str(context.node_config.get("faults", "")).split(",")  # one per upload, then none
    fault = faults[uploads] if uploads < len(faults) else ""
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
        return _reply(message, order, TRAINED, "", uploads + 1, limit, {"w": weights}, examples=10**12)
    time.sleep(float(context.node_config.get("nap", 0.0)))
    compute_s = time.perf_counter() - began
    return _reply(message, order, TRAINED, "", uploads + 1, limit, {"w": weights}, compute_s)


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
