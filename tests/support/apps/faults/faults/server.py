"""A federation under `LaneStrategy`, as a user would write it."""

import logging
import os
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedlane.flower import LaneStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    folder = Path(config["folder"])
    (folder / "server.pid").write_text(str(os.getpid()))
    logging.basicConfig(filename=folder / "fedlane.log", level=logging.WARNING, force=True)
    logging.getLogger("fedlane.flower").setLevel(logging.INFO)
    weights = np.zeros(config["floats"], np.float32)
    arrays = ArrayRecord({"w": Array(weights), "n": Array(np.zeros(1, np.int64))})
    strategy = LaneStrategy(
        FedAvg(fraction_evaluate=0.0),
        lanes=config["lanes"],
        deadline_s=config["deadline"],
        state_dir=folder / "state",
        policy=config["policy"],
        min_clients=config["clients"],
        capacity=max(64, config["clients"]),
        floor_s=4.5,
        before_round=lambda round, lanes: (folder / "round").write_text(f"{round}"),
    )
    strategy.start(
        grid,
        arrays,
        num_rounds=config["rounds"],
        timeout=120,
        evaluate_fn=lambda round, arrays: MetricRecord({"accuracy": float(arrays["w"].numpy().mean())}),
    )
