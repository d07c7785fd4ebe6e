"""A testbed's server: LaneStrategy over shaped links, as a `TestbedRun` specifies."""

import json
import logging
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedlane.flower.server.strategy import LaneStrategy
from fedlane.flower.testbed.app import perceptron
from fedlane.flower.testbed.app.client_app import DATASET
from fedlane.flower.testbed.spec import FEDERATION, LOG_FILE, OUTCOME_FILE, TestbedRun
from fedlane.learning.datasets import load_dataset
from fedlane.scenario import Scenario

app = ServerApp()
EVALUATE_EVERY = 5


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Execute the run, and write its outcome."""
    run = TestbedRun.read(str(context.run_config["plan"]))
    log = logging.FileHandler(Path(run.work_folder) / LOG_FILE)  # Flower stores an app's log in its database only
    log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("fedlane.flower").addHandler(log)
    logging.getLogger("fedlane.flower").setLevel(logging.INFO)
    outcome = {"ok": False, "error": "interrupted"}
    try:
        _execute(grid, run)
        outcome = {"ok": True, "error": ""}
    except Exception as error:
        outcome = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        part = Path(run.work_folder) / f"{OUTCOME_FILE}.part"
        part.write_text(json.dumps(outcome))
        part.replace(part.with_name(OUTCOME_FILE))


def _execute(grid: Grid, run: TestbedRun) -> None:
    test = load_dataset(DATASET).test
    inputs = perceptron.inputs_of(test.images)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        weights = {name: np.asarray(array.numpy(), np.float32) for name, array in arrays.items()}
        accuracy, loss = perceptron.evaluate(weights, inputs, test.labels)
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    first = perceptron.initial(run.payload_bytes, run.seed)
    LaneStrategy(
        lanes=run.lanes,
        deadline_s=run.deadline_s,
        state_dir=run.run_folder,
        policy=run.policy,
        federation=FEDERATION,
        min_clients=run.clients,
        capacity=run.clients,
        floor_s=run.floor_s,
        evaluate_every=EVALUATE_EVERY,
        seed=run.seed,
        scenario=Scenario.load(run.scenario),
        before_round=run.switch_lanes,
    ).start(
        grid,
        ArrayRecord({name: Array(array) for name, array in first.items()}),
        num_rounds=run.rounds,
        timeout=120.0,
        evaluate_fn=evaluate,
    )
