"""A server that sends every node 1 MB, and records which nodes returned it unchanged."""

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    weights = np.random.default_rng().standard_normal(250_000).astype(np.float32)
    content = RecordDict({"arrays": ArrayRecord({"w": Array(weights)})})
    messages = [Message(content, dst_node_id=n, message_type=MessageType.TRAIN) for n in grid.get_node_ids()]
    replies = grid.send_and_receive(messages, timeout=60)
    same = [
        not reply.has_error() and bool(np.array_equal(reply.content["arrays"]["w"].numpy(), weights))
        for reply in replies
    ]
    Path(context.run_config["out"]).write_text(json.dumps(same))
