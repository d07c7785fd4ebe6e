"""A client that sleeps as the message asks and answers with random weights."""

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    time.sleep(float(message.content["config"]["sleep"]))
    weights = np.random.default_rng().standard_normal(int(message.content["config"]["floats"])).astype(np.float32)
    metrics = MetricRecord({"trained": time.monotonic(), "node": int(context.node_config["partition-id"])})
    content = {"arrays": ArrayRecord({"w": Array(weights)}), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)
