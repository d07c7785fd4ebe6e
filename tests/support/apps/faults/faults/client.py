"""An honest client adds 1 to every weight, so that the model shows what was aggregated; the others fail as configured.

The test's folder says which: `faults.json` has a list per client, one fault per upload. In a round for which there is a
file `hold-ROUND`, clients wait until it is gone. Before it trains, each client appends a line to its own file, as a
ledger does, so that tests know its real uploads.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedlane.flower.protocol import KEY, TRAINED, Hello, Introduction, Order, Report

app = ClientApp()
EPSILON_EACH, LIMIT = 0.25, 50


def _name(context):
    return f"client-{context.node_config['partition-id']}"


def _uploads(context):
    """Return the client's file and the number of uploads in it."""
    path = Path(context.run_config["folder"]) / f"{_name(context)}.uploads"
    return path, len(path.read_text().splitlines()) if path.exists() else 0


@app.query()
def hello(message, context):
    Hello.read(message.content)
    introduction = Introduction(
        name=_name(context),
        size=100.0,
        label_counts=(50.0, 50.0),
        epsilon=LIMIT * EPSILON_EACH,
        delta=1e-5,
        max_uploads=LIMIT,
        uploads=_uploads(context)[1],
        batch_size=10,
        local_iterations=2,
        upload_noise=0.1,
    )
    return Message(RecordDict({KEY: introduction.record()}), reply_to=message)


@app.train()
def train(message, context):
    order = Order.read(message.content)
    path, uploads = _uploads(context)
    assert order.server_count <= uploads, f"rolled back: {uploads} against {order.server_count}"
    with path.open("a") as file:
        file.write(f"{order.round} {order.lane}\n")
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".parent").write_bytes(Path(f"/proc/{os.getppid()}/cmdline").read_bytes())
    while path.with_name(f"hold-{order.round}").exists():
        time.sleep(0.05)
    fault = _fault(path, uploads)
    weights, examples = message.content["arrays"]["w"].numpy() + np.float32(1.0), 100
    if fault == "nan":
        weights[3] = np.nan
    elif fault == "shape":
        weights = weights[:-1]
    elif fault == "norm":
        weights = weights * np.float32(1e12)
    elif fault == "imposter":
        order = Order(**{**vars(order), "client": "client-0"})
    elif fault == "greedy":
        examples = 10**12
    return _reply(message, order, uploads + 1, weights, examples)


def _fault(path, uploads):
    """Return the fault of a client's next upload; empty if it is to be honest."""
    planned = path.with_name("faults.json")
    faults = json.loads(planned.read_text()).get(path.stem, []) if planned.exists() else []
    return faults[uploads] if uploads < len(faults) else ""


def _reply(message, order, uploads, weights, examples):
    report = Report(
        client=order.client,
        round=order.round,
        lane=order.lane,
        status=TRAINED,
        reason="",
        compute_s=0.0,
        switch_s=0.0,
        uploads=uploads,
        max_uploads=LIMIT,
        epsilon=EPSILON_EACH * uploads,
        delta=1e-5,
    )
    arrays = {"w": weights, "n": message.content["arrays"]["n"].numpy() + 1}
    content = {
        KEY: report.record(),
        "arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()}),
        "metrics": MetricRecord({"num-examples": examples, f"of-{order.client}": 1.0}),
    }
    return Message(RecordDict(content), reply_to=message)
