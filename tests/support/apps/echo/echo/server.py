"""A server that asks every node to sleep, and records when the answers arrived."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

from fedlane.flower.server.grid import exchange

app = ServerApp()
NAPS = (0.0, 0.3, 0.6)


@app.main()
def main(grid, context):
    """Play rounds in which all nodes have time, then rounds whose deadline comes while the nodes still work."""
    config = context.run_config
    while len(nodes := sorted(grid.get_node_ids())) < config["nodes"]:
        time.sleep(0.1)
    rounds = []
    in_time = [(200.0, NAPS)] * config["rounds"]
    late = [(config["deadline"], (10 * config["deadline"],) * len(NAPS))] * config["late-rounds"]
    for deadline_s, naps in in_time + late:
        weights = np.random.default_rng().standard_normal(250_000).astype(np.float32)
        arrays = ArrayRecord({"w": Array(weights)})
        messages = [
            Message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({"sleep": nap, "floats": 250_000})}),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
                ttl=deadline_s + 1.0,
            )
            for node, nap in zip(nodes, naps, strict=False)
        ]
        began = time.monotonic()
        arrivals = exchange(grid, messages, deadline_s)
        ended = time.monotonic()
        outcomes = [_outcome(arrival) for arrival in arrivals]
        rounds.append({"began": began, "ended": ended, "deadline": deadline_s, "arrivals": outcomes})
    Path(config["out"]).write_text(json.dumps(rounds))


def _outcome(arrival):
    metrics = dict(arrival.reply.content["metrics"]) if arrival.reply else {}
    return {"sent": arrival.sent_s, "arrived": arrival.arrived_s, "reason": arrival.reason, **metrics}
