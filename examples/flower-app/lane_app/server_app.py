"""The server app: FedAvg, with clients and lanes selected by FedLane."""

from functools import partial
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedlane.flower import LaneStrategy, evaluate_arrays
from lane_app.task import CLASSES, Net, public_records

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured number of rounds, continuing from the state folder if it holds an earlier run."""
    config = context.run_config
    model = partial(Net, int(config["hidden"]))
    test = public_records()

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        return evaluate_arrays(model, arrays, *test, CLASSES)

    strategy = LaneStrategy(
        FedAvg(fraction_evaluate=0.0),
        policy=str(config["policy"]),
        lanes=int(config["lanes"]),
        deadline_s=float(config["deadline-s"]),
        state_dir=Path(str(config["state-dir"])).expanduser(),
        min_clients=int(config["clients"]),
    )
    strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=int(config["rounds"]), evaluate_fn=evaluate)
