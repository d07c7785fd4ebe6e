"""A testbed's base station: LaneStrategy over shaped links, as the plan says."""

import json
import logging
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedlane.flower.server.strategy import LaneStrategy
from fedlane.flower.testbed.app import perceptron
from fedlane.flower.testbed.app.client_app import DATASET
from fedlane.flower.testbed.spec import FEDERATION, LOG, OUTCOME, TestbedRun
from fedlane.learning.datasets import load_dataset
from fedlane.scenario import Scenario

app = ServerApp()
EVALUATE_EVERY = 5


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the plan, and leave word of how it went."""
    plan = TestbedRun.read(str(context.run_config["plan"]))
    log = logging.FileHandler(Path(plan.work_folder) / LOG)  # Flower keeps an app's own log in its database
    log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("fedlane.flower").addHandler(log)
    logging.getLogger("fedlane.flower").setLevel(logging.INFO)
    outcome = {"ok": False, "error": "interrupted"}
    try:
        _play(grid, plan)
        outcome = {"ok": True, "error": ""}
    except Exception as error:
        outcome = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        part = Path(plan.work_folder) / f"{OUTCOME}.part"
        part.write_text(json.dumps(outcome))
        part.replace(part.with_name(OUTCOME))


def _play(grid: Grid, plan: TestbedRun) -> None:
    test = load_dataset(DATASET).test
    inputs = perceptron.inputs_of(test.images)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        weights = {name: np.asarray(array.numpy(), np.float32) for name, array in arrays.items()}
        accuracy, loss = perceptron.evaluate(weights, inputs, test.labels)
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    first = perceptron.initial(plan.payload_bytes, plan.seed)
    LaneStrategy(
        lanes=plan.lanes,
        deadline_s=plan.deadline_s,
        state_dir=plan.run_folder,
        policy=plan.policy,
        federation=FEDERATION,
        min_clients=plan.clients,
        capacity=plan.clients,
        floor_s=plan.floor_s,
        evaluate_every=EVALUATE_EVERY,
        seed=plan.seed,
        scenario=Scenario.load(plan.scenario),
        before_round=plan.switch,
    ).start(
        grid,
        ArrayRecord({name: Array(array) for name, array in first.items()}),
        num_rounds=plan.rounds,
        timeout=120.0,
        evaluate_fn=evaluate,
    )
